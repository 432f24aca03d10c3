"""An ablation: a base and alternatives to it, one switch turned at a time, each trained with several seeds.

Whether an alternative differs from the base by more than seeds do is Fisher's least significant difference (1935, §24):
the standard deviation of scores around the mean of their alternative, pooled over all that were trained,

    s² = Σᵢ Σⱼ (yᵢⱼ - ȳᵢ)² / Σᵢ (nᵢ - 1)

gives the difference of two means a standard error of s √(1/n + 1/m). A difference is claimed beyond t of them
(Student's t at Σᵢ (nᵢ - 1) degrees of freedom): where there is none, one in twenty is claimed nevertheless.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from tqdm import tqdm

from config.reader import ABSENT, changed_settings, flat
from config.search import SearchConfig
from const.path import PICKLES
from utils.arguments import as_text
from utils.command import duration, page_template, print_above_bars
from utils.config import LanguageConfig, RunConfig, TranslationConfig
from utils.dataset.corpus import prepare_corpus
from utils.dataset.text import read_parallel
from utils.device import pick_device
from utils.evaluation.validation import translation_scores
from utils.experiment.trial import POLL, TrialConfig, mistakes_in, run_named, training_process
from utils.file import BusyError, read_json, write_json, write_text
from utils.load import load_run
from utils.provenance import portable, provenance
from utils.run import TEST, read_config
from utils.training.report import LOG, SCORES, read_log
from utils.visualize.curve import sheet

# P(|t| > point) = 5 %, by degrees of freedom
_POINTS = {
    **dict(enumerate((12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23), 1)),
    **{20: 2.09, 30: 2.04, 60: 2.00, 120: 1.98},
}

Result = dict[str, Any]  # scores of an alternative with one seed, as JSON has them


def margin(groups: Sequence[Sequence[float]], n: int, m: int) -> float | None:
    """Return beyond which difference of means over n and m seeds a claim is made; None: one seed shows no spread.

    Args:
        groups: the scores of each alternative, whose spread around its own mean is pooled.
    """
    freedom = sum(len(group) - 1 for group in groups if group)
    if not freedom:
        return None
    squares = sum((score - mean(group)) ** 2 for group in groups for score in group)
    t = _POINTS[max(listed for listed in _POINTS if listed <= freedom)]  # slightly more between those listed
    return t * math.sqrt(squares / freedom * (1 / n + 1 / m))


@dataclass(frozen=True, eq=False)  # compared by identity, so that it may be a key
class Alternative:
    """The base, whose switch has no name, or an alternative to it."""

    switch: str
    label: str  # what the switch is turned to
    options: dict[str, Any]  # in which it differs from the base
    config: Any  # all settings of a run with these options, without a name or a particular seed

    @property
    def slug(self) -> str:
        """Short name for files and folders."""
        return re.sub(r"[^a-z0-9.]+", "-", str(self).lower()).strip("-")

    def __str__(self) -> str:
        """Return the name to show."""
        return f"{self.switch} {self.label}".strip()

    @property
    def trained_as(self) -> RunConfig:
        """Its settings without those of a search, which weights do not depend on."""
        is_translator = isinstance(self.config, TranslationConfig)
        return replace(self.config, search=SearchConfig()) if is_translator else self.config

    def config_with(self, seed: int, name: str = "") -> Any:
        """Return all settings of a training with a seed."""
        return replace(self.config, name=name, training=replace(self.config.training, seed=seed))

    def changes(self, base: "Alternative") -> dict[str, tuple[Any, Any]]:
        """Return the settings in which it differs from the base, with the base's value and its own."""
        return differences(base.config.plain(portable), self.config.plain(portable))


