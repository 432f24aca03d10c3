"""Subtitles (SubRip, .srt): their texts are translated, all else of the file stays byte for byte."""

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from utils.command import columns_of
from utils.dataset.text import lines_of, open_text
from utils.search.inspection import SpanLinks
from utils.search.markup import POINTS, Tag, TaggedText
from utils.text.language import HAN, KANA, unspaced_language

_TIME = r"[ \t]*\d+:\d\d:\d\d[,.]\d+[ \t]*"
_HEAD = rf"\ufeff?(?:[ \t]*\d+[ \t]*\r?\n)?{_TIME}-->{_TIME}(?:[ \t].*)?\r?$"
_SUBTITLE = re.compile(rf"^{_HEAD}((?:\n(?!{_HEAD}).*\S.*)*)", re.M)
_DASH = r"[-–—－]\s*(?![-–—－])"  # begins what another person says
_SPOKEN = re.compile(rf"\S.*(?:\n(?!{_DASH}).+)*")
_TAG = r"</?[A-Za-z][\w.]*(?:[\s/][^<>]*)?>|\{\\[^{}]*\}"  # {\an8} says where on the screen
_FIRST = rf"^(?:\{{\\[^{{}}]*\}}\s*|{_DASH})*"  # stays at the beginning, whatever tags follow
_POINT = re.compile(rf"\{{|<(?:br|{'|'.join(POINTS)})\b|.*/>", re.S)  # a tag that holds no text
_CHUNK = re.compile(  # a line may end behind it
    rf"(?:[「『（]|{_TAG})*(?:[{KANA}{HAN}]|(?:{_TAG}|[^\s{KANA}{HAN}])+)(?:[、。」』）！？ー]|{_TAG})*\s*"
)
_COLUMNS = 42  # of a line on a screen


class Subtitles:
    """A file of subtitles, taken apart: `texts` are to be translated, and begin on the lines of these numbers.

    The lines of a subtitle are one text, but for those that begin with a dash.
    """

    lost = "no place in its translation for"

    def __init__(self, path: Path) -> None:
        content = content_of(path)
        self.texts, self.numbers = list[TaggedText](), list[int]()
        self._parts, end = list[str](), 0  # of the file: what stands before a text, the text, and so on
        for subtitle in _SUBTITLE.finditer(content):
            for spoken in _SPOKEN.finditer(content, *subtitle.span(1)):
                raw = spoken[0].rstrip()
                text = tagged(re.sub(r"\s*\n\s*", "" if unspaced_language([raw]) else " ", raw))
                if re.search(r"\w", text.text):  # not ♪ or ?!, which need no translation
                    self._parts += [content[end : spoken.start()], raw]
                    self.numbers.append(content.count("\n", 0, spoken.start()) + 1)
                    self.texts.append(text)
                    end = spoken.start() + len(raw)
        self._parts.append(content[end:])
        rest = _SUBTITLE.sub(lambda subtitle: "\n" * subtitle[0].count("\n"), content)
        for number, line in enumerate(rest.split("\n"), 1):
            if line.strip(" \t\r\ufeff0123456789"):
                what = "a subtitle is a number, times such as 00:00:01,000 --> 00:00:02,500, and lines"
                raise ValueError(f"{path}, line {number}: {line.strip()[:40]!r} belongs to no subtitle; {what}")

    def filled(self, translations: Sequence[tuple[str, SpanLinks]]) -> str:
        """Return the file with these translations, and their links, in the place of its texts."""
        parts = self._parts.copy()
        for i, (text, (translation, links)) in enumerate(zip(self.texts, translations, strict=True)):
            lines = _wrapped(text.filled(translation, links), parts[2 * i + 1].count("\n") + 1)
            parts[2 * i + 1] = ("\r\n" if "\r" in parts[0] else "\n").join(lines)
        return "".join(parts)


def content_of(path: Path) -> str:
    """Read a file of UTF-8 text with its line ends, as `lines_of` reads its lines."""
    list(lines_of(path))  # refuses what is not UTF-8, or has no text
    with open_text(path) as file:
        return file.read().decode()


def tagged(text: str) -> TaggedText:
    """Take the tags out of a text, and the dash or the place on the screen that it begins with."""
    rest = re.sub(_FIRST, "", text)
    parts: list[str | Tag] = [*re.split(f"({_TAG})", rest)]  # every second is one
    for i, raw in enumerate(map(str, parts)):
        if i % 2:
            name = re.sub(r"^</?(\w+).*", r"\1", raw)
            parts[i] = Tag(raw, name, is_end=raw.startswith("</"), is_point=bool(_POINT.match(raw)))
    return TaggedText(parts, text.removesuffix(rest))


def _wrapped(text: str, max_lines: int) -> list[str]:
    """Break a text into as few lines as fit on a screen, but at most so many, all of about the same length."""
    columns = _columns(text)
    for width in count(columns // min(max_lines, columns // _COLUMNS + 1)):
        lines = [""]
        for chunk in _CHUNK.findall(text):
            lines += [""] if lines[-1] and _columns(lines[-1] + chunk) > width else []
            lines[-1] += chunk
        if len(lines) <= max_lines:
            break
    return [line.rstrip() for line in lines]


def _columns(text: str) -> int:
    return columns_of(re.sub(_TAG, "", text).rstrip())
