"""Ablations: one switch at a time, each with several seeds; what is trained, its scores, and their table."""

import json
import math
import re
import time
from argparse import ArgumentError
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Any, NamedTuple, Protocol

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from tqdm import tqdm

from const.path import PICKLES, ROOT
from utils.arguments import as_options, as_text, settings
from utils.command import Parser, duration, print_above_bars
from utils.config import TranslationConfig, find_settings, read_yaml, task_of
from utils.dataset.corpus import prepare_corpus
from utils.dataset.text import ParallelFiles, read_parallel
from utils.device import pick_device
from utils.evaluation.metric import corpus_metrics, measure
from utils.experiment.trial import BusyError, TrainingProcess, run_named
from utils.file import read_json, write_json, write_text
from utils.run import TEST, load_run, portable, provenance, read_config
from utils.search.constraint import SearchConfig
from utils.training.checkpoint import ABSENT, changed_settings, flat
from utils.training.report import LOG, read_log
from utils.visualize.curve import sheet

# Whether two recipes differ by more than their seeds do: the least significant difference, Fisher 1935, §24.
#
# Every recipe is trained with n seeds. The effect of seeds alone is estimated from all recipes together, from how
# each varies around its own mean (the residual of a one-way analysis of variance, Fisher 1925, ch. VII):
#
#     s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ)² / Σᵢ (nᵢ - 1)
#
# The difference of two means then has the standard error s √(1/n + 1/m). Recipes that share their weights seed by
# seed also share the effect of a seed on these; each seed is then a block (Fisher 1935, ch. IV), and s is how much k
# recipes vary beyond their own means and those of their n seeds:
#
#     s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ - ȳⱼ + ȳ)² / (k - 1) (n - 1)
#
# A difference is claimed beyond t standard errors, Student's t at the degrees of freedom of s: where there is none,
# one in twenty is claimed nevertheless.

# P(|t| > point) = 5 %, by degrees of freedom
_POINTS = {
    **dict(enumerate((12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23), 1)),
    **{20: 2.09, 30: 2.04, 60: 2.00, 120: 1.98},
}


class Spread(NamedTuple):
    """Spread of scores over seeds.

    Args:
        deviation: s, the pooled standard deviation.
        freedom: its degrees of freedom: the number of values minus that of estimated means.
    """

    deviation: float
    freedom: int


class Difference(NamedTuple):
    """Difference of a recipe from the base.

    Args:
        value: the recipe's mean minus the base's.
        margin: beyond which a difference is claimed; None: unknown, for a single seed shows no spread.
    """

    value: float
    margin: float | None

    @property
    def verdict(self) -> str:
        """What can be claimed: better, worse, no difference seen, or unknown."""
        if self.margin is None:
            return "unknown"
        if abs(self.value) <= self.margin:
            return "no difference seen"
        return "better" if self.value > 0 else "worse"


def claimed(freedom: int) -> float:
    """Return how many standard errors a claim takes: t, or slightly more between the degrees in the table."""
    return _POINTS[max(listed for listed in _POINTS if listed <= freedom)]


def pooled(groups: Sequence[Sequence[float]]) -> Spread | None:
    """Return the pooled spread of recipes, the scores of each in a group; None if no group has two."""
    freedom = sum(len(group) - 1 for group in groups if group)
    if freedom < 1:
        return None
    return Spread(math.sqrt(sum(map(_squares, groups)) / freedom), freedom)