@dataclass(frozen=True, kw_only=True)
class AblationConfig(TrialConfig):
    """The contents of a study file with `switches`."""

    seeds: list[int]  # each alternative is trained once with each of them
    switches: dict[str, dict[str, dict[str, Any]]]  # title -> label of an alternative -> options, unlike the base's

    @cached_property
    def alternatives(self) -> list[Alternative]:
        """The base, followed by all alternatives to it."""
        alternatives = []
        for switch, by_label in {"": {"base": dict[str, Any]()}, **self.switches}.items():
            for label, options in by_label.items():
                with mistakes_in(f"{switch} {label}".strip()):
                    self.refuse({**self.options, **options}, {"training.seed": "seeds"})
                    config = self.settings(options)
                    if isinstance(config, LanguageConfig):
                        raise ValueError(
                            f"{self.preset} is of task {config.task}: an ablation compares BLEU or accuracy"
                        )
                    if config.checkpoint.average_last and not isinstance(config, TranslationConfig):
                        raise ValueError("scores on dev are those before averaging: give checkpoint.average_last: 0")
                    alternatives.append(Alternative(switch, label, options, replace(config, name="")))
        return alternatives

    def check(self) -> None:
        """Refuse, before the first training, every option that train.py would refuse."""
        super().check()
        if not self.seeds or len({*self.seeds}) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds={self.seeds}: give each seed once, 0 or more; at least two to know the spread")
        base, *others = self.alternatives
        slugs = [alternative.slug for alternative in self.alternatives]
        for other in others:
            if not re.search("[a-z0-9]", other.slug) or slugs.count(other.slug) > 1:
                raise ValueError(f"{other} has the same short name as another, or none ({other.slug}): rename it")
            if not other.changes(base):
                raise ValueError(f"{other} does not differ from the base: change or remove it")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of the settings that differ, except the name; those that only one has are newer: ignored."""
    changed = changed_settings(before, now)
    return {key: pair for key, pair in changed.items() if key != "name" and ABSENT not in pair}


def _refuse_other(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if changed := differences(saved, wanted):
        told = ", ".join(f"{key} is {old}, not {new}" for key, (old, new) in list(changed.items())[:3])
        raise ValueError(f"{path} is of other settings ({told}): remove it, or restore its settings")


# The trainings and their results.


class Training(NamedTuple):
    """A training, and all alternatives that translate with its weights; the first is the one that is trained."""

    name: str
    seed: int
    translating: Sequence[Alternative]


class Row(NamedTuple):
    """An alternative, its result with each seed, and its difference from the base."""

    alternative: Alternative
    results: Sequence[Result]
    difference: float  # its mean dev score minus the base's: nothing is chosen on test
    margin: float | None  # beyond which a difference is claimed; None: unknown

    @property
    def verdict(self) -> str:
        """What can be claimed."""
        if self.margin is None:
            return "unknown"
        if abs(self.difference) <= self.margin:
            return "no difference seen"
        return "better" if self.difference > 0 else "worse"

    def values(self, name: str = "") -> list[float]:
        """Return one figure for all seeds, by default the score on dev text."""
        return [result[name or f"dev_{score_name(result)}"] for result in self.results]

    def shown(self, name: str = "") -> str:
        """Return its mean and, for several seeds, its standard deviation."""
        values = self.values(name)
        return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


class Ablation:
    """The trainings of an ablation, shared by any number of processes, and a file of results for each in a folder."""

    def __init__(self, config: AblationConfig, folder: Path, root: Path = PICKLES) -> None:
        self.config, self.folder, self._root = config, folder, root
        self.base, *_ = self.alternatives = config.alternatives
        sharing: dict[RunConfig, list[Alternative]] = {}  # weights: those that differ only in their search
        for alternative in self.alternatives:
            sharing.setdefault(alternative.trained_as, []).append(alternative)
        self.trainings = [  # everything with the first seed, then with the second, and so on
            Training(f"{config.name}-{group[0].slug}-{seed}", seed, group)
            for seed in config.seeds
            for group in sharing.values()
        ]

    def file(self, alternative: Alternative, seed: int) -> Path:
        """Return the path of a result, whether it exists or not."""
        return self.folder / f"{alternative.slug}-{seed}.json"

    def result(self, alternative: Alternative, seed: int) -> Result | None:
        """Return the result of an alternative with a seed, if there is one; refuse one of other settings."""
        file = self.file(alternative, seed)
        if not file.is_file():
            return None
        result = read_json(file)
        if not isinstance(result, dict) or not isinstance(result.get("config"), dict) or "run" not in result:
            raise ValueError(f"{file} is damaged (run or config is missing): remove it")
        # settings newer than the result had their defaults then
        wanted = alternative.config_with(seed)
        default = TranslationConfig().plain(portable) if isinstance(wanted, TranslationConfig) else {}
        _refuse_other(file, flat(default) | flat(result["config"]), flat(wanted.plain(portable)))
        return result

    def missing(self, training: Training) -> list[Alternative]:
        """Return what translates with a training and has no result yet."""
        return [alternative for alternative in training.translating if self.result(alternative, training.seed) is None]

    def train(self) -> None:
        """Train and score until everything has a result, including what other processes are running now.

        A training that fails is reported and skipped, so that the night is not lost for the rest. Runs and results of
        other settings are refused before anything is trained.
        """
        waiting, failures = [training for training in self.trainings if self.missing(training)], list[str]()
        for training in waiting:
            if (run := run_named(training.name, self._root)) is not None:
                wanted = training.translating[0].config_with(training.seed).plain(portable)
                saved = read_config(run, RunConfig).plain(portable) | {"search": wanted.get("search")}
                if wanted["training"]["precision"] == "auto":  # a run has the one that was chosen
                    saved["training"]["precision"] = "auto"
                _refuse_other(run, saved, wanted)
        n_all = len(self.trainings)
        with tqdm(total=n_all, initial=n_all - len(waiting), unit="training", dynamic_ncols=True, disable=None) as bar:
            while waiting:
                training = waiting.pop(0)
                try:
                    self._train(training, bar)
                except BusyError:
                    waiting.append(training)
                    bar.set_postfix_str("waiting for other processes")
                    time.sleep(POLL)
                    continue
                except (ValueError, OSError, RuntimeError) as error:  # a full disk or lack of memory, say
                    failures.append(" ".join(f"{training.name}: {error}".split()))
                    print_above_bars(f"failed: {failures[-1]}")
                bar.update()
        if failures:
            raise ValueError(f"{len(failures)} of {n_all} trainings failed: {'; '.join(failures)}")

    def _train(self, training: Training, bar: "tqdm[Any]") -> None:
        """Train or resume, and score all that translates with it; do nothing if another process was faster."""
        arguments = self.config.arguments(training.translating[0].options | {"training.seed": training.seed})
        home = self._root / f"ablation-{self.config.name}"
        with training_process(training.name, arguments, home, self._root) as process:
            if not self.missing(training):
                return
            print_above_bars(f"training {training.name}")
            for record in process.validations():
                score = next(f"{SCORES[name]} {record[name]:.2f}" for name in _SCORES if name in record)
                bar.set_postfix_str(f"{training.name}, step {record['step']:,}, dev {score}")
            if process.run is None:
                raise ValueError(f"it left no run: see {process.output}")
            for alternative in self.missing(training):
                result = score_run(process.run, self, training, alternative)
                write_json(self.file(alternative, training.seed), result)
                name = score_name(result)
                scores = (f"{split} {SCORES[name]} {result[f'{split}_{name}']:.2f}" for split in ("dev", "test"))
                where = f"{alternative}, seed {training.seed}"
                print_above_bars(f"{where}: {', '.join(scores)}; {result['minutes']:.1f} min")

    def rows(self) -> list[Row]:
        """Compare all alternatives that have results with the base, which comes first."""
        results = {
            alternative: [r for seed in self.config.seeds if (r := self.result(alternative, seed)) is not None]
            for alternative in self.alternatives
        }
        if not results[self.base]:
            raise ValueError(f"no result of the base in {self.folder}: train it, without --report")
        name = f"dev_{score_name(results[self.base][0])}"
        scores = {alternative: [r[name] for r in its_results] for alternative, its_results in results.items()}
        trained, base = dict.fromkeys(training.translating[0] for training in self.trainings), scores[self.base]
        groups = [scores[alternative] for alternative in trained]
        return [
            Row(alternative, results[alternative], mean(own) - mean(base), margin(groups, len(own), len(base)))
            for alternative, own in scores.items()
            if own
        ]


_SCORES = ("bleu", "accuracy")


def score_name(result: Mapping[str, Any]) -> str:
    """Return what a result is compared by: bleu, or accuracy for what does not translate."""
    return next(name for name in _SCORES if f"dev_{name}" in result)


def score_run(folder: Path, ablation: Ablation, training: Training, alternative: Alternative) -> Result:
    """Translate dev and test set with a finished run and the search of an alternative, and score both.

    What does not translate has been scored already: on dev text when its best weights were found, on test at its end.
    """
    config = alternative.config_with(training.seed, training.name)
    device = pick_device(config.training.device)
    scores, signatures, test = dict[str, float](), dict[str, str](), read_json(folder / TEST)
    log = [record for _, record in read_log(folder / LOG)]
    if isinstance(config, TranslationConfig):
        translator, corpus = load_run(folder, device).translator(config.search), prepare_corpus(config.data)
        text = f"{corpus.name}, {'-'.join(corpus.data.languages)}"
        for split in ("dev", "test"):
            scored = translation_scores(translator, read_parallel(getattr(corpus, split)), corpus)
            scores |= {f"{split}_{name}": score for name, score in scored.scores.items()}
            signatures |= scored.signatures
    else:
        text = test["text"]
        (best,) = (record for record in log if (record["kind"], record["step"]) == ("dev", test["best_step"]))
        for split, record in (("dev", best), ("test", test)):
            scores |= {f"{split}_{name}": record[name] for name in ("accuracy", "perplexity")}
    return {
        "ablation": ablation.config.name,
        "switch": alternative.switch,
        "alternative": alternative.label,
        "seed": training.seed,
        "text": text,
        **scores,
        "signatures": signatures,
        **{name: test[name] for name in ("best_step", "steps", "target_tokens", "parameters")},
        "minutes": max(record["minutes"] for record in log),
        "trained": {name: test[name] for name in ("finished", "commit", "machine")},
        "run": folder.name,
        "difference": {key: list(pair) for key, pair in alternative.changes(ablation.base).items()},
        **provenance(device),
        "config": config.plain(portable),
    }


# The table and the picture, made from the results alone.


def page(ablation: Ablation, rows: Sequence[Row], command: str, picture: str) -> str:
    """Return the table in Markdown, with how it was made: by which command, beside which picture."""
    results = [result for row in rows for result in row.results]
    return page_template(Path(__file__).with_name("ablation.md")).render(
        ablation=ablation,
        rows=rows,
        results=results,
        signatures={signature for result in results for signature in result["signatures"].values()},
        score=score_name(results[0]),
        command=command,
        picture=picture,
        text=as_text,
        duration=duration,
    )


def draw(rows: Sequence[Row], name: str, picture: Path) -> None:
    """Draw each alternative as a dot per seed, and a bar for its mean and the margin, as a PNG."""
    colours = {"better": "tab:green", "worse": "tab:red"}
    with sheet(picture, (8.5, 1.6 + 0.27 * len(rows))) as (axes,):
        axes.axvline(mean(rows[0].values()), lw=1, label="the base")
        for y, row in enumerate(rows):
            colour = colours.get(row.verdict, "black")
            axes.plot(row.values(), [y] * len(row.results), "o", mfc="none", mec=colour, ms=5)
            axes.errorbar(mean(row.values()), y, xerr=row.margin, fmt="|", color=colour, ms=13, lw=0.8)
        axes.set_yticks(range(len(rows)), [str(row.alternative) for row in rows])
        title = f"{name}: one switch at a time; a dot: a seed; a bar: mean ± margin"
        axes.set_title(title, loc="right")  # in the middle of the axes it may not fit beside long names
        first = rows[0].results[0]
        axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=f"dev {SCORES[score_name(first)]} ({first['text']})")
        axes.grid(axis="x", alpha=0.3)


def write_page(ablation: Ablation, folder: Path, command: str) -> list[Path]:
    """Write the table and the picture in both languages, and return where they are."""
    rows = ablation.rows()
    table, picture, japanese = (folder / f"ablation_{ablation.config.name}.{kind}" for kind in ("md", "png", "ja.png"))
    for file in (picture, japanese):
        draw(rows, ablation.config.name, file)
    write_text(table, page(ablation, rows, command, picture.name))
    return [table, picture, japanese]
