"""Reports of evaluations: plain text for the terminal, and an HTML page."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple, TypeVar

from utils.command import aligned, bar, page_template, wrapped
from utils.evaluation.analysis import Contrast, Evaluation, PartScore, SentenceScore
from utils.evaluation.metric import Comparison, Metric
from utils.file import write_text
from utils.text.language import unspaced_language

T = TypeVar("T")
SIGNIFICANT = 0.05
_LESS_IS_BETTER = ("TER",)
_WIDTH, _N_SENTENCES = 100, 3  # for plain text

_HIRAGANA, _KATAKANA, _KANJI = "\u3041-\u309f", "\u30a0-\u30ff", "\u3005\u3400-\u4dbf\u4e00-\u9fff"
# Without spaces, a run of one script counts as a word: good enough to show what differs, in any language.
_WORD = re.compile(rf"[{_HIRAGANA}]+|[{_KATAKANA}]+|[{_KANJI}]+|(?:[\w'’](?<![{_HIRAGANA}{_KATAKANA}{_KANJI}]))+|\s+|.")


def word_difference(text: str, other: str) -> list[tuple[str, bool]]:
    """Split the text into pieces, each with whether the other text lacks it there (Ratcliff & Obershelp 1988)."""
    pieces, others = _WORD.findall(text), [piece for piece in _WORD.findall(other) if not piece.isspace()]
    words = [place for place, piece in enumerate(pieces) if not piece.isspace()]
    matcher = SequenceMatcher(None, [pieces[place] for place in words], others, autojunk=False)
    differs = [True] * len(pieces)
    for first, _, size in matcher.get_matching_blocks():
        for place in words[first : first + size]:
            differs[place] = False
    for place, piece in enumerate(pieces):
        if piece.isspace():  # marked only between two marked words
            differs[place] = all(differs[max(0, place - 1) : place] + differs[place + 1 : place + 2])
    marked = groupby(zip(pieces, differs, strict=True), key=lambda pair: pair[1])
    return [("".join(piece for piece, _ in run), differing) for differing, run in marked]


class Chart(NamedTuple):
    """Scores of systems on parts of a text: sentences by length, or words by frequency."""

    title: str
    parts: str  # property by which the text is divided
    counted: str  # unit that is counted in each part
    measure: str
    end: float  # of the scale, which starts at 0
    rows: dict[str, dict[int, PartScore]]  # label of a part -> index of each system that has it -> its score


def as_text(evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison] = ()) -> str:
    """Return tables and a few sentences, at most 100 columns wide unless a name or a signature is longer."""
    keys = system_keys(evaluations)
    systems = [
        [f"{key}  {e.system}".strip(), f"{e.text}, {e.n_sentences:,} sentences, into {e.tgt_lang}"]
        for key, e in zip(keys, evaluations, strict=True)
    ]
    lines = ["Systems" if len(evaluations) > 1 else "System", *aligned(systems, "ll"), "", *_scores(evaluations)]
    if comparisons:
        lines += ["", *_differences(comparisons)]
    lines += ["", "Signatures", *aligned(signatures(evaluations, comparisons), "ll")]
    for chart in charts(evaluations):
        lines += ["", *_bars(chart, keys)]
    lines += ["", *_rates(evaluations)]
    for key, evaluation in zip(keys, evaluations, strict=True):
        for name, shown in (("Worst", evaluation.analysis.worst), ("Best", evaluation.analysis.best)):
            if shown:
                lines += ["", f"{name} sentences{f' of {key}' * bool(key)}, by chrF2"]
                lines += [line for sentence in shown[:_N_SENTENCES] for line in _sentence(sentence)]
    return "\n".join(lines) + "\n"


def write_html(
    evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison], path: Path, contrasts: Sequence[Contrast] = ()
) -> None:
    """Write one self-contained file that needs no network, for light or dark screens of any width."""
    page = page_template(Path(__file__).with_name("report.html")).render(
        systems=list(zip(system_keys(evaluations), evaluations, strict=True)),
        comparisons=comparisons,
        contrasts=contrasts,
        scores=by_metric(evaluations),
        charts=charts(evaluations),
        signatures=signatures(evaluations, comparisons),
        less_is_better=_LESS_IS_BETTER,
        significant=SIGNIFICANT,
        end_of_scale=end_of_scale,
        source_language=lambda shown: unspaced_language(sentence.source for sentence in shown),
        verdict=verdict,
        word_difference=word_difference,
    )
    write_text(path, page)


def system_keys(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return a letter for each system, as run names are too long for tables; a single system needs none."""
    letters = [*ascii_uppercase, *map(str, range(27, len(evaluations) + 1))]
    return letters[: len(evaluations)] if len(evaluations) > 1 else [""]


