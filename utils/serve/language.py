"""Which of the languages at hand a text is in, told by its letters, and what they are called."""

from collections.abc import Sequence
from typing import NamedTuple

from utils.text.script import UNSPACED, count_letters, primary_language

_NAMES = {"de": "German", "en": "English", "fr": "French", "ja": "Japanese", "zh": "Chinese"}


class Detected(NamedTuple):
    """A guess."""

    language: str
    confidence: float  # percent


def language_name(code: str) -> str:
    """In English; the code itself where nobody has named it."""
    return _NAMES.get(code, code)


def detect(text: str, languages: Sequence[str]) -> Detected | None:
    """The likeliest of some languages; None where the text is Japanese or Chinese, or is not, and none of them is so.

    Letters tell Japanese from English, not English from German: among those, the first is taken.

    Args:
        text: to look at; without a letter it may be in any language.
        languages: codes, at least one.
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
