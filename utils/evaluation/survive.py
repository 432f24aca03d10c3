"""What must survive a translation: sentences drawn from the templates of survive.yaml, each with an exact check.

Numbers are compared by value. They are read here in a way of its own, not as a translator reads them: a mistake of one
would be hidden by the same mistake of the other.
"""

import random
import re
from calendar import month_name
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unicodedata import normalize

import yaml

from utils.command import aligned

TEMPLATES = Path(__file__).with_suffix(".yaml")
N_WRONG = 3  # examples of each topic
_SLOT, _CONTRAST = re.compile("<([^<>/]*)>"), re.compile("<([^<>/]*)/([^<>]*)>")
_WIDE = str.maketrans("0123456789", "０１２３４５６７８９")

T = TypeVar("T")


class Sentence(NamedTuple):
    """A sentence with something that its translation must have, too."""

    topic: str
    kind: str  # of the topic: how it is written
    language: str  # ja or en
    text: str
    twin: str  # the sentence without a negation, or in its usual case; where it needs no twin, itself
    kept: tuple[str, ...]  # names and addresses in it, as the other language has them


class Checked(NamedTuple):
    """A sentence, translated: whether what must survive has survived."""

    sentence: Sentence
    translation: str
    of_twin: str  # the translation of its twin
    is_right: bool


def draw(language: str, n: int) -> list[Sentence]:
    """Draw n different sentences in ja or en, each time the same: one of each kind, then another of each, and so on."""
    grammar = yaml.safe_load(TEMPLATES.read_text(encoding="utf-8"))
    kinds = [(topic, *kind) for topic, of_topic in grammar[language].items() for kind in of_topic.items()]
    rng, drawn = random.Random(0), dict[str, Sentence]()
    for topic, kind, templates in cycle(kinds):
        if len(drawn) == n:
            break
        kept = list[str]()
        text = _filled(_pick(rng, templates), rng, grammar["slots"], language == "ja", kept)
        text, twin = (_CONTRAST.sub(side, text) for side in (r"\1", r"\2"))
        if topic == "capitals":
            text = text.upper()
        if "’" in kind:
            text = text.replace("'", "’")
        drawn.setdefault(text, Sentence(topic, kind, language, text, twin, tuple(kept)))
    return [*drawn.values()]


def _pick(rng: random.Random, choices: Sequence[T]) -> T:
    return choices[int(rng.random() * len(choices))]  # random() is all that Python promises never to change


def _filled(text: str, rng: random.Random, slots: Mapping[str, Any], is_ja: bool, kept: list[str]) -> str:
    """Fill the slots of a text; what stands in those with a name is added to `kept`, as the other language has it."""

    def fill(slot: re.Match[str]) -> str:
        if words := slots.get(slot[1]):
            if isinstance(words, dict):
                ja, en = _pick(rng, [*words.items()])
            else:
                ja = en = _filled(_pick(rng, words), rng, slots, is_ja, [])
            kept.append(en if is_ja else ja)
            return ja if is_ja else en
        low, is_range, high = slot[1].partition("..")
        if not is_range:
            return _pick(rng, slot[1].split("|"))
        first, last = (int(bound.replace(",", "")) for bound in (low, high))
        number = format(_pick(rng, range(first, last + 1)), "," if "," in low else "d")
        return number if low.isascii() else number.translate(_WIDE)

    while _SLOT.search(text):  # one may be in another
        text = _SLOT.sub(fill, text)
    return text


def check(sentences: Sequence[Sentence], translations: Mapping[str, str]) -> list[Checked]:
    """Check the translations of the texts of sentences and of their twins; and all of them once more, for loops."""
    again = [sentence._replace(topic="no loop", kind="in any of these") for sentence in sentences]
    checked = []
    for sentence in [*sentences, *again]:
        ours, of_twin = translations[sentence.text], translations[sentence.twin]
        checked.append(Checked(sentence, ours, of_twin, _is_right(sentence, ours, of_twin)))
    return checked


