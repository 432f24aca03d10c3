"""F1 of words that are frequent, rare or absent in the training text (as in compare-mt, Neubig et al. 2019).

F1 = 2 · matched / (words of the references + words of the translations), over the words of one frequency group.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tqdm import tqdm

from utils.evaluation.evaluation import Group

_RAREST = (0, 1, 2, 5, 10, 100, 1000)  # fewest occurrences of each group
_LABELS = ("never seen", "1 time", "2-4 times", "5-9 times", "10-99 times", "100-999 times", "1000+ times")


def word_counts(text: Iterable[str], cut: Callable[[str], list[str]]) -> Counter[str]:
    """Count the words of a text, which is read once, line by line, with a progress bar on standard error."""
    counts: Counter[str] = Counter()
    bar = tqdm(text, desc="words of the training text", unit=" lines", unit_scale=True, disable=None, leave=False)
    for line in bar:
        counts.update(cut(line))
    return counts


def f1_by_frequency(
    translations: Sequence[Sequence[str]], references: Sequence[Sequence[str]], counts: Counter[str]
) -> list[Group]:
    """Return F1 of words, in percent, by their frequency in the training text.

    A word of a translation matches at most as often as its reference has it. The count of a group is the number of its
    words in the references; groups without any are left out.

    Args:
        translations: words of each translation.
        references: words of each reference.
        counts: word counts of the training text.
    """
    wanted, written, matched = ([0] * len(_RAREST) for _ in range(3))
    for translation, reference in zip(translations, references, strict=True):
        ours, theirs = Counter(translation), Counter(reference)
        for words, total in ((theirs, wanted), (ours, written), (ours & theirs, matched)):
            for word, times in words.items():
                total[bisect_right(_RAREST, counts[word]) - 1] += times
    return [
        Group(label, reference_words, 200 * both / (reference_words + own_words))
        for label, reference_words, own_words, both in zip(_LABELS, wanted, written, matched, strict=True)
        if reference_words
    ]
