"""Analysis by length: BLEU of short and of long sentences, and translations that leave out most of a sentence."""

from bisect import bisect_left
from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU

from utils.evaluation.evaluation import Group

_LONGEST = (5, 10, 20, 30, 40, 60)  # longest sentence, in tokens, of each group but the last
_SHARE, _LACKING = 0.5, 5


def bleu_by_length(
    lengths: Sequence[int], unit: str, translations: Sequence[str], references: Sequence[str], tokenizer: str
) -> list[Group]:
    """Return corpus BLEU of the sentences of 0-5, 6-10, ... tokens; groups without sentences are left out.

    If no sentence of a group is long enough for a 4-gram, only shorter n-grams count (sacreBLEU's effective order):
    otherwise even a perfect group would score 0. This does not affect other groups.

    Args:
        lengths: number of tokens of each sentence.
        unit: name of the tokens, for the labels.
        translations: one for each length.
        references: one for each length.
        tokenizer: sacreBLEU's name of the target tokenizer.
    """
    bleu = BLEU(tokenize=tokenizer, effective_order=True, force=True)
    groups = []
    for place, label in enumerate(_labels()):
        lines = [line for line, length in enumerate(lengths) if bisect_left(_LONGEST, length) == place]
        if lines:
            found = bleu.corpus_score([translations[i] for i in lines], [[references[i] for i in lines]])
            groups.append(Group(f"{label} {unit}", len(lines), found.score))
    return groups


def under_translated(n_words: int, n_reference: int) -> bool:
    """Return whether a translation is empty, or has fewer than half of its reference's words and at least five fewer.

    Lengths show when models stop too early (Stahlberg & Byrne 2019, "On NMT search errors and model errors: cat got
    your tongue?"); the two limits are ours. At least five words must be missing because good translations of a short
    sentence may differ by half: "Sure." for "Yes, of course." is not an error.
    """
    return n_words < n_reference and (
        n_words == 0 or (n_words < _SHARE * n_reference and n_reference - n_words >= _LACKING)
    )


def _labels() -> list[str]:
    shortest = [0, *(longest + 1 for longest in _LONGEST)]
    return [*(f"{low}-{high}" for low, high in zip(shortest, _LONGEST, strict=False)), f"{shortest[-1]}+"]