def beyond_blocks(recipes: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the residual of each value from the means of its recipe and its seed.

    Args:
        recipes: the scores of each recipe, one per seed, all with the same seeds.
    """
    seeds, whole = [mean(scores) for scores in zip(*recipes, strict=True)], mean(map(mean, recipes))
    return [[score - mean(own) - seed + whole for score, seed in zip(own, seeds, strict=True)] for own in recipes]


def blocked(recipes: Sequence[Sequence[float]]) -> Spread | None:
    """Return the spread of recipes that share their weights seed by seed; None for one recipe or one seed."""
    freedom = (len(recipes) - 1) * (len(recipes[0]) - 1)
    if freedom < 1:
        return None
    return Spread(math.sqrt(sum(x * x for own in beyond_blocks(recipes) for x in own) / freedom), freedom)


def loudest(groups: Sequence[Sequence[float]]) -> int | None:
    """Return which of three or more varying groups has over half of all squares, and so hides others' differences."""
    squares = [_squares(group) for group in groups]
    if sum(len(group) > 1 for group in groups) < 3:  # of two, one has more than half
        return None
    return next((i for i, own in enumerate(squares) if own > sum(squares) / 2), None)


def _squares(group: Sequence[float]) -> float:
    return sum((value - mean(group)) ** 2 for value in group)


def difference(ours: Sequence[float], base: Sequence[float], spread: Spread | None) -> Difference:
    """Return the difference of two means over seeds, with a common spread."""
    error = math.sqrt(1 / len(ours) + 1 / len(base))
    return Difference(mean(ours) - mean(base), spread and claimed(spread.freedom) * spread.deviation * error)


# One switch at a time: what is compared with what, read from a file in const/ablation/.

_OURS = ("config", "task", "name", "training.seed")  # options that are set here for each training


@dataclass(frozen=True)
class AblationSpec:
    """The contents of the file.

    Args:
        name: of the ablation; the names of its trainings begin with it.
        preset: settings of the base, as a path relative to the working directory or the project's folder.
        seeds: each alternative is trained once with each of them.
        switches: title of a switch -> label of an alternative -> the options in which it differs from the base.
        options: of the base, in addition to the preset's.
    """

    name: str
    preset: Path
    seeds: list[int]
    switches: dict[str, dict[str, dict[str, Any]]]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)  # compared by identity, so that it may be a key
class Alternative:
    """The base, whose switch has no name, or an alternative to it.

    Args:
        switch: the switch that is turned.
        label: what it is turned to.
        options: of train.py for it, including those of the base.
        config: all settings with these options, without a name or a particular seed.
    """

    switch: str
    label: str
    options: dict[str, Any]
    config: TranslationConfig

    @property
    def slug(self) -> str:
        """Short name for files and folders."""
        return re.sub(r"[^a-z0-9.]+", "-", f"{self.switch} {self.label}".lower()).strip("-")

    def __str__(self) -> str:
        """Return the name to show."""
        return f"{self.switch} {self.label}".strip()


class Training(NamedTuple):
    """A training, and all alternatives that translate with its weights.

    Args:
        name: of the run.
        seed: of the run.
        arguments: of train.py, except the name.
        config: the resulting settings of the run.
        translating: the alternative that is trained, and those that differ from it only in their search.
    """

    name: str
    seed: int
    arguments: Sequence[str]
    config: TranslationConfig
    translating: Sequence[Alternative]


