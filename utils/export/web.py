"""What the page that translates in a browser is made of."""

import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any
from unicodedata import combining, name

from config import data
from utils.text import capitals, form, language, loop, number, protected, sentence, structure

# The constants of these modules that utils/web/text.js uses, under the same names.
_RULES: dict[ModuleType, str] = {
    form: "INVISIBLE _WIDE_DIGITS _READ_AS _RAISED _LOWERED _PART",
    structure: "_LINE _TAIL _AROUND _BORDER _BORDER_IN_ROW _ROW _MARKERS",
    sentence: "_BRACKETS _END _STOP _BREAK _PARTICLE _COMMA _SPACE _LETTER _JAPANESE _LAST_WORD _LONGEST "
    "ORDINAL _ABBREVIATION",
    number: "_UNITS _SCALES _KANJI_DIGITS _SMALL _WIDE _ANY_JAPANESE _JAPANESE _ENGLISH HOUR_EN HOUR_JA _MYRIADS "
    "_BELOW_TEN_THOUSAND _WORDS",
    protected: "NUMBER_MARKS _ANY_VERBATIM _YEAR _SHOWN _SURE _ERA _BOLD LEARNED WORDS",
    capitals: "_SUSPECT _WORDS _LONG _LONG_WORDS _WORD _LETTERS _FIRST",
    loop: "OFTEN EXTRA _REPEATED _ZEROS",
    data: "_THREE_LETTERS",
    language: "WORD UNSPACED SCRIPTS",
}


def text_rules() -> dict[str, Any]:
    """Return the patterns and tables of utils/text, by modules, for utils/web/text.js: written once, in Python."""
    rules = {
        module.__name__.rpartition(".")[2]: {
            constant.strip("_"): _as_json(getattr(module, constant)) for constant in constants.split()
        }
        for module, constants in _RULES.items()
    }
    characters = [*map(chr, (*range(0xD800), *range(0xE000, 0x110000)))]
    rules["form"] |= {
        "LEADING": {"pattern": f"^[{_SPACES}]+"},
        "TRAILING": {"pattern": f"[{_SPACES}]+$"},
        "BASE": {character: base for character in characters if (base := form.base_form(character))},
        "COMBINING": _as_class(filter(combining, characters)),
        "LATIN": _as_class(character for character in characters if name(character, "").startswith("LATIN")),
        "NUMERIC": _as_class(filter(str.isnumeric, characters)),
        "DIGITS": _as_class(filter(str.isdigit, characters), "+"),
    }
    return rules


def _as_json(value: Any) -> Any:
    if isinstance(value, re.Pattern):
        return {"pattern": javascript(value)}
    if isinstance(value, protected.StandIns):
        return value._asdict()
    return sorted(value) if isinstance(value, set) else value


def _as_class(characters: Iterable[str], times: str = "") -> dict[str, str]:
    """Return a pattern of those characters, which are given in order."""
    runs: list[list[int]] = []
    for code in map(ord, characters):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return {"pattern": "[" + "".join(f"\\u{{{begin:x}}}-\\u{{{end:x}}}" for begin, end in runs) + f"]{times}"}


# Regular expressions in JavaScript, with the flag u: what a class means there is said in properties of Unicode.

_SPACES = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CLASSES = {"w": r"\p{L}\p{N}_", "d": r"\p{Nd}", "s": _SPACES}
_ASCII_CLASSES = {"w": "A-Za-z0-9_", "d": "0-9", "s": r"\t-\r "}
_AS_I_S_K = "ıİſK"  # where case is ignored, and not in ASCII alone: the other letters that are i, s, or k
_PART = re.compile(
    r"\\(?:U[0-9a-f]{8}|.)|\[(?P<negated>\^?)(?P<members>\]?(?:\\.|[^\\\]])*)\]|\((?:\?(?:[:=!]|<[=!]|i:|s\)))?|[).$A-Za-z]"
)


def javascript(pattern: re.Pattern[str]) -> str:
    """Write a regular expression for JavaScript's `RegExp`, with its flag u and no other."""
    classes = _ASCII_CLASSES if pattern.flags & re.A else _CLASSES
    like_ascii = "" if pattern.flags & re.A else _AS_I_S_K
    ignores_case = [bool(pattern.flags & re.I)]  # of the groups that are open

    def escape(sign: str, in_class: bool = False) -> str:
        if sign[0] == "U":
            return f"\\u{{{sign[1:]}}}"
        if sign in classes:
            return classes[sign] if in_class else f"[{classes[sign]}]"
        if sign.lower() in classes:
            return f"[^{classes[sign.lower()]}]"
        word = f"[{classes['w']}]"
        around = f"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))"
        of_python = {"A": "^", "Z": "$", "b": around}
        is_needed = sign.isalnum() or sign in r"^$\.*+?()[]{}|/" or (sign == "-" and in_class)  # or else refused
        return of_python.get(sign) or (f"\\{sign}" if is_needed else sign)

    def members(match: re.Match[str]) -> str:
        negated, inside = match["negated"], match["members"]
        found = re.sub(r"\\(U[0-9a-f]{8}|.)", lambda one: "" if one[1] == "W" else escape(one[1], True), inside)
        if ignores_case[-1] and "a-z" in found:
            found += like_ascii
        if r"\W" not in inside:
            return f"[{negated}{found}]"
        word = classes["w"]
        return f"(?:(?![{found}])[{word}])" if negated else f"(?:[{found}]|[^{word}])"

    def convert(match: re.Match[str]) -> str:
        part = match[0]
        if part[0] == "\\":
            return escape(part[1:])
        if part[0] == "[":
            return members(match)
        if part == "(?s)":
            return ""
        if part[0] == "(":
            ignores_case.append(ignores_case[-1] or part == "(?i:")
            return part.replace("i", "")
        if part == ")":
            ignores_case.pop()
            return part
        if part == ".":
            return "[^]" if pattern.flags & re.S else r"[^\n]"
        if part == "$":
            return r"(?=\n?$)"
        others = [other for other in like_ascii if re.fullmatch(part, other, re.I)]
        return f"[{part.lower()}{part.upper()}{''.join(others)}]" if ignores_case[-1] else part

    return _PART.sub(convert, pattern.pattern)
