"""Tags around parts of a text: taken out of it, and put back around what those parts have become in its translation.

As in Bergamot Translator (https://github.com/browsermt/bergamot-translator, html.cpp), the links between the words of
both texts say where. There, an element whose words part becomes several; here it stays one, so that a link stays one
link: it is put around the stretch of words of which most are linked to its own.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from html.parser import HTMLParser
from itertools import groupby
from typing import NamedTuple

from utils.search.inspection import Span, SpanLinks
from utils.text.language import HAN, KANA

INLINE = "abbr|a|bdi|bdo|b|cite|del|em|font|ins|img|i|kbd|label|mark|q|small|span|strong|sub|sup|s|time|u|var|wbr"
POINTS = ("img", "wbr")  # which hold no text; a <br> ends a sentence, as other tags do
_DEEPEST = 64  # elements in one another: each takes as long as the text, and a request could have thousands
_RAW = ("iframe", "noembed", "noframes", "script", "style", "xmp")  # whose text is written as it is
_VERBATIM = ("code", "pre", "textarea", *_RAW)
_EMPTY = (*POINTS, "area", "base", "br", "col", "embed", "hr", "input", "link", "meta", "source", "track")
_CLOSING = ",.;:!?)]、。，．：；！？」』）"  # no tag begins before one
# no tag parts a word; of scripts without spaces, a word is what a token has of it
_WORD = re.compile(rf"[\u30a1-\u30fa\u30fc]+|[^\W_{KANA}{HAN}]+(?:['’.,-][^\W_{KANA}{HAN}]+)*|\S")


class Tag(NamedTuple):
    """A tag that may stand inside a sentence."""

    raw: str
    name: str
    is_end: bool = False
    is_point: bool = False  # it needs no end
    is_kept: bool = False  # what is inside it stays as it is


@dataclass
class _Element:
    name: str
    begin: int  # in the text
    opening: str = ""
    closing: str = ""
    end: int = 0
    inside: list["_Element"] = field(default_factory=list)
    first: int = 0  # place of what follows its tag, if that is to stay as it is
    kept: Sequence[str | Tag] = ()  # what stays in it so, in place of what it has become


class TaggedText:
    """What stands between two breaks: `text` is to be translated, `head`, tags and spaces around all of it are kept.

    After `filled`, `lost` has the names of tags inside it for which there is no place: their other half is missing, or
    no word of the translation is linked to what they were around.
    """

    def __init__(self, parts: Sequence[str | Tag], head: str = "") -> None:
        places = [i for i, part in enumerate(parts) if isinstance(part, str) and part.strip()] or [len(parts)]
        begin, end = places[0], places[-1] + 1
        self._inside, text, self.lost = _elements(parts[begin:end])
        if self.lost:  # some of the tags around the text may belong to those inside it
            begin, end = 0, len(parts)
            self._inside, text, self.lost = _elements(parts)
        self.text, self.has_tags = " ".join(text.split()), bool(self._inside)  # to put back, which needs links
        self._before = head + _raw(parts[:begin]) + text[: len(text) - len(text.lstrip())]
        self._behind = text[len(text.rstrip()) :] + _raw(parts[end:])

    def filled(self, translation: str, links: SpanLinks, quoted: Callable[[str], str] = str) -> str:
        """Return the translation with its tags; `quoted` writes what is no tag as the markup does."""
        words = [word.span() for word in _WORD.finditer(translation)]
        number = {i: word for word, span in enumerate(words) for i in range(*span)}  # of the word at each character
        sources: list[set[Span]] = [set() for _ in words]
        for source, target in links:
            for word in {number[i] for i in range(*target) if i in number}:
                sources[word].add(source)
        before, behind = ([list[str]() for _ in words] for _ in range(2))  # tags at each word
        kept = dict[int, str]()  # what stands in place of words, at the first of them
        todo = [(self._inside, 0, len(words))]
        while todo:  # elements, outer ones first, and the words that they can be put around
            inside, first, last = todo.pop()
            ranges = _ranges(inside, sources, first, last)
            spans = sorted((span, word) for word in range(first, last) for span in sources[word])
            for i, element in enumerate(inside):
                begin, end = ranges.get(i, (first, first))
                while end - begin > 1 and translation[words[begin][0]] in _CLOSING:
                    begin += 1
                if element.kept and begin < end:
                    kept[begin] = _raw(element.kept, quoted)
                    (start, _), (_, stop) = words[begin], words[end - 1]
                    words[begin:end] = [(start, stop), *[(stop, stop)] * (end - begin - 1)]
                else:
                    todo.append((element.inside, begin, end))
                place = bisect_right(spans, element.begin, key=lambda linked: linked[0][1])
                if begin < end:
                    before[begin].append(element.opening)
                    behind[end - 1].insert(0, element.closing)
                elif element.begin < element.end or not spans:
                    self.lost.add(element.name)
                elif place < len(spans):  # around nothing: it stays before the same word
                    before[spans[place][1]].append(element.opening + element.closing)
                else:
                    behind[spans[-1][1]].insert(0, element.opening + element.closing)
        marked, at = [self._before], 0
        for i, (begin, end) in enumerate(words):
            written = kept.get(i) or quoted(translation[begin:end])
            marked += [translation[at:begin], *before[i], written, *behind[i]]
            at = end
        return "".join([*marked, translation[at:], self._behind])


def _elements(parts: Sequence[str | Tag]) -> tuple[list[_Element], str, set[str]]:
    """Return the elements, each with those inside it, the text, and the names of tags that lack their other half."""
    text, at, is_apart, opened, lost = "", 0, False, [root := _Element("", 0)], set[str]()
    for i, part in enumerate([*parts, Tag("", "", is_end=True)]):
        if isinstance(part, str):
            text += part
            is_apart = is_apart or part[:1].isspace()
            if words := part.split():  # `at`: where its spaces are single ones
                at += (is_apart and at > 0) + len(" ".join(words))
                is_apart = part[-1].isspace()
        elif part.is_point:
            opened[-1].inside.append(_Element(part.name, at, part.raw, end=at))
        elif not part.is_end and len(opened) <= _DEEPEST:
            opened.append(_Element(part.name, at, part.raw, first=i + 1 if part.is_kept else 0))
        elif not part.is_end or part.name not in {element.name for element in opened}:
            lost.add(part.name)
        else:
            while (element := opened.pop()).name != part.name:
                lost.add(element.name)
                opened[-1].inside += element.inside
            element.closing, element.end = part.raw, at
            element.kept = parts[element.first : i] if element.first else ()
            if opened:
                opened[-1].inside.append(element)
    return root.inside, text, lost


def _ranges(inside: Sequence[_Element], sources: Sequence[set[Span]], first: int, last: int) -> dict[int, Span]:
    """Return which of the words from `first` to `last` each element is put around; one without linked words has none.

    They are the stretch that has the most words linked to it, less those linked elsewhere, and none of its neighbours'.
    """
    owner = {at: i for i, element in enumerate(inside) for at in range(element.begin, element.end)}
    linked, n_elsewhere = [], 0  # word, the element it is linked to, words so far that are linked to none
    for word in range(first, last):
        if owners := Counter(owner[at] for span in sources[word] for at in range(*span) if at in owner):
            linked.append((word, owners.most_common(1)[0][0], n_elsewhere))
        n_elsewhere += bool(sources[word]) and not owners
    best, ranges = Counter[int](), dict[int, Span]()
    for i, together in groupby(linked, key=lambda word_and_owner: word_and_owner[1]):
        begin = score = passed = 0  # the largest sum of a stretch (Kadane)
        for word, _, elsewhere in together:
            score -= elsewhere - passed
            begin, score, passed = (begin if score > 0 else word), max(score, 0) + 1, elsewhere
            if score > best[i]:
                best[i], ranges[i] = score, (begin, word + 1)
    return ranges


def _raw(parts: Sequence[str | Tag], quoted: Callable[[str], str] = str) -> str:
    return "".join(quoted(part) if isinstance(part, str) else part.raw for part in parts)


def _is_kept(tag: str, attrs: Sequence[tuple[str, str | None]]) -> bool:
    of = {name: (value or "").lower() for name, value in attrs}
    is_marked = of.get("translate") == "no" or "notranslate" in of.get("class", "").split()
    return tag in _VERBATIM or (is_marked and tag not in _EMPTY)


class Markup(HTMLParser):
    """An HTML text, taken apart: `texts` are to be translated, `lost` are the names of tags that were not kept."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lost: set[str] = set()
        self._parts: list[str | TaggedText] = []  # markup as it was, and texts
        self._run: list[str | Tag] = []  # text and inline tags since the last other tag
        self._is_text = False  # whether it has any text that is to be translated
        self._kept, self._verbatim = "", 0  # name of the element that is not translated, and depth inside such
        try:
            self.feed(html)
            self.close()
        except AssertionError as error:  # of Python's parser
            raise ValueError(f"the HTML cannot be read ({error}): check what begins with <!") from error
        self._end_run()
        self.texts = [part for part in self._parts if isinstance(part, TaggedText)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag, or note it inside the text."""
        if not self._verbatim:
            self._kept = tag if _is_kept(tag, attrs) else ""
        self._verbatim += tag == self._kept
        self._take(Tag(self.get_starttag_text() or "", tag, is_point=tag in POINTS, is_kept=self._verbatim > 0))

    def handle_startendtag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 (the signature is Python's)
        """Keep `<br/>` and the like, or note it inside the text."""
        self._take(Tag(self.get_starttag_text() or "", tag, is_point=True))

    def handle_endtag(self, tag: str) -> None:
        """Keep a tag, or note it inside the text."""
        self._take(Tag(f"</{tag}>", tag, is_end=True))
        self._verbatim -= tag == self._kept and self._verbatim > 0

    def handle_data(self, data: str) -> None:
        """Collect text."""
        if self.cdata_elem in _RAW or self._is_apart():
            self._keep(data if self.cdata_elem in _RAW else escape(data, quote=False))
        else:
            self._run.append(data)
            self._is_text |= not self._verbatim and bool(data.strip())

    def handle_comment(self, data: str) -> None:
        """Keep a comment, or note it inside the text."""
        self._take(Tag(f"<!--{data}-->", "!--", is_point=True))

    def handle_decl(self, decl: str) -> None:
        """Keep the document's type."""
        self._keep(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        """Keep a processing instruction, such as `<?php ... ?>`."""
        self._keep(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        """Keep a CDATA section, or a condition of old browsers."""
        self._keep(f"<![{data}]]>" if data.startswith("CDATA[") else f"<![{data}]>")

    def _is_apart(self) -> bool:
        """Return whether this is in an element that ends a sentence and is not translated."""
        return self._verbatim > 0 and not re.fullmatch(INLINE, self._kept)

    def _take(self, tag: Tag) -> None:
        if re.fullmatch(f"{INLINE}|!--", tag.name) and not self._is_apart():
            self._run.append(tag)
        else:
            self._keep(tag.raw)

    def _keep(self, raw: str) -> None:
        self._end_run()
        self._parts.append(raw)

    def _end_run(self) -> None:
        """Make one text of what was collected."""
        self._parts.append(TaggedText(self._run) if self._is_text else _raw(self._run, partial(escape, quote=False)))
        self._run, self._is_text = [], False

    def filled(self, translations: Sequence[tuple[str, SpanLinks]]) -> str:
        """Return the HTML with these translations, and their links, in the place of its texts."""
        quoted, rest = partial(escape, quote=False), iter(translations)
        parts = [part if isinstance(part, str) else part.filled(*next(rest), quoted) for part in self._parts]
        self.lost = {name for text in self.texts for name in text.lost}
        return "".join(parts)
