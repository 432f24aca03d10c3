"""Significance of the difference between a system and a baseline: sacreBLEU's paired tests, on the same sentences.

Paired bootstrap (Koehn 2004) resamples the sentences; approximate randomisation (Riezler & Maxwell 2005) swaps the two
systems' translations of each sentence with probability 1/2.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from sacrebleu.metrics import base
from sacrebleu.significance import PairedTest, Result

from utils.evaluation.evaluation import Comparison, Metric
from utils.evaluation.metric import refuse_samples, with_interval

Test = Literal["bootstrap", "randomization"]

DEFAULT_SAMPLES: Mapping[Test, int] = {"bootstrap": 1000, "randomization": 10_000}  # sacreBLEU's
_CODE: Mapping[Test, str] = {"bootstrap": "bs", "randomization": "ar"}
_METHOD: Mapping[Test, str] = {
    "bootstrap": "paired bootstrap, {:,} resamples",
    "randomization": "approximate randomization, {:,} trials",
}


class System(NamedTuple):
    """A system's name and translations."""

    name: str
    translations: Sequence[str]


def compare(
    systems: Sequence[System],
    references: Sequence[str],
    metrics: Mapping[str, base.Metric],
    test: Test,
    n_samples: int | None = None,
    n_bootstrap: int = 0,
    on_progress: Callable[[int], object] = lambda _: None,
) -> tuple[list[list[Metric]], list[Comparison]]:
    """Score all systems, and test each of the others against the first.

    Args:
        systems: the baseline, followed by the other systems.
        references: one for each translation.
        metrics: as returned by `build_metrics`.
        test: significance test.
        n_samples: resamples or trials of the test; None: sacreBLEU's default.
        n_bootstrap: resamples for the intervals of the scores; a bootstrap test uses its own instead.
        on_progress: called with 1 for each finished metric.

    Returns:
        The metrics of each system, and a comparison for each metric and each system but the baseline.

    Raises:
        ValueError: there are too few samples, or more than fit into memory.
    """
    n_samples = _samples_of(test, n_samples, len(references))
    refuse_samples(n_bootstrap, len(references), "--bootstrap")
    # sacreBLEU's confidence samples are for randomisation only: with a bootstrap they would falsify the signature
    n_confidence = n_bootstrap if n_bootstrap and test == "randomization" else -1
    scores: list[list[Metric]] = [[] for _ in systems]
    comparisons = []
    for name, metric in metrics.items():
        paired = PairedTest(list(systems), {name: metric}, [list(references)], _CODE[test], n_samples, n_confidence)
        signatures, results = paired()
        ((key, signature),) = signatures.items()
        found = [result for result in results[key] if isinstance(result, Result)]
        for of_system, result in zip(scores, found, strict=True):
            mean, half = (result.score, 0.0) if result.mean is None else (result.mean, result.ci or 0.0)
            of_system.append(with_interval(name, result.score, mean, half, str(signature)))
        for system, result in zip(systems[1:], found[1:], strict=True):
            difference = result.score - found[0].score
            pairs = zip(system.translations, systems[0].translations, strict=True)
            n_different = sum(ours != theirs for ours, theirs in pairs)
            comparisons.append(
                Comparison(
                    system.name,
                    systems[0].name,
                    name,
                    difference,
                    _p_value(result, difference, test, n_different),
                    _METHOD[test].format(n_samples),
                    str(signature),
                )
            )
        on_progress(1)
    return scores, comparisons


def _samples_of(test: Test, asked: int | None, n_lines: int) -> int:
    """Return the number of samples of a test: the requested number, or sacreBLEU's default.

    Raises:
        ValueError: there are too few, or more than fit into memory.
    """
    if asked == 0:
        raise ValueError("--samples 0: a test needs samples; leave the option out for sacreBLEU's default")
    n_samples = DEFAULT_SAMPLES[test] if asked is None else asked
    refuse_samples(n_samples, n_lines, "--samples")
    return n_samples


def _p_value(result: Result, difference: float, test: Test, n_different: int) -> float:
    """Return sacreBLEU's p-value, corrected where it treats ties as differences.

    Chance always gives a difference of at least 0, but sacreBLEU reports 1/(n+1), as if a tie were significant. And if
    k lines differ, 2 of the 2^k ways to swap them give at least the observed difference: no number of trials can push
    the p-value of randomisation below that.
    """
    if difference == 0:
        return 1.0
    surest = 2.0 ** (1 - n_different) if test == "randomization" else 0.0
    return max(float(result.p_value or 0.0), surest)
