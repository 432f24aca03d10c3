"""Numbers and times of day, as Japanese and English write them: found, read by value, and written.

350万 is 3.5 million, 147万5183 is 1,475,183, and 午後3時30分 is 3:30 p.m.
"""

import re
from collections.abc import Iterator
from decimal import Decimal

from config.data import primary_language
from utils.text.language import HAN

# Found: in digits of either width, with or without 万 and 億, or million; in words, and kanji before a counter.
_UNITS = {"十": 10, "百": 100, "千": 1000, "hundred": 100}  # times the number before them
_SCALES = {"万": 10**4, "億": 10**8, "兆": 10**12, "thousand": 1000, "million": 10**6, "billion": 10**9}
_SCALES["trillion"] = 10**12  # times all that is before them and less
_ONES = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = dict[str, int]()
for words in ("一二三四五六七八九", _ONES.split(), _ORDINALS.split()):
    _SMALL |= {word: n for n, word in enumerate(words, 1)}
for n, word in enumerate(_TENS.split(), 2):
    _SMALL |= {word: 10 * n, f"{word[:-1]}ieth": 10 * n}
_WIDE = str.maketrans("０１２３４５６７８９．，", "0123456789.,")
_DIGIT = r"[0-9０-９]"
_DIGITS = rf"{_DIGIT}{{1,3}}(?:[,，]{_DIGIT}{{3}})+(?!{_DIGIT})(?:[.．]{_DIGIT}+)?|{_DIGIT}+(?:[.．]{_DIGIT}+)?"
_COUNTED = r"(?=[人円石戸個件本冊台頭匹坪点部名歳回])"  # not 八百屋, 三十三間堂
_KANJI = "一二三四五六七八九十百千"
_JAPANESE = re.compile(
    rf"(?:(?:{_DIGITS})(?:[十百千]?[兆億万]|[百千](?![{HAN}]{{2}}))?)+"
    rf"|[{_KANJI}]+[万億兆](?:[{_KANJI}万億]+|(?=[年日をがのにとで、。]|以|余|もの|$)|{_COUNTED})|[{_KANJI}]{{3,}}{_COUNTED}"
)
_ANY_JAPANESE = re.compile(rf"(?:{_DIGITS}|[〇{_KANJI}万億兆])+")
_SCALE, _WORD = "hundred|thousand|million|billion|trillion", "|".join(filter(str.isascii, _SMALL))
_ENGLISH = re.compile(
    rf"(?<![\w.])(?:(?:{_DIGITS})(?:[ -](?:{_SCALE})(?![A-Za-z]))*"
    rf"|(?:{_WORD})(?:[ -](?:{_WORD}|(?:{_SCALE})(?:(?:,| and)(?= (?:{_WORD})))?))*(?!-?[A-Za-z]))",
    re.I,
)
_WORDS = re.compile(r"[a-z]+|[\d.]+|[〇一二三四五六七八九十百千万億兆]")
HOUR_EN = re.compile(r"(?<![\d:])(\d{1,2})(?::(\d{2}))? ?([APap])\.?[Mm]\b(?:\.(?!\s*$))?")
HOUR_JA = re.compile(r"(午前|午後)(\d{1,2})時(?:(\d{1,2})分)?(?!間)")


def numbers(text: str, language: str, lenient: bool = False) -> Iterator[re.Match[str]]:
    """Return the numbers of a Japanese or English text; `lenient`: kanji that may be digits are, such as 二十."""
    patterns = {"en": _ENGLISH, "ja": _ANY_JAPANESE if lenient else _JAPANESE}
    pattern = patterns.get(primary_language(language))
    return pattern.finditer(text) if pattern else iter(())


def is_in_digits(number: str) -> bool:
    """Return whether it is written in digits alone."""
    return number.translate(_WIDE).isdigit()


# Read.


def value_of(number: str) -> Decimal:
    """Return what a number of a text is worth."""
    total, one = Decimal(0), [Decimal(1)]
    units, said = list[Decimal](), list[Decimal]()  # since the last scale, and since the last unit
    for word in _WORDS.findall(number.translate(_WIDE).replace(",", "").lower()):
        if word in _SCALES:
            total, units, said = total + sum([*units, *said] or one) * _SCALES[word], [], []
        elif word in _UNITS:
            units, said = [*units, sum(said or one, Decimal(0)) * _UNITS[word]], []
        else:
            said.append(Decimal(_SMALL.get(word, word if word[0].isdigit() else 0)))
    return total + sum([*units, *said])


# Written.


def number_in(language: str, number: str, value: Decimal) -> str:
    """Write a number of a text in a language, with its units; digits alone stay as they are: 1910, 0.00."""
    is_whole = value == value.to_integral()
    plain = number.translate(_WIDE)
    if re.fullmatch(r"[\d.]+", plain):
        return plain
    if primary_language(language) == "ja":
        return _in_japanese(int(value)) if is_whole and value >= 10**4 else f"{value.normalize():f}"
    has_unit = re.search("[兆億万A-Za-z]", plain)
    for scale, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        share = (value / scale).normalize()
        if has_unit and share >= 1 and len(share.as_tuple().digits) <= max(3, share.adjusted() + 1):
            return f"{share:f} {name}"
    return f"{int(value):,}" if is_whole else f"{value.normalize():,f}"


def hour_in(language: str, hour: str) -> str:
    """Write a time of day in a language; what is none in the other one stays as it is."""
    is_japanese = primary_language(language) == "ja"
    if not (parts := (HOUR_EN if is_japanese else HOUR_JA).match(hour)):
        return hour
    return _hour_in_japanese(*parts.groups()) if is_japanese else _hour_in_english(*parts.groups())


def _hour_in_japanese(hour: str, minute: str | None, half: str) -> str:
    return f"午{'前' if half in 'Aa' else '後'}{int(hour)}時" + (f"{int(minute)}分" if minute and int(minute) else "")


def _hour_in_english(half: str, hour: str, minute: str | None) -> str:
    return f"{int(hour)}" + (f":{int(minute):02}" if minute else "") + (" a.m." if half == "午前" else " p.m.")


def _in_japanese(value: int) -> str:
    parts = []
    for unit in ("兆", "億", "万", ""):
        count, value = divmod(value, _SCALES.get(unit, 1))
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)
