r"""Spans that a translation must keep: numbers, addresses, placeholders, emoji. A model copies a stand-in for each.

A number is written as the target language writes it (350万 is 3.5 million), anything else as it stands. A network that
has learned from text with `STAND_INS` copies and places these; any other is given words that networks copy well: three
digits for a number, a capital letter for anything else.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from utils.text.language import HAN, KANA, MAIL_ADDRESS, WEB_ADDRESS
from utils.text.number import HOUR_EN, HOUR_JA, hour_in, is_in_digits, number_in, numbers, value_of

_OF_EACH = 8  # spans of a sentence that have a stand-in of each sort; further ones are left to the model
# of the private use area, which no text has: tokens of their own in a vocabulary that is learned with them
NUMBERS = [chr(0xE000 + i) for i in range(_OF_EACH)]
NAMES = [chr(0xE100 + i) for i in range(_OF_EACH)]
STAND_INS = [*NUMBERS, *NAMES]
# what takes the place of placeholders in a file whose format says what those are, before its texts are translated
NUMBER_MARKS, NAME_MARKS = ("".join(map(chr, range(begin, begin + 64))) for begin in (0xE200, 0xE240))

# What stays as it is, but for times: a line for each sort, the first that fits is taken.
_VERBATIM = {
    "mark of a placeholder": f"[{NUMBER_MARKS}{NAME_MARKS}]",
    "address on the web": WEB_ADDRESS,
    "address of mail": MAIL_ADDRESS,
    "code": r"`[^`\n]+`",
    "placeholder": r"\$?\{\{[^{}\n]*\}\}|[$%#]?\{\w[^{}\s]*\}"
    r"|%(?:\d+\$|\(\w+\))?[-+0#]*\d*(?:\.\d+)?l{0,2}[sdfuxi@](?![A-Za-z])|(?<![\w%])%L?\d{1,2}(?![\w%])|\$[A-Za-z_]\w*",
    "tag": r"</?[A-Za-z][^<>\n]*>",
    "mention": rf"(?<![\w.])(?:@[A-Za-z_]\w*|#[A-Za-z_{KANA}{HAN}][\w{KANA}{HAN}]*)",
    "shortcode": r"(?<!\w):[a-z][a-z0-9_+-]*:(?!\w)",
    "file": r"(?<![\w./~])(?:(?:~|\.{1,2}|[A-Z]:)(?:[/\\][\w.-]*\w)+|(?:/[\w.-]*\w){2,}/?|"
    r"(?:[\w-]+/)*[\w-]+(?:\.[\w-]+)*\.(?:py|js|ts|c|h|cpp|java|rs|go|rb|sh|txt|md|pdf|docx?|xlsx?|pptx?|csv|tsv|json"
    r"|ya?ml|toml|xml|html?|css|zip|gz|tar|png|jpe?g|gif|svg|mp[34]|wav|exe|srt|po)(?!\w))",
    "emoji": r"(?:[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\ufe0e\ufe0f\u200d\u20e3]*)+",
    "amount": r"[$£€¥￥]\s?\d+(?:,\d{3})*(?:\.\d+)?",
    "degrees": r"(?<![\d.])[-−]?\d+(?:\.\d+)?\s?°[CF]?",
    "power": r"\d+[⁰¹²³⁴-⁹⁻]+|\d*[¼½¾⅓⅔]|\d*[①-⑳]",
    "negative number": rf"(?<![\w)\]）.,])(?:−|(?<![ァ-ヺー{HAN}])-)\d+(?:\.\d+)?(?![\w-])",
    "time": rf"{HOUR_EN.pattern}|{HOUR_JA.pattern}|(?<![\d:])\d{{1,2}}[:：]\d{{2}}(?![\d:])",
    "date, version or telephone": r"(?<![\d.,])(?:\bv)?\d+(?:[-/.:]\d+){2,}(?![\d-])|(?<!\d)\d{3}-\d{4}(?!\d)",
    "number of a book and the like": r"(?<![\w.,])\d{5,}[A-Z]?(?![\w,.]*\d|[万億千百]| ?(?:thousand|[mb]illion))",
}  # fmt: skip
_ANY_VERBATIM = re.compile("|".join(f"(?:{pattern})" for pattern in _VERBATIM.values()), re.A)

_YEAR = 9999  # numbers up to here are copied well, or are words, and tell the grammar: one, 3月


class Span(NamedTuple):
    """A part of a text that its translation must keep."""

    begin: int
    end: int
    text: str
    value: Decimal | None = None  # of a number
    is_hard: bool = True  # for a model: what it copies well by itself is masked only where it has failed to


def spans(text: str, language: str, lenient: bool = False) -> list[Span]:
    """Return what a translation must keep of a text, in order of appearance, and apart from each other.

    Numbers are read in Japanese and English; in a translation they may be written otherwise, too (`lenient`): 二十.
    """
    found = [Span(*match.span(), match[0]) for match in _ANY_VERBATIM.finditer(text)]
    taken = {at for span in found for at in range(span.begin, span.end)}
    for match in numbers(text, language, lenient):
        if taken.isdisjoint(range(*match.span())):
            value, is_word = value_of(match[0]), re.match("[A-Za-z]", match[0])
            is_hard = value > _YEAR or not (is_word or is_in_digits(match[0]))
            found.append(Span(*match.span(), match[0], value, is_hard))
    return sorted(found)


def written(span: Span, language: str) -> str:
    """Write a span in a language: numbers and times with its units, anything else as it stands."""
    return hour_in(language, span.text) if span.value is None else number_in(language, span.text, span.value)


# A text for a model, and its translation for people.

_SHOWN = re.compile(rf"[\w{NUMBER_MARKS}{NAME_MARKS}]")  # what is more than a sign
_SURE = 13  # from here on a number is written in digits, and a translation without it has lost it
_ERA = re.compile(rf"[{HAN}）)]\d{{1,2}}(?=年)|\d{{1,2}}(?=月\d+日[(（]旧暦|日[(（]旧暦)")  # 明治43年 may be 1910
# Emphasis of Markdown, but not in code: models know no such signs, and those that they are given ruin the sentence.
_BOLD = re.compile(r"`[^`\n]+`|(?<![A-Za-z\d*_~])(\*{1,3}|_{1,2}|~~)(?=\S)([^*_~\n]+)(?<=\S)\1(?![A-Za-z\d*_~])")


class StandIns(NamedTuple):
    """What stands for spans, as many as a text can have of each sort."""

    numbers: Sequence[str]
    names: Sequence[str]


LEARNED = StandIns(NUMBERS, NAMES)
WORDS = StandIns(["572", "683", "846", "437", "358", "926", "583", "269"], [*"XYZWVUQK"])


class Masked(NamedTuple):
    """A text with stand-ins; signs such as emoji at its ends are outside, and stay there."""

    text: str
    spans: Mapping[str, Span] = {}  # by their stand-ins
    head: str = ""
    tail: str = ""
    in_capitals: bool = False  # it was, and is now in its usual case

    def unmasked(self, translation: str, language: str) -> str:
        """Return the translation with the spans as its language writes them."""
        if self.spans:
            stand_in = re.compile("|".join(rf"(?<!{_like(word)}){word}(?!{_like(word)})" for word in self.spans))
            translation = stand_in.sub(lambda word: written(self.spans[word[0]], language), translation)
            translation = re.sub(r"(?<=[ap]\.m\.)\.", "", translation)
        return f"{self.head}{translation}{self.tail}"


def _like(word: str) -> str:
    """Return what makes a stand-in another word if it stands beside it: digits for digits, letters for letters."""
    return "[0-9]" if word.isdigit() else "[A-Za-z]"


def shown(tokens: Sequence[str], words: Mapping[str, str]) -> list[str]:
    """Return tokens with what each of these words stands for, at the first of the tokens that it is made of."""
    of = [*tokens]
    for begin in range(len(of) if words else 0):
        for end in range(begin + 1, min(begin + 4, len(of)) + 1):
            if text := words.get("".join(tokens[begin:end]).lstrip("▁")):
                of[begin:end] = [text, *[""] * (end - begin - 1)]
    return of


def masked(text: str, language: str, stand_ins: StandIns, everything: bool = False) -> Masked:
    """Put stand-ins in place of what a model does not copy well, or of all that it might lose; bold words are plain."""
    text = _BOLD.sub(lambda bold: bold[2] or bold[0], text)
    found = [span for span in spans(text, language) if span.is_hard or (everything and _is_sure(span, text))]
    if not found:
        return Masked(text)
    begin, end = 0, len(text)
    while found and _is_sign(found[0]) and not text[begin : found[0].begin].strip():
        begin = found.pop(0).end
    while found and _is_sign(found[-1]) and not text[found[-1].end : end].strip():
        end = found.pop().begin
    inner = text[begin:end].strip()
    begin = text.index(inner, begin)
    end = begin + len(inner)
    names, numbers = (iter([word for word in words if word not in text]) for words in reversed(stand_ins))
    placed, parts, at = dict[str, Span](), list[str](), begin
    for span in found:
        is_name = span.value is None and span.text not in NUMBER_MARKS
        if word := next(names if is_name else numbers, ""):
            placed[word] = span
            parts += [text[at : span.begin], word]
            at = span.end
    inner = "".join([*parts, text[at:end]])
    if letters := "".join(filter(str.isalpha, placed)):  # beside another one would be another word
        inner = re.sub(f"(?<=[A-Za-z])(?=[{letters}])|(?<=[{letters}])(?=[A-Za-z])", " ", inner)
    return Masked(inner, placed, text[:begin], text[end:])


def _is_sign(span: Span) -> bool:
    return not _SHOWN.search(span.text)


def _is_sure(span: Span, text: str) -> bool:
    is_era = any(era.end() == span.end for era in _ERA.finditer(text))
    is_share = text[span.end : span.end + 1] in ("%", "％")
    return span.value is not None and (span.value >= _SURE or is_share) and not is_era


def lost(text: str, translation: str, languages: tuple[str, str]) -> list[Span]:
    """Return the spans of a text that its translation has not, numbers in no writing; and words that were bold.

    What a text has twice may be in its translation once, as it may be "that year" there.
    """
    kept = [span for span in spans(text, languages[0]) if span.is_hard or _is_sure(span, text)]
    found = spans(translation, languages[1], lenient=True) if kept else []
    has = {span.value for span in found if span.value is not None}
    bold = [Span(*match.span(), match[0], is_hard=False) for match in _BOLD.finditer(text) if match[1]]
    return bold + [
        span for span in kept if span.value not in has and written(span, languages[1]).rstrip(".") not in translation
    ]
