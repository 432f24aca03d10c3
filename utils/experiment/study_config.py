"""A study file: which training is repeated, what is changed in it, and how the next values are chosen."""

import re
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
from utils.config import AnyConfig
from utils.experiment.search_space import Domain, each_end, read_domain, unknown_key
from utils.experiment.strict_yaml import read_yaml
from utils.experiment.train_options import as_options, as_text, found_preset, settings
from utils.training.plan import Criterion


@dataclass(frozen=True)
class SamplerConfig:
    """How the next values are chosen: where good trials were, by TPE (Bergstra et al. 2011).

    Args:
        startup_trials: drawn at random before it looks.
    """

    startup_trials: int = 10

    def build(self, seed: int) -> BaseSampler:
        """The same in Optuna's words."""
        return TPESampler(n_startup_trials=self.startup_trials, seed=seed)


@dataclass(frozen=True)
class PrunerConfig:
    """When a training is given up.

    Args:
        kind: median gives up a training whose best score so far is worse than the median of those that complete ones
            had at that update; none gives up nothing.
        startup_trials: that are complete before it compares.
        warmup_steps: updates before which none is given up.
    """

    kind: Literal["median", "none"] = "median"
    startup_trials: int = 5
    warmup_steps: int = 0

    def build(self) -> BasePruner:
        """The same in Optuna's words."""
        if self.kind == "median":
            return MedianPruner(n_startup_trials=self.startup_trials, n_warmup_steps=self.warmup_steps)
        return NopPruner()


@dataclass(frozen=True)
class StudyConfig:
    """What a study file says; a key without a value is as good as none.

    Args:
        name: of the study; its folder is pickles/<name>-study.
        preset: settings that all trials have, from here or from the project's folder.
        space: options of train.py, and what may be drawn for each.
        options: of train.py, in place of the preset's.
        sampler: how the next values are chosen.
        pruner: when a training is given up.
        score: of dev text, that is to be best; null: the preset's training.select_by.
        seed: of what is drawn.
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
        """Read a study file, and have train.py's own parser look at every option and every end of a range.

        Raises:
            ValueError: no such file, or something in it is not understood.
        """
        if not path.is_file():
            raise ValueError(f"no study {path}: give a YAML file, const/study/demo.yaml say")
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
                raise ValueError(f"{group} is a group of settings, not {as_text(settings_of)}: give them below it")
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
        """Refuse what train.py would refuse, before the first trial begins.

        Raises:
            ValueError: one line.
        """
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name={self.name}: give letters, digits, - and _, for folders are named after it")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")
        for option in (*self.options, *self.space):
            if "." not in option:
                raise ValueError(f"{option} is no setting of a training: give those with a dot, training.max_steps say")
            if option == "training.select_by":
                raise ValueError(f"{option} is what trials are compared by: give score")
            if option in self.options and option in self.space:
                raise ValueError(f"{option} is under options and under space: leave one of them out")
        self.settings()
        for option, end in each_end(self.space):
            try:
                self.settings({option: end})
            except ValueError as error:
                raise ValueError(f"space.{option}, {as_text(end)}: {error}") from error
        if self.minimised and (cut := [option for option in self.space if option.startswith("tokenizer.")]):
            raise ValueError(f"the loss is one per token, and {cut[0]} changes what a token is: give score: bleu")
        if self.pruner.kind != "none" and (sizes := [option for option in self.space if option in _UPDATE]):
            raise ValueError(
                f"trainings are given up by what others were after as many updates, and {sizes[0]} changes how much "
                "an update has read: give pruner: none"
            )

    @cached_property
    def scored(self) -> str:
        """The name of the score."""
        return self.score or self.settings().training.select_by

    @property
    def minimised(self) -> bool:
        """Whether the lowest is the best."""
        return self.scored == "loss"

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Of train.py, for a trial that has drawn these values."""
        by = {} if self.score is None else {"training.select_by": self.score}
        return ["--config", str(found_preset(self.preset)), *as_options({**by, **self.options, **values})]

    def settings(self, values: Mapping[str, Any] | None = None) -> AnyConfig:
        """All settings of a trial that has drawn these values.

        Raises:
            ValueError: train.py would refuse them.
        """
        return settings(self.arguments(values or {}))

    def plain(self) -> dict[str, Any]:
        """What makes scores comparable, in types that JSON knows; another file of the same trials has the same."""
        preset = yaml.safe_load(found_preset(self.preset).read_text(encoding="utf-8"))
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