@dataclass(frozen=True)
class Ablation:
    """A base and its alternatives, each trained with every seed.

    Args:
        file: that specifies the ablation.
        spec: its contents.
        base: what all alternatives are compared with.
        alternatives: in the order of the table.
    """

    file: Path
    spec: AblationSpec
    base: Alternative
    alternatives: Sequence[Alternative]

    @property
    def everything(self) -> list[Alternative]:
        """The base, followed by the alternatives."""
        return [self.base, *self.alternatives]

    def config(self, alternative: Alternative, seed: int) -> TranslationConfig:
        """Return all settings with which an alternative is trained, or translates."""
        owner = self.base if self.shares_weights(alternative) else alternative
        training = replace(alternative.config.training, seed=seed)
        return replace(alternative.config, name=self._training_name(owner, seed), training=training)

    def shares_weights(self, alternative: Alternative) -> bool:
        """Return whether it differs from the base only in its search, and so translates with the base's weights."""
        return alternative is not self.base and same_weights(alternative.config, self.base.config)

    def changes(self, alternative: Alternative) -> dict[str, tuple[Any, Any]]:
        """Return the settings that differ from the base's, with both values, the base's first."""
        return differences(self.base.config, alternative.config)

    def trainings(self) -> list[Training]:
        """Return all trainings to run: everything with the first seed, then with the second, and so on."""
        shared = [alternative for alternative in self.alternatives if self.shares_weights(alternative)]
        return [
            Training(
                self._training_name(owner, seed),
                seed,
                arguments(self.spec.preset, owner.options | {"training.seed": seed}),
                self.config(owner, seed),
                [owner, *(shared if owner is self.base else [])],
            )
            for seed in self.spec.seeds
            for owner in self.everything
            if owner not in shared
        ]

    def _training_name(self, owner: Alternative, seed: int) -> str:
        return f"{self.spec.name}-{owner.slug}-{seed}"


def same_weights(one: TranslationConfig, other: TranslationConfig) -> bool:
    """Return whether both lead to the same weights: everything but name and search is equal."""
    return replace(one, name="", search=SearchConfig()) == replace(other, name="", search=SearchConfig())