def by_name(of_systems: Iterable[Sequence[T]], name: Callable[[T], str]) -> dict[str, dict[int, T]]:
    """Return name -> index of each system that has a value of this name -> this value."""
    named: dict[str, dict[int, T]] = {}
    for place, values in enumerate(of_systems):
        for value in values:
            named.setdefault(name(value), {})[place] = value
    return named


def by_metric(evaluations: Sequence[Evaluation]) -> dict[str, dict[int, Metric]]:
    """Return name of a metric -> index of each system that has it -> its score."""
    return by_name((evaluation.metrics for evaluation in evaluations), lambda metric: metric.name)


def charts(evaluations: Sequence[Evaluation]) -> list[Chart]:
    """Return the charts that have data of any system."""
    analyses = [evaluation.analysis for evaluation in evaluations]
    f1 = "F1 of words by frequency in the training text"
    drawn = []
    for title, parts, counted, measure, groups in (
        ("BLEU by length", "Length", "sentences", "BLEU", [a.bleu_by_length for a in analyses]),
        (f1, "Frequency", "words", "F1", [a.f1_by_frequency for a in analyses]),
    ):
        rows = by_name(groups, lambda group: group.label)
        # by their leading number ("11-20 source tokens"), those without one first
        labels = sorted(rows, key=lambda label: int(next(iter(re.findall(r"^\d+", label)), -1)))
        end = end_of_scale([group.score for of_system in groups for group in of_system])
        if rows:
            drawn.append(Chart(title, parts, counted, measure, end, {label: rows[label] for label in labels}))
    return drawn


def signatures(evaluations: Sequence[Evaluation], comparisons: Sequence[Comparison]) -> list[tuple[str, str]]:
    """Return each distinct pair of metric and signature."""
    scores = [(metric.name, metric.signature) for evaluation in evaluations for metric in evaluation.metrics]
    return list(dict.fromkeys(scores + [(comparison.metric, comparison.signature) for comparison in comparisons]))


def verdict(comparison: Comparison) -> str:
    """Return `better` or `worse` if the difference is significant, `not significant` otherwise."""
    if comparison.p_value >= SIGNIFICANT or comparison.difference == 0:
        return "not significant"
    return "better" if (comparison.difference > 0) != (comparison.metric in _LESS_IS_BETTER) else "worse"


def end_of_scale(values: Sequence[float]) -> float:
    """Return the end of a scale that starts at 0: the next round number."""
    largest = max(values, default=0)
    if largest <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(largest))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if largest <= step * power * (1 + 1e-9))


def _scores(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    keys = system_keys(evaluations)
    rows = [["metric", "", "score", "95 % interval", ""]]
    for name, scores in by_metric(evaluations).items():
        title, note = name, "lower is better" if name in _LESS_IS_BETTER else ""
        for place, metric in scores.items():
            interval = f"[{metric.low:.2f}, {metric.high:.2f}]" if metric.low < metric.high else ""
            rows.append([title, keys[place], f"{metric.score:.2f}", interval, note])
            title = note = ""
    yield "Scores"
    yield from aligned(rows, "llrrl")


def _differences(comparisons: Sequence[Comparison]) -> Iterator[str]:
    rows = [["metric", "difference", "p-value", "", "system", "baseline"]]
    rows += [
        [c.metric, f"{c.difference:+.2f}", f"{c.p_value:.4f}", verdict(c), c.system, c.baseline] for c in comparisons
    ]
    yield "Differences"
    yield from aligned(rows, "lrrlll")
    for method in dict.fromkeys(comparison.method for comparison in comparisons):
        yield f"  by {method}; significant: p < {SIGNIFICANT}"


def _bars(chart: Chart, keys: Sequence[str]) -> Iterator[str]:
    rows = [[chart.parts.lower(), chart.counted, "", chart.measure, f"0 to {chart.end:g}"]]
    for label, groups in chart.rows.items():
        title = label
        for place, group in groups.items():
            rows.append([title, f"{group.count:,}", keys[place], f"{group.score:.2f}", bar(group.score / chart.end)])
            title = ""
    yield chart.title
    yield from aligned(rows, "lrlrl")


def _rates(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    rows = [["", "with repetitions", "with omissions", "length"]]
    for key, a in zip(system_keys(evaluations), (evaluation.analysis for evaluation in evaluations), strict=True):
        rows.append([key, f"{a.repetition_rate:.2f} %", f"{a.under_translation_rate:.2f} %", f"{a.length_ratio:.3f}"])
    yield "Sentences with repetitions or omissions, and length relative to the references"
    yield from aligned(rows, "lrrr")


def _sentence(sentence: SentenceScore) -> Iterator[str]:
    yield f"  line {sentence.line:,}: {sentence.chrf:.2f}"
    for name in ("source", "translation", "reference"):
        text = getattr(sentence, name)
        if text or name != "source":
            first, *rest = wrapped(text, _WIDTH - 17)
            yield f"    {name:<12} {first}".rstrip()
            yield from (f"{'':17}{line}" for line in rest)
