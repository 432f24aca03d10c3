"""Codes of languages, and which that puts no spaces between words a text is in, told by its letters."""

import re
from collections.abc import Iterable

# inside the brackets of a regular expression
KANA, HAN, HANGUL = (
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "\u3400-\u4dbf\u4e00-\u9fff",
    "\u1100-\u11ff\uac00-\ud7af",
)
UNSPACED = ("ja", "zh")
LETTER = r"^\W\d_"
_MOSTLY = 0.5  # of the letters: names and quotations of another script are common on both sides
_LEAST_KANA = 0.05  # Chinese quotes some; Japanese has a third or more, and some even in a list of headlines


def primary_language(code: str) -> str:
    """`zh` of `zh-CN` or `zh_Hant`."""
    return code.replace("_", "-").partition("-")[0].lower()


def unspaced_language(lines: Iterable[str]) -> str:
    """`ja` or `zh` where most letters are kana and kanji, by whether there are kana; "" for any other text."""
    text = "".join(lines)
    n_letters, n_kana, n_han = (len(re.findall(f"[{script}]", text)) for script in (LETTER, KANA, HAN))
    if n_kana + n_han <= _MOSTLY * n_letters:
        return ""
    return "ja" if n_kana > _LEAST_KANA * n_letters else "zh"