def differences(one: TranslationConfig, other: TranslationConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings that both have and that differ, except the name."""
    return plain_differences(one.plain(portable), other.plain(portable))


def plain_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the differences of settings in JSON types; those that only one side has are newer, and ignored."""
    changed = changed_settings(one, other)
    return {key: pair for key, pair in changed.items() if key != "name" and not any(value is ABSENT for value in pair)}


def arguments(preset: Path, options: Mapping[str, Any]) -> list[str]:
    """Return the arguments of train.py."""
    return ["--config", str(find_settings(preset)), *as_options(options)]


def read_ablation(file: Path) -> Ablation:
    """Read what is to be compared, and parse every option of every alternative as train.py would.

    Raises:
        ValueError: when the file or an option in it cannot be parsed, or two alternatives have the same short name.
    """
    spec = _read_spec(file)
    base = _alternative(file, spec, "", "base", {})
    found = [
        _alternative(file, spec, switch, label, options)
        for switch, labelled in spec.switches.items()
        for label, options in labelled.items()
    ]
    slugs = [alternative.slug for alternative in (base, *found)]
    for i, alternative in enumerate(found, 1):
        if not alternative.slug:
            raise ValueError(f"{file}: {alternative} has no letter for names of files (a to z): rename it")
        if alternative.slug in slugs[:i]:
            raise ValueError(f"{file}: {alternative} has the same short name as another, {alternative.slug}: rename it")
        if not differences(base.config, alternative.config):
            raise ValueError(f"{file}: {alternative} does not differ from the base: change or remove it")
    return Ablation(file, spec, base, found)


def _read_spec(file: Path) -> AblationSpec:
    if not file.is_file():
        raise ValueError(f"no ablation {file}: give a file such as const/ablation/multi30k.yaml")
    given = read_yaml(file)
    if not isinstance(given, dict):
        known = ", ".join(leaf.name for leaf in fields(AblationSpec))
        raise ValueError(f"{file} has no settings of an ablation: give {known}")
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(AblationSpec)
    try:
        said = {key: value for key, value in given.items() if value is not None}  # `options:` without a value, say
        spec = AblationSpec(**parser.instantiate(parser.parse_object(said)))
    except ArgumentError as error:
        raise ValueError(f"{file}: {parser.explain(str(error))}") from error
    if not spec.seeds or len({*spec.seeds}) < len(spec.seeds) or min(spec.seeds) < 0:
        raise ValueError(f"{file}: seeds={spec.seeds}: give each seed once, 0 or more; at least two to know the spread")
    if not re.fullmatch(r"[a-z0-9_]+", spec.name):
        raise ValueError(f"{file}: name={spec.name} is used in file names: give lower-case letters, digits and _")
    return spec


def _alternative(file: Path, spec: AblationSpec, switch: str, label: str, options: dict[str, Any]) -> Alternative:
    together = spec.options | options
    for key in _OURS:
        if key in together:
            raise ValueError(f"{file}: {switch} {label}: {key} is set for each training: leave it out")
    try:
        config = _config(spec.preset, together)
    except ValueError as error:
        raise ValueError(f"{file}: {f'{switch} {label}'.strip()}: {error}") from error
    return Alternative(switch, label, together, config)


def _config(preset: Path, options: Mapping[str, Any]) -> TranslationConfig:
    found = settings(arguments(preset, options))
    if not isinstance(found, TranslationConfig):
        raise ValueError(f"{preset} is of task {task_of(type(found))}: an ablation compares translators")
    return replace(found, name="")


# Scores of an alternative of an ablation with one seed: a JSON file in figure/ablation/.

Result = dict[str, Any]  # as JSON has it


class Results:
    """The files of an ablation, one for each alternative and seed.

    Args:
        ablation: determines which results there should be.
        folder: where the files are.
    """

    def __init__(self, ablation: Ablation, folder: Path) -> None:
        self.ablation = ablation
        self.folder = folder

    def file(self, alternative: Alternative, seed: int) -> Path:
        """Return the path of a result, whether it exists or not."""
        return self.folder / f"{alternative.slug}-{seed}.json"

    def write(self, alternative: Alternative, seed: int, result: Result) -> None:
        """Keep a result."""
        write_json(self.file(alternative, seed), result)

    def of(self, alternative: Alternative) -> dict[int, Result]:
        """Return all existing results of an alternative, by seed.

        Raises:
            ValueError: when one was scored with settings other than the present ones, or is damaged.
        """
        found = {}
        for seed in self.ablation.spec.seeds:
            file = self.file(alternative, seed)
            if file.is_file():
                found[seed] = _read(file)
                # settings newer than the result had their defaults then
                known = flat(TranslationConfig().plain(portable)) | flat(found[seed]["config"])
                expected = self.ablation.config(alternative, seed).plain(portable)
                _refuse_other(file, plain_differences(known, expected))
        return found

    def run(self, alternative: Alternative, seed: int) -> str | None:
        """Return the run whose weights an alternative was scored with; None: not yet scored.

        Raises:
            ValueError: when the file is damaged.
        """
        file = self.file(alternative, seed)
        return str(_read(file)["run"]) if file.is_file() else None

    def require_same(self, root: Path) -> None:
        """Refuse to mix results and runs of other settings with those of the present ones.

        Args:
            root: where the runs are.

        Raises:
            ValueError: when there is a result or a run of other settings; the message names it.
        """
        for alternative in self.ablation.everything:
            self.of(alternative)
        for training in self.ablation.trainings():
            run = run_named(training.name, root)
            if run is not None:
                found = read_config(run, TranslationConfig)
                if not same_weights(found, training.config):
                    _refuse_other(run, plain_differences(found.plain(portable), training.config.plain(portable)))


def _read(file: Path) -> Result:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): remove it") from error
    if not isinstance(result, dict) or not isinstance(result.get("config"), dict) or "run" not in result:
        raise ValueError(f"{file} is damaged (run or config is missing): remove it")
    return result


def _refuse_other(path: Path, changed: dict[str, tuple[Any, Any]]) -> None:
    if changed:
        told = ", ".join(f"{key} is {old}, not {new}" for key, (old, new) in list(changed.items())[:3])
        raise ValueError(f"{path} is of other settings ({told}): remove it, or restore its settings")


class _Scores(NamedTuple):
    bleu: float
    chrf: float
    signatures: dict[str, str]


