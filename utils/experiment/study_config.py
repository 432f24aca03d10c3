"""A study file: which training is repeated, what varies, and how the next values are chosen."""

from argparse import ArgumentError
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, TPESampler

from utils.command_line import Parser
from utils.config import AnyConfig, find_settings
from utils.experiment.search_space import Domain, each_end, read_domain, unknown_key
from utils.experiment.train_options import as_options, as_text, settings
from utils.file import require_folder_name
from utils.strict_yaml import read_yaml
from utils.training.plan import Criterion


@dataclass(frozen=True)
class SamplerConfig:
    """How the next values are chosen: near those of good trials, by TPE (Bergstra et al. 2011).

    Args:
        startup_trials: number of trials that are drawn at random first.
    """

    startup_trials: int = 10

    def build(self, seed: int) -> BaseSampler:
        """Build the Optuna sampler."""
        return TPESampler(n_startup_trials=self.startup_trials, seed=seed)


@dataclass(frozen=True)
class PrunerConfig:
    """When a training is pruned, that is, given up early.

    Args:
        kind: median prunes a training whose best score so far is worse than the median score of complete trials at
            that update; none prunes nothing.
        startup_trials: number of complete trials before pruning starts.
        warmup_steps: updates of each training before it may be pruned.
    """

    kind: Literal["median", "none"] = "median"
    startup_trials: int = 5
    warmup_steps: int = 0

    def build(self) -> BasePruner:
        """Build the Optuna pruner."""
        if self.kind == "median":
            return MedianPruner(n_startup_trials=self.startup_trials, n_warmup_steps=self.warmup_steps)
        return NopPruner()


@dataclass(frozen=True)
class StudyConfig:
    """The contents of a study file; a key without a value counts as absent.

    Args:
        name: of the study; its folder is pickles/<name>-study.
        preset: settings shared by all trials, as a path relative to the working directory or the project's folder.
        space: options of train.py, with the values that may be drawn for each.
        options: of train.py, overriding the preset's.
        sampler: how the next values are chosen.
        pruner: when a training is given up early.
        score: dev score to optimise; null: the preset's training.select_by.
        seed: for drawing values.
    """

    name: str
    preset: Path
    space: Mapping[str, Domain]
    options: dict[str, Any] = field(default_factory=dict)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    pruner: PrunerConfig = field(default_factory=PrunerConfig)
    score: Criterion | None = None
    seed: int = 1

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a study file, and check every option and every end of a range with train.py's own parser.

        Raises:
            ValueError: when there is no such file, or it is invalid.
        """
        if not path.is_file():
            raise ValueError(f"no study {path}: give a YAML file such as const/study/demo.yaml")
        given = read_yaml(path)
        try:
            study = cls._read(given)
            study.check()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return study

    @classmethod
    def _read(cls, given: Any) -> Self:
        known = [leaf.name for leaf in fields(cls)]
        if not isinstance(given, dict):
            raise ValueError(f"no settings of a study: give {', '.join(known)}")
        for key in given:
            if key not in known:
                raise ValueError(unknown_key(key, known))
        given = {key: value for key, value in given.items() if value is not None}
        if isinstance(kind := given.get("pruner"), str):
            given["pruner"] = {"kind": kind}
        for group in ("sampler", "pruner"):
            if not isinstance(settings_of := given.get(group, {}), dict):
                raise ValueError(f"{group} is a group of settings, not {as_text(settings_of)}: give settings below it")
            for key, value in settings_of.items():
                if value is None:
                    raise ValueError(f"{group}.{key} cannot be null: give it a value, or leave it out")
        space = given.get("space")
        if not isinstance(space, dict) or not space:
            raise ValueError("a study without a space: name at least one option, with its range or choices")
        domains = {option: _domain_of(option, domain) for option, domain in space.items()}
        parser = Parser(exit_on_error=False)
        parser.add_class_arguments(cls, skip={"space"})
        try:
            parsed = parser.instantiate(parser.parse_object({key: given[key] for key in given if key != "space"}))
        except ArgumentError as error:
            raise ValueError(parser.explain(str(error))) from error
        return cls(**(vars(parsed) | {"space": domains}))

    def check(self) -> None:
        """Refuse what train.py would refuse, before the first trial starts.

        Raises:
            ValueError: when anything is invalid; one line.
        """
        require_folder_name(self.name)
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")
        for option in (*self.options, *self.space):
            if "." not in option:
                raise ValueError(
                    f"{option} is not a setting of a training: give those with a dot, such as training.max_steps"
                )
            if option == "training.select_by":
                raise ValueError(f"{option} decides how trials are compared: give score instead")
            if option in self.options and option in self.space:
                raise ValueError(f"{option} is under options and under space: leave one of them out")
        self.settings()
        for option, end in each_end(self.space):
            try:
                self.settings({option: end})
            except ValueError as error:
                raise ValueError(f"space.{option}, {as_text(end)}: {error}") from error
        if self.minimised and (cut := [option for option in self.space if option.startswith("tokenizer.")]):
            raise ValueError(f"the loss is per token, and {cut[0]} changes what a token is: give score: bleu")
        if self.pruner.kind != "none" and (sizes := [option for option in self.space if option in _UPDATE]):
            raise ValueError(
                f"trainings are pruned by comparing scores after the same number of updates, and {sizes[0]} changes "
                "the size of an update: give pruner: none"
            )

    @cached_property
    def scored(self) -> str:
        """The name of the score."""
        return self.score or self.settings().training.select_by

    @property
    def minimised(self) -> bool:
        """Whether a lower score is better."""
        return self.scored == "loss"

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Return the arguments of train.py for a trial that has drawn these values."""
        by = {} if self.score is None else {"training.select_by": self.score}
        return ["--config", str(find_settings(self.preset)), *as_options({**by, **self.options, **values})]

    def settings(self, values: Mapping[str, Any] | None = None) -> AnyConfig:
        """Return all settings of a trial that has drawn these values.

        Raises:
            ValueError: when train.py would refuse them.
        """
        return settings(self.arguments(values or {}))

    def plain(self) -> dict[str, Any]:
        """Return what makes scores comparable, in JSON types; study files with equal ones can share trials."""
        preset = yaml.safe_load(find_settings(self.preset).read_text(encoding="utf-8"))
        space = {option: vars(domain) for option, domain in self.space.items()}
        return {"preset": preset, "options": self.options, "space": space, "score": self.scored}


_UPDATE = {
    f"batch.{name}" for name in ("tokens_per_batch", "sentences_per_batch", "accumulate", "n_streams", "segment_length")
}


def _domain_of(option: object, given: Any) -> Domain:
    try:
        return read_domain(given)
    except ValueError as error:
        raise ValueError(f"space.{option}: {error}") from error
