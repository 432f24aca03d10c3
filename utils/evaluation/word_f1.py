"""How well words are translated that the training text has often, seldom, or never (as Neubig et al. 2019, compare-mt).

F1 = 2 · matched / (words of the references + words of the translations), over the words of one frequency.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tqdm import tqdm

from utils.evaluation.evaluation import Group

_RAREST = (0, 1, 2, 5, 10, 100, 1000)  # occurrences, of each group
_LABELS = ("never seen", "1 time", "2-4 times", "5-9 times", "10-99 times", "100-999 times", "1000+ times")


def word_counts(text: Iterable[str], cut: Callable[[str], list[str]]) -> Counter[str]:
    """How often a text has each word; it is read once, line by line, under a progress bar on standard error."""
    counts: Counter[str] = Counter()
    bar = tqdm(text, desc="words of the training text", unit=" lines", unit_scale=True, disable=None, leave=False)
    for line in bar:
        counts.update(cut(line))
    return counts


def f1_by_frequency(
    translations: Sequence[Sequence[str]], references: Sequence[Sequence[str]], counts: Counter[str]
) -> list[Group]:
    """F1 of words, in percent, by how often the training text has them.

    A word of a translation is matched if its reference has it too, as often as the reference has it. A group's count
    is that of its words in the references; groups without any are left out.

    Args:
        translations: words of each sentence.
        references: words of each.
        counts: of the training text.
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