def score_run(folder: Path, ablation: Ablation, alternative: Alternative, seed: int) -> Result:
    """Translate dev and test set with a finished run and the search of an alternative, and score both.

    Args:
        folder: of the run.
        ablation: that the run belongs to.
        alternative: whose search settings are used.
        seed: of the training.
    """
    config = ablation.config(alternative, seed)
    device = pick_device(config.training.device)
    run = load_run(folder, device)
    corpus = prepare_corpus(config.data)
    metrics = corpus_metrics(corpus)
    course = _course(folder)

    def score(files: ParallelFiles) -> _Scores:
        pairs = read_parallel(files)
        translations = [found.text for found in run.translator(config.search).translate(pairs.src)]
        bleu, chrf = measure(translations, pairs.tgt, {name: metrics[name] for name in ("BLEU", "chrF2")})
        return _Scores(bleu.score, chrf.score, {bleu.name: bleu.signature, chrf.name: chrf.signature})

    dev, test = score(corpus.dev), score(corpus.test)
    return {
        "ablation": ablation.spec.name,
        "switch": alternative.switch,
        "alternative": alternative.label,
        "seed": seed,
        "text": f"{corpus.name}, {corpus.src_lang}-{corpus.tgt_lang}",
        "dev_bleu": dev.bleu,
        "dev_chrf": dev.chrf,
        "test_bleu": test.bleu,
        "test_chrf": test.chrf,
        **course,
        "run": folder.name,
        "options": dict(alternative.options),
        "difference": {key: list(values) for key, values in ablation.changes(alternative).items()},
        "signatures": dev.signatures,
        **provenance(device),
        "config": config.plain(portable),
    }


def _course(folder: Path) -> Result:
    """Return figures of the training: updates, speed, time, size, and where it ran."""
    ended = read_json(folder / TEST)
    records = [record for _, record in read_log(folder / LOG)]
    speeds = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
    return {
        "best_step": ended["best_step"],
        "steps": ended["steps"],
        "target_tokens": ended["target_tokens"],
        "target_tokens_per_s": round(median(speeds), 1) if speeds else None,
        "minutes": max(record["minutes"] for record in records),
        "parameters": ended["parameters"],
        "trained": {name: ended[name] for name in ("finished", "commit", "machine")},
    }


# The trainings of an ablation, one after another, shared by any number of processes.

POLL = 5.0  # seconds between checks of trainings that other processes run


class Begun(Protocol):
    """A training that has started: `TrainingProcess`, within its block."""

    @property
    def run(self) -> Path | None:
        """Folder of the run; None: nothing was saved."""

    def validations(self) -> Iterator[dict[str, Any]]:
        """Yield the records of its validations until its end."""


Begin = Callable[[str, Sequence[str], Path, Path], AbstractContextManager[Begun]]
Score = Callable[[Path, Ablation, Alternative, int], Result]