def _is_right(sentence: Sentence, translation: str, of_twin: str) -> bool:
    language = "en" if sentence.language == "ja" else "ja"
    match sentence.topic:
        case "numbers":
            return keeps_numbers(numbers(sentence.text, sentence.language), numbers(translation, language))
        case "negation":
            denies = _DENIES[language].search
            return bool(denies(translation)) and not denies(of_twin)
        case "capitals":
            return translation == of_twin
        case "questions":
            return bool(_ASKS[language].search(translation))
        case "names":  # which KFTT writes in capitals: Taro YAMADA
            return all(name.lower() in translation.lower() for name in sentence.kept)
        case "no loop":
            return not LOOP.search(translation)
    return all(address in translation for address in sentence.kept)


_DENIES = {
    "ja": re.compile(r"ない|なかっ|なく|なけれ|ません|(?<!必)(?<!\bま)ず(?=[、。に]|$)|ぬ|ざる|[不未無禁]"),
    "en": re.compile(r"n['’]t\b|\b(not?|cannot|never|none|neither|nobody|nothing|without|unable|fail(s|ed)?)\b", re.I),
}
_ASKS = {"ja": re.compile(r"(か。?|[？?])$"), "en": re.compile(r"\?$")}
LOOP = re.compile(r"(\D{4,}?)\1\1|(\D{1,3}?)\2{4}")  # three times in a row; five times, of one to three characters


# Numbers, in words and in digits.


Numbers = dict[str, bool]  # value, such as 3500000, 1.5, 12% or 15:30 -> whether it is written with digits


def keeps_numbers(source: Numbers, translation: Numbers) -> bool:
    """Return whether a translation has all numbers and no others, but for words up to ten: one of, 一般, 三条."""
    words = {value for value, has_digits in translation.items() if not has_digits} & {*map(str, range(11))}
    return source.keys() <= translation.keys() <= source.keys() | words


_KANJI = str.maketrans("〇零一二三四五六七八九", "00123456789")
_SIZES = {"兆": 10**12, "億": 10**8, "万": 10**4, "千": 1000, "百": 100, "十": 10}
_ERAS = {"明治": 1867, "大正": 1911, "昭和": 1925, "平成": 1988, "令和": 2018}  # the year before each
_JA_DIGIT = "〇零一二三四五六七八九十百千万億兆"
_JA_NUMBER = re.compile(rf"((?:\d+\.)?[\d{_JA_DIGIT}]+) ?(%|パーセント)?")
_JA_TIME = re.compile(rf"(午前|午後)?([\d{_JA_DIGIT}]+)(?:時(?!間)|:)(?:([\d{_JA_DIGIT}]+)分?|(半))?")
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
)
_IRREGULAR = "first second third fifth eighth ninth twelfth"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = (
    {word + end: Decimal(n) for n, word in enumerate(f"{_ONES} eighteen nineteen".split()) for end in ("", "th")}
    | {form: Decimal(10 * n) for n, word in enumerate(_TENS.split(), 2) for form in (word, f"{word[:-1]}ieth")}
    | {word: Decimal(n) for n, word in zip((1, 2, 3, 5, 8, 9, 12), _IRREGULAR.split(), strict=True)}
    | {month.lower(): Decimal(n) for n, month in enumerate(month_name) if n}
)
_POWERS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_EN_TIME = re.compile(
    r"\b(\d\d?)(?::(\d\d))?(?: o['’]clock)?(?: ?([ap])\.?m\b\.?| in the (morning|afternoon|evening))|\b(\d\d?):(\d\d)"
)
_GROUPED = re.compile(r"(?<![\d,.])\d{1,3}(,\d{3})+(?!,?\d)")  # 1,475,183, but not 147,5183


def numbers(text: str, language: str) -> Numbers:
    """Return the numbers of a Japanese or English text."""
    text = _GROUPED.sub(lambda number: number[0].replace(",", ""), normalize("NFKC", text).lower())
    return dict((_japanese if language == "ja" else _english)(text))


