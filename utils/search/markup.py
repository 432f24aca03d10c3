"""Tags around parts of a text: taken out of it, and put back around what those parts have become in its translation.

As in Bergamot Translator (https://github.com/browsermt/bergamot-translator, html.cpp), the links between the words of
both texts say where. There, an element whose words part becomes several; here it stays one, so that a link stays one
link: it is put around the stretch of words of which most are linked to its own.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape, unescape
from html.parser import HTMLParser
from itertools import groupby
from typing import NamedTuple

from utils.search.inspection import Span, SpanLinks
from utils.text.language import HAN, KANA

# What may stand inside a sentence: https://html.spec.whatwg.org/#phrasing-content with custom elements (which have a
# hyphen), and what older pages have; not a line break, nor what has texts of its own, such as <button> and <svg>
_PHRASING = re.compile(
    "!--|abbr|acronym|a|bdi|bdo|big|b|cite|code|data|del|dfn|em|font|img|ins|i|kbd|label|mark|math|nobr|output|picture|"
    r"q|rb|rp|rtc|rt|ruby|samp|small|source|span|strike|strong|sub|sup|s|time|tt|u|var|wbr|[a-z][^-]*-.*"
)
_READINGS = ("rp", "rt", "rtc")  # of characters in <ruby>: a translation has none
_RUBY = (*_READINGS, "rb", "ruby")
# https://html.spec.whatwg.org/#the-translate-attribute, https://www.w3.org/TR/wai-aria/#aria-label
_ATTRIBUTES = ("alt", "aria-label", "label", "placeholder", "title")  # with texts of their own
_ATTRIBUTE = re.compile(r"""(?<=[\s/"'])([^\s/>"'=]+)(\s*=\s*)("[^"]*"|'[^']*'|[^\s>]+)""")
POINTS = ("img", "wbr")  # which hold no text
_DEEPEST = 64  # elements in one another: each takes as long as the text, and a request could have thousands
_RAW = ("iframe", "noembed", "noframes", "script", "style", "xmp")  # whose text is written as it is
_VERBATIM = ("code", "math", "pre", "textarea", *_RAW)
_EMPTY = (*POINTS, "area", "base", "br", "col", "embed", "hr", "input", "link", "meta", "source", "track")
_CLOSING = ",.;:!?)]、。，．：；！？」』）"  # no tag begins before one
# no tag parts a word; of scripts without spaces, a word is what a token has of it
_WORD = re.compile(rf"[\u30a1-\u30fa\u30fc]+|[^\W_{KANA}{HAN}]+(?:['’.,-][^\W_{KANA}{HAN}]+)*|\S")


class Tag(NamedTuple):
    """A tag, or what else is not to be translated."""

    raw: str
    name: str = ""
    is_end: bool = False
    is_point: bool = False  # it needs no end
    is_kept: bool = False  # what is inside it stays as it is
    is_break: bool = False  # it stands between sentences


class Verbatim(str):
    """Text inside a kept tag: part of the sentence around it, but nothing to translate by itself."""


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

    def raw(self, quoted: Callable[[str], str]) -> str:
        """Return its tags, and what is kept in it."""
        inside = _raw(self.kept, quoted) or "".join(element.raw(quoted) for element in self.inside)
        return self.opening + inside + self.closing


class TaggedText:
    """What stands between two breaks: `text` is to be translated, tags and spaces around all of it are kept.

    After `filled`, `lost` has the names of tags inside it for which there is no place: their other half is missing, or
    no word of the translation is linked to what they were around.
    """

    def __init__(self, parts: Sequence[str | Tag]) -> None:
        places = [i for i, part in enumerate(parts) if isinstance(part, str) and part.strip()] or [len(parts)]
        begin, end = places[0], places[-1] + 1
        self._inside, text, self.lost = _elements(parts[begin:end])
        if self.lost:  # some of the tags around the text may belong to those inside it
            begin, end = 0, len(parts)
            self._inside, text, self.lost = _elements(parts)
        self.text, self.has_tags = " ".join(text.split()), bool(self._inside)  # to put back, which needs links
        self._before = _raw(parts[:begin]) + text[: len(text) - len(text.lstrip())]
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
                if spans and (element.begin == element.end or (element.kept and i not in ranges)):
                    if element.begin < element.end:  # what is kept is not lost, but perhaps stands elsewhere
                        self.lost.add(element.name)
                    # it stays before the same word
                    place = bisect_right(spans, element.begin, key=lambda linked: linked[0][1])
                    if place < len(spans):
                        before[spans[place][1]].append(element.raw(quoted))
                    else:
                        behind[spans[-1][1]].insert(0, element.raw(quoted))
                    continue
                begin, end = ranges.get(i, (first, first))
                while end - begin > 1 and translation[words[begin][0]] in _CLOSING:
                    begin += 1
                if element.kept and begin < end:
                    kept[begin] = _raw(element.kept, quoted)
                    (start, _), (_, stop) = words[begin], words[end - 1]
                    words[begin:end] = [(start, stop), *[(stop, stop)] * (end - begin - 1)]
                else:
                    todo.append((element.inside, begin, end))
                if begin < end:
                    before[begin].append(element.opening)
                    behind[end - 1].insert(0, element.closing)
                else:
                    self.lost.add(element.name)
        marked, at = [self._before], 0
        for i, (begin, end) in enumerate(words):
            written = kept.get(i) or quoted(translation[begin:end])
            marked += [translation[at:begin], *before[i], written, *behind[i]]
            at = end
        return "".join([*marked, translation[at:], self._behind])


class Passage:
    """Texts and tags, parted at those between sentences: `texts` are to be translated, all else stays as it is.

    Where there is no letter and no digit is no text.
    """

    def __init__(self, parts: Sequence[str | Tag], quoted: Callable[[str], str] = str) -> None:
        self._quoted, self._parts = quoted, list[str | TaggedText]()
        for _, run in groupby(parts, lambda part: isinstance(part, Tag) and part.is_break):
            between = [*run]
            is_text = any(type(part) is str and re.search(r"[^\W_]", part) for part in between)
            self._parts.append(TaggedText(between) if is_text else _raw(between, quoted))
        self.texts = [part for part in self._parts if isinstance(part, TaggedText)]

    @property
    def lost(self) -> set[str]:
        """The names of tags for which there was no place."""
        return {name for text in self.texts for name in text.lost}

    def filled(self, translations: Iterator[tuple[str, SpanLinks]]) -> str:
        """Return all of it with the next translations, and their links, in the place of its texts."""
        return "".join(
            part if isinstance(part, str) else part.filled(*next(translations), self._quoted) for part in self._parts
        )


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
    return tag in _VERBATIM or (tag not in _EMPTY and _is_marked(attrs))


def _is_marked(attrs: Sequence[tuple[str, str | None]]) -> bool:
    of = {name: (value or "").lower() for name, value in attrs}
    return of.get("translate") == "no" or "notranslate" in of.get("class", "").split()


class Markup(HTMLParser):
    """An HTML text, taken apart: `texts` are to be translated, `lost` are the names of tags that were not kept."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self._parts: list[str | Tag] = []
        self._values: list[TaggedText] = []  # of attributes; a tag has the number of each between two NULs
        self._kept, self._verbatim = "", 0  # name of the element that is not translated, and depth inside such
        self._is_reading = False
        try:
            self.feed(html.replace("\0", ""))
            if self.rawdata.startswith("<"):  # what has no end stays; to close, older Pythons look for it at each "<"
                self._keep(self.rawdata)
                self.rawdata = ""
            self.close()
        except AssertionError as error:  # of Python's parser
            raise ValueError(f"the HTML cannot be read ({error}): check what begins with <!") from error
        self._passage = Passage(self._parts, partial(escape, quote=False))
        self.texts = [*self._values, *self._passage.texts]

    @property
    def lost(self) -> set[str]:
        """The names of tags for which there was no place."""
        return self._passage.lost

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag, or note it inside the text."""
        raw = self._opening(attrs)
        if not self._verbatim:
            self._kept = tag if _is_kept(tag, attrs) else ""
        self._verbatim += tag == self._kept
        self._take(Tag(raw, tag, is_point=tag in _EMPTY, is_kept=self._verbatim > 0))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep `<br/>` and the like, or note it inside the text."""
        self._take(Tag(self._opening(attrs), tag, is_point=True))

    def handle_endtag(self, tag: str) -> None:
        """Keep a tag, or note it inside the text."""
        self._take(Tag(f"</{tag}>", tag, is_end=True))
        self._verbatim -= tag == self._kept and self._verbatim > 0

    def handle_data(self, data: str) -> None:
        """Collect text."""
        if self.cdata_elem in _RAW or self._is_apart():
            self._keep(data if self.cdata_elem in _RAW else escape(data, quote=False))
        elif not self._is_reading:
            self._parts.append(Verbatim(data) if self._verbatim else data)
        elif self._verbatim:
            self._parts.append(Tag(escape(data, quote=False), is_point=True))

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

    def _opening(self, attrs: Sequence[tuple[str, str | None]]) -> str:
        """Return the tag that begins here; in place of attributes that are to be translated, their numbers."""
        raw = self.get_starttag_text() or ""
        if self._verbatim or _is_marked(attrs) or not {name for name, _ in attrs}.intersection(_ATTRIBUTES):
            return raw

        def numbered(attribute: re.Match[str]) -> str:
            name, sign, value = attribute.groups()
            text = Passage([unescape(value[1:-1] if value[0] in "\"'" else value)])
            if name.lower() not in _ATTRIBUTES or not text.texts:
                return attribute[0]
            self._values += text.texts
            return f'{name}{sign}"\0{len(self._values) - 1}\0"'

        return _ATTRIBUTE.sub(numbered, raw)

    def _is_apart(self) -> bool:
        """Return whether this is in an element that ends a sentence and is not translated."""
        return self._verbatim > 0 and not _PHRASING.fullmatch(self._kept)

    def _take(self, tag: Tag) -> None:
        is_formula = self._verbatim > 0 and self._kept == "math"
        is_inside = is_formula or (_PHRASING.fullmatch(tag.name) and not self._is_apart())
        if tag.name in _RUBY or not is_inside:
            self._is_reading = tag.name in _READINGS and not tag.is_end
        if not is_inside:
            self._keep(tag.raw)
        elif self._verbatim or not (self._is_reading or tag.name in _RUBY):
            self._parts.append(tag)

    def _keep(self, raw: str) -> None:
        self._parts.append(Tag(raw, is_break=True))

    def filled(self, translations: Sequence[tuple[str, SpanLinks]]) -> str:
        """Return the HTML with these translations, and their links, in the place of its texts."""
        rest = iter(translations)
        values = [value.filled(*next(rest), escape) for value in self._values]
        return re.sub(r"\0(\d+)\0", lambda number: values[int(number[1])], self._passage.filled(rest))
