"""Detection of repetitions in a translation that its reference does not have."""

import re
from collections import Counter
from collections.abc import Sequence

_ORDER, _MORE_OFTEN = 4, 2
_IN_A_ROW = 3
_LETTERS_IN_A_ROW = 5
_SAME_LETTER = re.compile(r"([^\W\d_])\1*")


def repeats(words: Sequence[str], reference: Sequence[str]) -> bool:
    """Return whether a translation repeats itself, in one of three ways.

    1. Its most frequent 4-gram occurs at least two times more than the reference's most frequent one: the top n-gram
       count by which Raunak et al. 2021 ("The curious case of hallucinations in neural machine translation") detect
       oscillating translations, with their n = 4 and t = 2. They count in the source; the reference is in the same
       language and tokenized alike. A reference without 4-grams counts as having each once.
    2. One to three words occur three times or more in a row, and more often than any do in the reference ("of the of
       the of the"). In sentences this short, 4-grams do not show it. Punctuation is skipped: "..." is not an error.
    3. A letter occurs five times or more in a row within a word, and more often than any does in the reference
       ("JNRRRRRR"): a loop of sub-words that are single letters.
    """
    if _top_count(words) - max(1, _top_count(reference)) >= _MORE_OFTEN:
        return True
    if (letters := _letters_in_a_row(words)) >= _LETTERS_IN_A_ROW and letters > _letters_in_a_row(reference):
        return True
    spoken, spoken_reference = _without_punctuation(words), _without_punctuation(reference)
    return any(
        (times := _times_in_a_row(spoken, n)) >= _IN_A_ROW and times > _times_in_a_row(spoken_reference, n)
        for n in range(1, _ORDER)
    )


def _top_count(words: Sequence[str]) -> int:
    """Return how often the most frequent 4-gram occurs."""
    return max(Counter(zip(*(words[i:] for i in range(_ORDER)), strict=False)).values(), default=0)


def _times_in_a_row(words: Sequence[str], n: int) -> int:
    """Return the most times that the same n words occur in a row."""
    most = streak = 0
    for before, now in zip(words, words[n:], strict=False):
        streak = streak + 1 if before == now else 0
        most = max(most, streak)
    return 1 + most // n


def _letters_in_a_row(words: Sequence[str]) -> int:
    """Return the most times that the same letter occurs in a row."""
    return max((len(run[0]) for word in words for run in _SAME_LETTER.finditer(word)), default=0)


def _without_punctuation(words: Sequence[str]) -> list[str]:
    return [word for word in words if any(map(str.isalnum, word))]
