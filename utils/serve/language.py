"""Language detection by letters, among the available languages, and language names."""

from collections.abc import Sequence
from typing import NamedTuple

from utils.text.script import UNSPACED, count_letters, primary_language

_NAMES = {"de": "German", "en": "English", "fr": "French", "ja": "Japanese", "zh": "Chinese"}


class Detected(NamedTuple):
    """A guess."""

    language: str
    confidence: float  # percent


def language_name(code: str) -> str:
    """Return the English name of a language, or the code itself if it has none here."""
    return _NAMES.get(code, code)


def detect(text: str, languages: Sequence[str]) -> Detected | None:
    """Return the likeliest of the given languages; None if none of them fits the script of the text.

    Letters tell Japanese from English, but not English from German: among those, the first is taken.

    Args:
        text: text to detect; without letters, it may be in any language.
        languages: language codes, at least one.
    """
    counts = count_letters(text)
    if not counts.letters:
        return Detected(languages[0], 0.0)
    share = (counts.kana + counts.han) / counts.letters
    if found := counts.unspaced_language:
        # a few kanji without kana are as much Japanese as Chinese
        fitting = [code for code in languages if primary_language(code) == found]
        fitting = fitting or [code for code in languages if primary_language(code) in UNSPACED]
    else:
        share = 1 - share
        fitting = [code for code in languages if primary_language(code) not in UNSPACED]
    return Detected(fitting[0], round(100 * share / len(fitting), 1)) if fitting else None