class Work:
    """Trains and scores what has no result yet; several processes can share the work.

    Args:
        results: to complete.
        root: where the runs are.
        begin: starts a training.
        score: scores a finished run.
        poll: seconds between checks of what other processes run.
    """

    def __init__(
        self,
        results: Results,
        root: Path = PICKLES,
        begin: Begin = TrainingProcess,
        score: Score = score_run,
        poll: float = POLL,
    ) -> None:
        self._results = results
        self._ablation = results.ablation
        self._root = root
        self._begin = begin
        self._score = score
        self._poll = poll

    def finish(self) -> None:
        """Work until everything has a result, including what other processes are running now.

        A training that fails is reported and skipped, so that the night is not lost for the rest. All that translates
        with the base's weights uses those of one run: if the base is trained again, all of it is scored again.

        Raises:
            ValueError: when there are results or runs of other settings, or trainings have failed.
            KeyboardInterrupt: when it was stopped; the training has saved.
        """
        self._results.require_same(self._root)
        waiting = [training for training in self._ablation.trainings() if not self._is_done(training)]
        n_all, failures = len(self._ablation.trainings()), []
        with tqdm(total=n_all, initial=n_all - len(waiting), unit="training", dynamic_ncols=True, disable=None) as bar:
            say = Said()
            while waiting:
                busy = []
                for training in waiting:
                    try:
                        self._work_at(training, say, bar)
                    except BusyError:
                        busy.append(training)
                        continue
                    except (ValueError, OSError, RuntimeError) as error:  # a full disk or lack of memory, say
                        failures.append(_failure(training, error))
                        say(f"failed: {failures[-1]}")
                    bar.update()
                if len(busy) == len(waiting):
                    say.once(f"other processes are running {', '.join(training.name for training in busy)}")
                    time.sleep(self._poll)
                waiting = busy
        if failures:
            raise ValueError(f"{len(failures)} of {n_all} trainings failed: {'; '.join(failures)}")

    def _is_done(self, training: Training) -> bool:
        """Return whether all that translates with it has a result, with the same weights."""
        runs = {self._results.run(alternative, training.seed) for alternative in training.translating}
        return len(runs) == 1 and None not in runs

    def _work_at(self, training: Training, say: "Said", bar: "tqdm[Any]") -> None:
        """Train or resume, and score all that translates with it; do nothing if another process was faster.

        Raises:
            BusyError: when another process is running it now.
            ValueError, OSError, RuntimeError: when it failed.
        """
        home = self._root / f"ablation-{self._ablation.spec.name}"
        with self._begin(training.name, training.arguments, home, self._root) as begun:
            if self._is_done(training):
                return
            say(f"training {training.name}")
            for record in begun.validations():
                bar.set_postfix_str(f"{training.name}, step {record['step']:,}, dev BLEU {record['bleu']:.2f}")
            if begun.run is None:
                raise ValueError(f"the training {training.name} left no run: see {home / training.name}.log")
            for alternative in training.translating:
                if self._results.run(alternative, training.seed) == begun.run.name:
                    continue
                result = self._score(begun.run, self._ablation, alternative, training.seed)
                self._results.write(alternative, training.seed, result)
                say(told(alternative, result))


