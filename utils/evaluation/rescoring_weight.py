"""Which weight of a language model orders the candidates of a development text best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric


@dataclass(frozen=True)
class WeightTrial:
    """What one weight gave.

    Args:
        memory_length: positions that the language model remembered.
        weight: of its log-probabilities.
        bleu: BLEU of the text.
        length_ratio: tokens of the translations over tokens of the references, as BLEU counts them.
        n_changed: sentences that are not the translator's best ones.
    """

    memory_length: int
    weight: float
    bleu: float
    length_ratio: float
    n_changed: int


def try_weights(
    rescore: Callable[[float], Sequence[str]],
    unchanged: Sequence[str],
    references: Sequence[str],
    memory_length: int,
    weights: Sequence[float],
    bleu: Metric,
    on_trial: Callable[[WeightTrial], object] = lambda _: None,
) -> list[WeightTrial]:
    """Choose with each weight, and score what was chosen.

    Args:
        rescore: gives the sentences that are best with a weight.
        unchanged: the translator's best ones.
        references: one a sentence.
        memory_length: of what chooses.
        weights: to be tried.
        bleu: sacreBLEU's, with the tokenizer of the language.
        on_trial: is told of each as it comes.
    """
    trials = []
    for weight in weights:
        chosen = list(rescore(weight)) if weight else list(unchanged)
        score = bleu.corpus_score(chosen, [list(references)])
        n_changed = sum(ours != theirs for ours, theirs in zip(chosen, unchanged, strict=True))
        trials.append(WeightTrial(memory_length, weight, score.score, score.ratio, n_changed))
        on_trial(trials[-1])
    return trials


def best_weight(trials: Sequence[WeightTrial]) -> float:
    """The one with the highest BLEU; of equals the smallest."""
    return max(trials, key=lambda trial: (trial.bleu, -trial.weight)).weight