def _japanese(text: str) -> Iterator[tuple[str, bool]]:
    eras = rf"({'|'.join(_ERAS)})(元|[\d{_JA_DIGIT}]+)年"
    text = re.sub(eras, lambda era: f"{_ERAS[era[1]] + _value(era[2].replace('元', '1'))}年", text)
    for half, hour, minute, is_half in _JA_TIME.findall(text):
        yield _time(half == "午後", _value(hour), 30 if is_half else _value(minute))
    for number, percent in _JA_NUMBER.findall(_JA_TIME.sub(" ", text)):
        yield f"{_value(number).normalize():f}{'%' * bool(percent)}", bool(re.search(r"\d", number))


def _value(text: str) -> Decimal:
    """Return what 147万5183, 三百五十 or 一九一〇 is worth."""
    for unit, size in _SIZES.items():
        if unit in text:
            head, _, rest = text.partition(unit)
            return (_value(head) if head else 1) * size + _value(rest)
    return Decimal(text.translate(_KANJI) or 0)


def _time(is_afternoon: bool, hour: Decimal, minute: Decimal | int) -> tuple[str, bool]:
    return f"{int(hour) + 12 * (is_afternoon and hour < 12)}:{int(minute):02}", True


def _english(text: str) -> Iterator[tuple[str, bool]]:
    for hour, minute, half, part, plain_hour, plain_minute in _EN_TIME.findall(text):
        is_afternoon = half == "p" or part in ("afternoon", "evening")
        yield _time(is_afternoon, Decimal(hour or plain_hour), Decimal(minute or plain_minute or 0))
    text = re.sub(r"per ?cent\b", "%", _EN_TIME.sub(" ; ", text))
    total, group, has_digits = Decimal(0), None, False  # of a number: its thousands, millions, ...; what follows those
    for token in [*re.findall(r"\d+s\b|\d+(?:\.\d+)?|[a-z]+|[^\w\s-]", text), ""]:  # 1910s is no year
        n = Decimal(token) if re.fullmatch(r"[\d.]*\d", token) else _WORDS.get(token)
        if token == "hundred":
            group = (group or 1) * Decimal(100)
        elif token in _POWERS:
            total, group = total + (1 if group is None else group) * _POWERS[token], Decimal(0)
        elif n is not None and group is not None and (not group or (token in _WORDS and _goes_on(group, n))):
            group += n
        elif token != "and" or not group or group % 100:
            if group is not None:
                yield f"{(total + group).normalize():f}{'%' * (token == '%')}", has_digits
            total, group, has_digits = Decimal(0), n, False
        has_digits |= token[:1].isdigit()


def _goes_on(group: Decimal, n: Decimal) -> bool:
    """Return whether a number in words goes on: two hundred five, twenty five; but not ten five."""
    return group % 100 == 0 or (n < 10 and group % 100 >= 20 and group % 10 == 0)


# Results.


def survival_table(checked: Sequence[Checked]) -> list[str]:
    """Return a line for each topic and, behind it, one for each of its kinds."""
    rights: dict[tuple[str, str], list[bool]] = {}
    for one in checked:
        for kind in ("", one.sentence.kind):
            rights.setdefault((one.sentence.topic, kind), []).append(one.is_right)
    rows = [
        ["" if kind else topic, kind, f"{len(right):,}", f"{sum(right):,}", f"{100 * sum(right) / len(right):.1f}"]
        for (topic, kind), right in rights.items()
    ]
    return aligned([["topic", "kind", "sentences", "right", "%"], *rows], "llrrr")


def wrong_examples(checked: Sequence[Checked]) -> Iterator[str]:
    """Yield a line for some wrong translations of each topic, at equal distances: N_WRONG, or all if they are fewer."""
    for topic in dict.fromkeys(one.sentence.topic for one in checked):
        wrong = [one for one in checked if one.sentence.topic == topic and not one.is_right]
        for one in wrong[:: max(1, -(-len(wrong) // N_WRONG))]:
            twin = f"; {one.sentence.twin} → {one.of_twin}" if one.sentence.twin != one.sentence.text else ""
            yield f"{topic}: {one.sentence.text} → {one.translation}{twin}"
