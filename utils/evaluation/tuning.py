"""The beam size and length penalty that translate a dev set best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sacrebleu.metrics.base import Metric

from utils.search.hypothesis import SearchConfig


@dataclass(frozen=True)
class Trial:
    """The result of one setting.

    Args:
        beam_size: beam size.
        length_penalty: α of the length penalty.
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
    """Translate and score with each beam size and length penalty.

    Args:
        translate: translates the whole text with the given settings.
        references: one per sentence.
        search: all other settings.
        beam_sizes: beam sizes to try.
        length_penalties: length penalties to try; they do not change greedy search, which runs once.
        bleu: sacreBLEU's metric, with the tokenizer of the language.
        on_trial: called with each trial when it is done.
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
    """Return how often `try_settings` translates the text."""
    return sum(1 if beam_size == 1 else len(length_penalties) for beam_size in beam_sizes)


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest BLEU; in a tie, the one with the smallest beam."""
    return max(trials, key=lambda trial: (trial.bleu, -trial.beam_size))
