"""Which beam width and length penalty translate a development text best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sacrebleu.metrics.base import Metric

from utils.search.hypothesis import SearchConfig


@dataclass(frozen=True)
class Trial:
    """What one setting gave.

    Args:
        beam_size: its beam width.
        length_penalty: its α.
        bleu: BLEU of the text.
        length_ratio: tokens of the translations over tokens of the references, as BLEU counts them.
    """

    beam_size: int
    length_penalty: float
    bleu: float
    length_ratio: float


def try_settings(
    translate: Callable[[SearchConfig], Sequence[str]],
    references: Sequence[str],
    search: SearchConfig,
    beam_sizes: Sequence[int],
    length_penalties: Sequence[float],
    bleu: Metric,
    on_trial: Callable[[Trial], object] = lambda _: None,
) -> list[Trial]:
    """Translate and score with each beam width and each length penalty.

    Args:
        translate: translates the whole text with these settings.
        references: one a sentence.
        search: all other settings.
        beam_sizes: to be tried.
        length_penalties: to be tried; greedy search has one translation to give whatever they are.
        bleu: sacreBLEU's, with the tokenizer of the language.
        on_trial: is told of each as it comes.
    """
    trials = []
    for beam_size in beam_sizes:
        greedy: Trial | None = None
        for length_penalty in length_penalties:
            if beam_size == 1 and greedy is not None:
                trial = replace(greedy, length_penalty=length_penalty)
            else:
                found = translate(replace(search, beam_size=beam_size, length_penalty=length_penalty))
                score = bleu.corpus_score(list(found), [list(references)])
                trial = greedy = Trial(beam_size, length_penalty, score.score, score.ratio)
            trials.append(trial)
            on_trial(trial)
    return trials


def count_searches(beam_sizes: Sequence[int], length_penalties: Sequence[float]) -> int:
    """How often `try_settings` translates the text."""
    return sum(1 if beam_size == 1 else len(length_penalties) for beam_size in beam_sizes)


def best_trial(trials: Sequence[Trial]) -> Trial:
    """The highest BLEU; of equals the narrowest beam."""
    return max(trials, key=lambda trial: (trial.bleu, -trial.beam_size))
