"""Language codes, and recognition of languages without spaces between words by their letters."""

import re
from collections.abc import Iterable
from typing import NamedTuple

# inside the brackets of a regular expression
KANA, HAN, HANGUL = (
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "\u3400-\u4dbf\u4e00-\u9fff",
    "\u1100-\u11ff\uac00-\ud7af",
)
UNSPACED = ("ja", "zh")
# codes of three letters, as Tatoeba and FLORES have them, for the languages that are treated by their script
_THREE_LETTERS = {"jpn": "ja", "kor": "ko"} | dict.fromkeys(("zho", "chi", "cmn", "yue", "wuu", "nan", "lzh"), "zh")
# what is often written for them: countries, and names
_MISTAKEN = {
    "jp": "ja", "jap": "ja", "japanese": "ja", "cn": "zh", "tw": "zh", "chinese": "zh", "kr": "ko", "korean": "ko",
    "us": "en", "gb": "en", "english": "en", "german": "de", "french": "fr", "spanish": "es", "cz": "cs", "gr": "el",
    "dk": "da", "ua": "uk", "vn": "vi",
}  # fmt: skip
LETTER = r"^\W\d_"
_MOSTLY = 0.5  # share of the letters: names and quotations in another script are common on both sides
_LEAST_KANA = 0.05  # Chinese quotes a few; Japanese has a third or more, and some even in a list of headlines


def primary_language(code: str) -> str:
    """Return the language of a code: `zh` for `zh-CN`, `zh_Hant` or `cmn`."""
    language = code.replace("_", "-").partition("-")[0].lower()
    return _THREE_LETTERS.get(language, language)


def require_language(**codes: str) -> None:
    """Refuse what is no language code, by which texts are scored and split into sentences.

    Args:
        codes: codes by the names of their settings.

    Raises:
        ValueError: a code is that of a country, or not two or three letters, perhaps with a region or script.
    """
    for name, code in codes.items():
        language = primary_language(code)
        if language in _MISTAKEN:
            raise ValueError(f"{name}={code} is no language code: did you mean {_MISTAKEN[language]}?")
        if not re.fullmatch(r"[a-z]{2,3}", language):
            raise ValueError(f"{name}={code} is no language code: give one of ISO 639, such as ja, en or de")


class LetterCounts(NamedTuple):
    """The numbers of letters of a text: in all, and of three scripts."""

    letters: int
    kana: int
    han: int
    hangul: int

    @property
    def unspaced_language(self) -> str:
        """`ja` or `zh` where most letters are kana and kanji, by whether there are kana; "" for any other text."""
        if self.kana + self.han <= _MOSTLY * self.letters:
            return ""
        return "ja" if self.kana > _LEAST_KANA * self.letters else "zh"


def count_letters(text: str) -> LetterCounts:
    """Count the letters of a text; the dot between katakana is not a letter."""
    letters = "".join(re.findall(f"[{LETTER}]", text))
    return LetterCounts(len(letters), *(len(re.findall(f"[{script}]", letters)) for script in (KANA, HAN, HANGUL)))


def unspaced_language(lines: Iterable[str]) -> str:
    """Return `LetterCounts.unspaced_language` of all lines together."""
    return count_letters("".join(lines)).unspaced_language
