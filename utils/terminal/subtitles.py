"""Subtitles (SubRip, .srt): their texts are translated, all else of the file stays byte for byte."""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from utils.command import columns_of
from utils.dataset.text import lines_of, open_text
from utils.search.inspection import SpanLinks
from utils.search.markup import POINTS, Passage, Tag, TaggedText
from utils.text.language import HAN, KANA, unspaced_language

_TIME = r"[ \t]*\d+:\d\d:\d\d[,.]\d+[ \t]*"
_HEAD = rf"\ufeff?(?:[ \t]*\d+[ \t]*\r?\n)?{_TIME}-->{_TIME}(?:[ \t].*)?\r?$"
_SUBTITLE = re.compile(rf"^{_HEAD}((?:\n(?!{_HEAD}).*\S.*)*)", re.M)
_DASH = r"[-–—－]\s*(?![-–—－])"  # begins what another person says
_SPOKEN = re.compile(rf"\S.*(?:\n(?!{_DASH}).+)*")
_TAG = r"</?[A-Za-z][\w.]*(?:[\s/][^<>]*)?>|\{\\[^{}]*\}"  # {\an8} says where on the screen
_FIRST = rf"^(?:\{{\\[^{{}}]*\}}\s*|{_DASH})*"  # stays at the beginning, whatever tags follow
_POINT = re.compile(rf"(?i)\{{|<(?:{'|'.join(POINTS)})\b|(?s:.*)/>")  # a tag that holds no text
_BREAK = re.compile(r"(?i)[^<{]|</?(?:br|hr|p|div|h[1-6]|[dou]l|li|d[dt]|table|t[dhr]|option)\b")  # between sentences
# around what is sung (though not in C# and #1), and what is heard
_LAST = r"(?<!\b[A-Z])[#*~]+(?![^<])"
_SIGN = rf"[♩♪♫♬\[\]【】]|(?<![^>}}])[#*~]+(?=\s|.*{_LAST})|{_LAST}"
_CHUNK = re.compile(  # a line may end behind it
    rf"(?:[「『（]|{_TAG})*(?:[{KANA}{HAN}]|(?:{_TAG}|[^\s{KANA}{HAN}])+)(?:[、。」』）！？ー]|{_TAG})*\s*"
)
_COLUMNS = 42  # of a line on a screen


class Subtitles:
    """A file of subtitles, taken apart: `texts` are to be translated, and begin on the lines of these numbers.

    The lines of a subtitle are one text, but where a dash begins one of them, or a tag or a sign parts them.
    """

    lost = "no place in its translation for"

    def __init__(self, path: Path) -> None:
        content = content_of(path)
        self.texts, self.numbers, self._passages = list[TaggedText](), list[int](), list[Passage]()
        self._parts, end = list[str](), 0  # of the file: what stands before a text, the text, and so on
        number_at = line_numbers(content)
        for subtitle in _SUBTITLE.finditer(content):
            for spoken in _SPOKEN.finditer(content, *subtitle.span(1)):
                raw = spoken[0].rstrip()
                passage = tagged(re.sub(r"\s*\n\s*", "" if unspaced_language([raw]) else " ", raw), f"{_TAG}|{_SIGN}")
                if passage.texts:
                    self._parts += [content[end : spoken.start()], raw]
                    self.numbers += [number_at(spoken.start())] * len(passage.texts)
                    self.texts += passage.texts
                    self._passages.append(passage)
                    end = spoken.start() + len(raw)
        self._parts.append(content[end:])
        rest = _SUBTITLE.sub(lambda subtitle: "\n" * subtitle[0].count("\n"), content)
        for number, line in enumerate(rest.split("\n"), 1):
            if line.strip(" \t\r\ufeff0123456789"):
                what = "a subtitle is a number, times such as 00:00:01,000 --> 00:00:02,500, and lines"
                raise ValueError(f"{path}, line {number}: {line.strip()[:40]!r} belongs to no subtitle; {what}")

    def filled(self, translations: Sequence[tuple[str, SpanLinks]]) -> str:
        """Return the file with these translations, and their links, in the place of its texts."""
        parts, rest = self._parts.copy(), iter(translations)
        for i, passage in enumerate(self._passages):
            lines = _wrapped(passage.filled(rest), parts[2 * i + 1].count("\n") + 1)
            parts[2 * i + 1] = ("\r\n" if "\r" in parts[0] else "\n").join(lines)
        return "".join(parts)


def content_of(path: Path) -> str:
    """Read a file of UTF-8 text with its line ends, as `lines_of` reads its lines."""
    list(lines_of(path))  # refuses what is not UTF-8, or has no text
    with open_text(path) as file:
        return file.read().decode()


def line_numbers(content: str) -> Callable[[int], int]:
    """Return what tells the number of the line, from 1, that a place in a text is in."""
    ends = [found.start() for found in re.finditer("\n", content)]
    return lambda place: bisect_left(ends, place) + 1


def tagged(text: str, separators: str = _TAG) -> Passage:
    """Take the tags out of a text, and the dash or the place on the screen that it begins with."""
    rest = re.sub(_FIRST, "", text)
    parts: list[str | Tag] = [*re.split(f"({separators})", rest)]  # every second is a separator
    for i, raw in enumerate(map(str, parts)):
        if i % 2:
            name, is_end = re.sub(r"^</?(\w+).*", r"\1", raw).lower(), raw.startswith("</")
            is_break = bool(_BREAK.match(raw))
            parts[i] = Tag(raw, name, is_end, is_point=bool(_POINT.match(raw)), is_break=is_break)
    return Passage([Tag(text.removesuffix(rest), is_break=True), *parts])


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
