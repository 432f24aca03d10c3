"""The weight of a language model with which reranking works best on a dev set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric


@dataclass(frozen=True)
class WeightTrial:
    """The result of one weight.

    Args:
        memory_length: positions that the language model remembered.
        weight: weight of its log-probabilities.
        bleu: BLEU of the text.
        length_ratio: tokens of the translations over tokens of the references, as BLEU counts them.
        n_changed: sentences whose choice differs from the translator's best.
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
    """Choose translations with each weight, and score them.

    Args:
        rescore: returns the best translations with a weight.
        unchanged: the translator's best translations.
        references: one per sentence.
        memory_length: memory length of the language model.
        weights: weights to try.
        bleu: sacreBLEU's metric, with the tokenizer of the language.
        on_trial: called with each trial when it is done.
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
    """Return the weight with the highest BLEU; in a tie, the smallest."""
    return max(trials, key=lambda trial: (trial.bleu, -trial.weight)).weight
