"""The table of an ablation, its picture and their explanation, made from the result files alone."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from const.path import ROOT
from utils.duration import duration
from utils.experiment.ablation import Ablation, Alternative
from utils.experiment.ablation_result import Result, Results
from utils.experiment.seed_spread import (
    Difference,
    Spread,
    beyond_blocks,
    blocked,
    claimed,
    difference,
    loudest,
    pooled,
)
from utils.experiment.train_options import as_text
from utils.file import write_text
from utils.visualize.ablation import Recipe, draw_ablation

_MAIN = "dev_bleu"  # choices are made by this score; nothing is chosen on test
_HEAD = (
    "| switch | turned to | what differs from the base | dev BLEU | difference | verdict | test BLEU | dev chrF2 "
    "| parameters | minutes |\n|---|---|---|---|---|---|---|---|---|---|"
)


class Row(NamedTuple):
    """An alternative, its result with each seed, and how it compares with the base."""

    alternative: Alternative
    results: dict[int, Result]
    difference: Difference | None

    def values(self, name: str) -> list[float]:
        """Return one figure for all seeds."""
        return [result[name] for result in self.results.values()]


class Comparison(NamedTuple):
    """Everything to show.

    Args:
        ablation: what was compared.
        base: what all alternatives are compared with.
        rows: the alternatives that have results.
        missing: the alternatives that have none.
        trained: spread over seeds of everything that was trained.
        translated: spread over seeds of everything that translates with the same weights, beyond that of the weights.
        loud: alternatives that account for most of either spread, and among which others, in words.
    """

    ablation: Ablation
    base: Row
    rows: Sequence[Row]
    missing: Sequence[Alternative]
    trained: Spread | None
    translated: Spread | None
    loud: Sequence[tuple[Alternative, str]]

    def verdicts(self) -> Counter[str]:
        """Count the alternatives by verdict."""
        return Counter(row.difference.verdict for row in self.rows if row.difference)


def compare(results: Results) -> Comparison:
    """Compare the alternatives with the base, by the result files.

    Raises:
        ValueError: when the base has no result, one is of other settings or (where they should be shared) of other
            weights, or alternatives that share weights have no seed in common.
    """
    ablation = results.ablation
    found = {alternative: results.of(alternative) for alternative in ablation.everything}
    base = Row(ablation.base, found.pop(ablation.base), None)
    if not base.results:
        raise ValueError(
            f"no result of the base in {results.folder}: train it, python -m bench.ablation {ablation.file}"
        )
    for alternative, of in found.items():
        if ablation.shares_weights(alternative):  # so it is compared seed by seed
            found[alternative] = {seed: result for seed, result in of.items() if seed in base.results}
            _require_same_weights(results, alternative, found[alternative], base)
    rows = [Row(alternative, of, None) for alternative, of in found.items() if of]
    own = [row for row in (base, *rows) if not ablation.shares_weights(row.alternative)]
    shared = _on_the_same_seeds([base, *(row for row in rows if row not in own)])
    scores = [row.values(_MAIN) for row in shared]
    trained, translated = pooled([row.values(_MAIN) for row in own]), blocked(scores)
    loud = [
        (among[i].alternative, whom)
        for whom, among, groups in (
            ("that were trained", own, [row.values(_MAIN) for row in own]),
            ("on the same weights", shared, beyond_blocks(scores)),
        )
        if (i := loudest(groups)) is not None
    ]
    same = {row.alternative: row for row in shared[1:]}

    def judged(row: Row) -> Row:
        if row.alternative in same:
            ours, theirs = same[row.alternative], shared[0]
            return row._replace(difference=difference(ours.values(_MAIN), theirs.values(_MAIN), translated))
        return row._replace(difference=difference(row.values(_MAIN), base.values(_MAIN), trained))

    missing = [alternative for alternative, of in found.items() if not of]
    return Comparison(ablation, base, [judged(row) for row in rows], missing, trained, translated, loud)


def _require_same_weights(results: Results, alternative: Alternative, translated: dict[int, Result], base: Row) -> None:
    for seed, result in translated.items():
        if result["run"] != (run := base.results[seed]["run"]):
            ours, theirs = results.file(alternative, seed), results.file(base.alternative, seed)
            raise ValueError(
                f"{ours} was translated with the weights of {result['run']}, but {theirs} with those of {run}: "
                f"python -m bench.ablation {results.ablation.file} translates both with the same run"
            )


def _on_the_same_seeds(rows: Sequence[Row]) -> list[Row]:
    """Restrict the rows to the seeds that all of them have."""
    seeds = set.intersection(*(set(row.results) for row in rows))
    if not seeds:
        raise ValueError(
            f"no seed has results of all of {', '.join(str(row.alternative) for row in rows)}: "
            "python -m bench.ablation scores what is missing"
        )
    return [row._replace(results={seed: row.results[seed] for seed in sorted(seeds)}) for row in rows]


def write_table(found: Comparison, file: Path, picture: Path) -> None:
    """Write the page.

    Args:
        found: what to show.
        file: of the page.
        picture: in the same folder, shown on the page.
    """
    write_text(file, page(found, picture.name))


def draw(found: Comparison, picture: Path) -> None:
    """Draw the picture."""
    recipes = [
        Recipe(
            row.alternative.switch,
            row.alternative.label,
            row.values(_MAIN),
            row.difference.margin,
            row.difference.verdict,
        )
        for row in found.rows
        if row.difference
    ]
    result = next(iter(found.base.results.values()))
    title = f"{found.ablation.spec.name}: one switch at a time, {_seeds(found)}"
    draw_ablation(found.base.values(_MAIN), recipes, title, f"dev BLEU ({result['text']})", picture)


def page(found: Comparison, picture: str) -> str:
    """Return the table in Markdown, followed by how to read it and how it was made."""
    ablation = found.ablation
    parts = [
        f"# Ablation `{ablation.spec.name}`: one switch at a time",
        _about_base(found),
        "\n".join([_HEAD, _row(found.base), *(_row(row) for row in found.rows)]),
        *([f"Without a result: {', '.join(map(str, found.missing))}."] if found.missing else []),
        f"![dev BLEU of each alternative and seed]({picture})",
        "## How to read it",
        _how_to_read(found),
        "## How it was made",
        _how_made(found),
    ]
    return "\n\n".join(parts) + "\n"


def _about_base(found: Comparison) -> str:
    spec, result = found.ablation.spec, next(iter(found.base.results.values()))
    options = f" with {', '.join(f'`{key}` {as_text(value)}' for key, value in spec.options.items())}"
    return (
        f"The base is [`{spec.preset}`](../{spec.preset}){options if spec.options else ''}: {result['text']}, "
        f"{result['parameters'] / 1e6:.2f} M parameters, {result['steps']:,} updates, "
        f"{result['target_tokens'] / 1e6:.2f} M target tokens. Each line changes one thing."
    )


def _row(row: Row) -> str:
    alternative, results = row.alternative, list(row.results.values())
    changes = results[0]["difference"]
    cells = [
        alternative.switch,
        alternative.label if row.difference else f"**{alternative.label}**",
        "; ".join(f"`{key}` {as_text(old)} → {as_text(new)}" for key, (old, new) in changes.items()),
        f"**{_spread(row.values(_MAIN))}**",
        *_judgement(row),
        _spread(row.values("test_bleu")),
        _spread(row.values("dev_chrf")),
        f"{results[0]['parameters'] / 1e6:.2f} M",
        f"{mean(row.values('minutes')):.1f}",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _judgement(row: Row) -> tuple[str, str]:
    """Return difference and verdict; both empty for the base."""
    if row.difference is None:
        return "", ""
    margin = row.difference.margin
    return f"{row.difference.value:+z.2f}" + ("" if margin is None else f" (± {margin:.2f})"), row.difference.verdict


def _spread(values: Sequence[float]) -> str:
    """Return the mean and, for several seeds, the standard deviation."""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _seeds(found: Comparison) -> str:
    """Return the number of seeds, as a range where some alternatives are not finished."""
    counts = {len(row.results) for row in (found.base, *found.rows)}
    many = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(max(counts))
    return f"{many} seed" + ("s" if max(counts) > 1 else "")


def _how_to_read(found: Comparison) -> str:
    text = (
        f"Scores are means over {_seeds(found)}, with ± their standard deviation. Everything is chosen by dev BLEU, "
        "and test BLEU is only reported. `minutes` are those of the training by the clock, whatever else the machine "
        "did; an alternative that differs only in its search translates with the base's weights, seed by seed. "
    )
    if found.trained is None:
        return text + "One seed says nothing about chance: no difference is claimed."
    text += (
        "The effect of chance is estimated from everything that was trained: the standard deviation of dev BLEU around "
        f"the means, pooled, is {_pooled(found.trained)}. "
    )
    if found.translated is not None:
        text += (
            "Among alternatives with the same weights, the effect of a seed on all of them is left out, and it is "
            f"{_pooled(found.translated)}. "
        )
    for alternative, whom in found.loud:
        text += f"**{alternative}** alone varies more than all others {whom} together, and so hides their differences. "
    compared = len(found.rows)
    return text + (
        "The margin in brackets after a difference is that many of its standard errors; only a difference beyond it is "
        "called better or worse. That happens by chance alone in one of twenty comparisons (Student's t, 5 % on both "
        f"sides together), so in about {compared / 20:.1f} of the {compared} here; and `no difference seen` means that "
        "these seeds show none, not that there is none. All this holds for a training of this length and a model of "
        "this size."
    )


def _pooled(spread: Spread) -> str:
    degrees = "1 degree" if spread.freedom == 1 else f"{spread.freedom} degrees"
    return f"{spread.deviation:.2f} ({degrees} of freedom: {claimed(spread.freedom):.2f} standard errors)"


def _how_made(found: Comparison) -> str:
    ablation, rows = found.ablation, (found.base, *found.rows)
    results = [result for row in rows for result in row.results.values()]
    own = [r for row in rows if not ablation.shares_weights(row.alternative) for r in row.results.values()]
    machines = sorted({result["trained"]["machine"] for result in own})
    versions = sorted({result["versions"] for result in results})
    signatures = sorted({f"`{signature}`" for result in results for signature in result["signatures"].values()})
    spec, folder = _portable(ablation.file), f"ablation/{ablation.spec.name}"
    return (
        f"`python -m bench.ablation {spec}` trains what is missing, `python -m bench.ablation {spec} --table` makes "
        f"this page and the picture from the files in [`{folder}`]({folder}). "
        f"{len(own)} trainings, {duration(60 * sum(r['minutes'] for r in own))} in all, "
        f"on {'; '.join(machines)}; {'; '.join(versions)}. {', '.join(signatures)}. {_code(own, results)}"
    )


def _code(own: Sequence[Result], results: Sequence[Result]) -> str:
    """Return which code trained, and which translated."""
    trained, scored = (
        sorted({re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", code) for code in codes})
        for codes in ([result["trained"]["commit"] for result in own], [result["commit"] for result in results])
    )
    told = [" or ".join(f"`{code}`" for code in codes) for codes in (trained, scored)]
    text = f"Trained by the code of {told[0]}, translated by that of {told[1]}."
    if len(trained) > 1 or len(scored) > 1:
        text += " Where the code differs, a difference may come from it."
    if any("changed" in code for code in (*trained, *scored)):
        text += " Code marked `changed` is in no commit: nobody can train or translate with it again."
    return text


def _portable(file: Path) -> str:
    """Return a path as seen from the project's folder."""
    path = file.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else file.name