def _failure(training: Training, error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if training.name in line else f"{training.name}: {line}"


class Said:
    """Prints lines above a bar, or in a log."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, line: str) -> None:
        """Print a line."""
        self._last = line
        print_above_bars(line)

    def once(self, line: str) -> None:
        """Print a line unless it was also the last one."""
        if line != self._last:
            self(line)


def told(alternative: Alternative, result: Result) -> str:
    """Return a result as a line."""
    dev = f"dev BLEU {result['dev_bleu']:.2f}, chrF2 {result['dev_chrf']:.2f}"
    test = f"test BLEU {result['test_bleu']:.2f}"
    return f"{alternative}, seed {result['seed']}: {dev}; {test}; {result['minutes']:.1f} min"


# The effect of each switch of an ablation, as dots beside the base.

_COLOURS = {"better": "tab:green", "worse": "tab:red", "no difference seen": "black", "unknown": "black"}
_BASE, _BAND = "tab:blue", "#dbe6f2"
_ROW = 0.27  # inches


class Recipe(NamedTuple):
    """A row of the picture.

    Args:
        switch: heading of its group.
        label: label of the row.
        scores: one per seed.
        margin: distance of its mean from the base's above which a difference is claimed; None: unknown.
        verdict: better, worse, no difference seen, or unknown.
    """

    switch: str
    label: str
    scores: Sequence[float]
    margin: float | None
    verdict: str


def draw_ablation(base: Sequence[float], recipes: Sequence[Recipe], title: str, score: str, picture: Path) -> None:
    """Draw the base as a line, and each alternative as a dot per seed with a mark for the mean, as a PNG.

    Args:
        base: scores of the base.
        recipes: the alternatives in order, grouped by switch.
        title: title of the picture.
        score: axis label: the score and the text it is computed on.
        picture: file to write.
    """
    lines: list[tuple[str, Recipe | None]] = [("base", Recipe("", "base", base, None, "base"))]
    for switch, group in groupby(recipes, key=lambda recipe: recipe.switch):
        lines += [(switch, None), *(("", recipe) for recipe in group)]
    centre = mean(base)
    low, high = _limits(base, recipes)
    with sheet(picture, (8.5, 1.6 + _ROW * len(lines))) as (axes,):
        axes.set(xlim=(low, high), ylim=(len(lines) - 0.4, -0.6), title=title, xlabel=score)
        axes.axvline(centre, color=_BASE, lw=1)
        for y, (_, recipe) in enumerate(lines):
            if recipe is not None:
                _draw_recipe(axes, y, recipe, centre)
        axes.set_yticks(range(len(lines)), [recipe.label if recipe else switch for switch, recipe in lines])
        for tick, (_, recipe) in zip(axes.get_yticklabels(), lines, strict=True):
            if recipe is None:  # in the only font available in bold
                tick.set(weight="bold", family="DejaVu Sans")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.figure.legend(handles=_legend(recipes), loc="outside lower center", ncols=3, frameon=False)


def _draw_recipe(axes: Axes, y: int, recipe: Recipe, centre: float) -> None:
    colour = _COLOURS.get(recipe.verdict, _BASE)
    if recipe.margin is not None:
        axes.barh(y, 2 * recipe.margin, left=centre - recipe.margin, height=1.0, color=_BAND, zorder=0)
    low, high = axes.get_xlim()
    middle = mean(recipe.scores)
    number = f"{middle:.2f}" if recipe.verdict == "base" else f"{middle - centre:+z.2f}"
    axes.text(1.01, y, number, color=colour, va="center", fontsize=8, transform=axes.get_yaxis_transform())
    if middle < low or middle > high:  # an arrow in its direction
        inset = 0.012 * (high - low)
        edge, marker = (low + inset, "<") if middle < low else (high - inset, ">")
        axes.plot([edge], [y], marker, color=colour, ms=7, zorder=4)
        return
    axes.plot(recipe.scores, [y] * len(recipe.scores), "o", mfc="none", mec=colour, ms=5, zorder=3)
    axes.plot([middle], [y], "|", color=colour, ms=13, mew=2.5, zorder=4)


def _limits(base: Sequence[float], recipes: Sequence[Recipe]) -> tuple[float, float]:
    """Return the limits of the scale: wide enough for nearly all; far outliers would leave the rest no room."""
    centre = mean(base)
    margins = [recipe.margin for recipe in recipes if recipe.margin is not None]
    distances = [abs(mean(recipe.scores) - centre) for recipe in recipes]
    usual = quantiles(distances, n=4, method="inclusive")[2] if len(distances) > 1 else max(distances, default=0.0)
    reach = max(4 * usual, *margins, 0.0)
    near = [recipe for recipe, distance in zip(recipes, distances, strict=True) if distance <= reach]
    ends = [*base, *(score for recipe in near for score in recipe.scores)]
    ends += [centre + sign * margin for margin in margins for sign in (-1, 1)]
    room = 0.04 * (max(ends) - min(ends)) or 1.0
    return min(ends) - room, max(ends) + room


def _legend(recipes: Sequence[Recipe]) -> list[Line2D | Patch]:
    seen = [verdict for verdict in _COLOURS if any(recipe.verdict == verdict for recipe in recipes)]
    return [
        Line2D([], [], ls="", marker="o", mfc="none", mec="black", ms=5, label="a seed"),
        Line2D([], [], color=_BASE, lw=1, label="the base"),
        Patch(color=_BAND, label="no difference is claimed"),
        *(Line2D([], [], ls="", marker="|", ms=13, mew=2.5, color=_COLOURS[v], label=f"mean: {v}") for v in seen),
    ]


# The table of an ablation, its picture and their explanation, made from the result files alone.

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
