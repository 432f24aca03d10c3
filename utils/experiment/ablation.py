"""One switch at a time: what is compared with what, read from a file of const/ablation/."""

import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from utils.changed_setting import ABSENT, changed_settings
from utils.command_line import Parser
from utils.config import Config, task_of
from utils.experiment.strict_yaml import read_yaml
from utils.experiment.train_options import as_options, found_preset, settings
from utils.provenance import portable
from utils.search.hypothesis import SearchConfig

_OURS = ("config", "task", "name", "training.seed")  # options that every training gets from here


@dataclass(frozen=True)
class AblationSpec:
    """What the file says.

    Args:
        name: of the ablation; its trainings' names begin with it.
        preset: settings of the base, as a path from here or from the project's folder.
        seeds: of which each alternative is trained once.
        switches: title of a switch, label of an alternative: the options in which it differs from the base.
        options: of the base, beside the preset's.
    """

    name: str
    preset: Path
    seeds: list[int]
    switches: dict[str, dict[str, dict[str, Any]]]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)  # each is itself alone, and may be a key
class Alternative:
    """The base, whose switch has no name, or what differs from it.

    Args:
        switch: which one is turned.
        label: what it is turned to.
        options: that say so, those of the base among them.
        config: with them, without name and of no particular seed.
    """

    switch: str
    label: str
    options: dict[str, Any]
    config: Config

    @property
    def slug(self) -> str:
        """For names of files and folders."""
        return re.sub(r"[^a-z0-9.]+", "-", f"{self.switch} {self.label}".lower()).strip("-")

    def __str__(self) -> str:
        """For people."""
        return f"{self.switch} {self.label}".strip()


class Training(NamedTuple):
    """Weights that are trained once, and all that translates with them.

    Args:
        name: of the run.
        seed: of it.
        arguments: of train.py, but for the name.
        config: that the run has then.
        translating: the alternative that is trained, and others that differ from it in their search alone.
    """

    name: str
    seed: int
    arguments: Sequence[str]
    config: Config
    translating: Sequence[Alternative]


@dataclass(frozen=True)
class Ablation:
    """A base and its alternatives, each of them trained with every seed.

    Args:
        file: that says so.
        spec: what it says.
        base: that all others are compared with.
        alternatives: in the order of the table.
    """

    file: Path
    spec: AblationSpec
    base: Alternative
    alternatives: Sequence[Alternative]

    @property
    def everything(self) -> list[Alternative]:
        """The base, and then the others."""
        return [self.base, *self.alternatives]

    def config(self, alternative: Alternative, seed: int) -> Config:
        """All settings with which it is trained, or translates."""
        owner = self.base if self.shares_weights(alternative) else alternative
        training = replace(alternative.config.training, seed=seed)
        return replace(alternative.config, name=self._training_name(owner, seed), training=training)

    def shares_weights(self, alternative: Alternative) -> bool:
        """Whether it differs from the base in its search alone, and so translates with the base's weights."""
        return alternative is not self.base and same_weights(alternative.config, self.base.config)

    def changes(self, alternative: Alternative) -> dict[str, tuple[Any, Any]]:
        """Where its settings differ from the base's: both values, the base's first."""
        return differences(self.base.config, alternative.config)

    def trainings(self) -> list[Training]:
        """All that is to be trained: the first seed of everything before the second of anything."""
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


def same_weights(one: Config, other: Config) -> bool:
    """Whether a training comes to the same weights with both: all but name and search is equal."""
    return replace(one, name="", search=SearchConfig()) == replace(other, name="", search=SearchConfig())


def differences(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """Settings of which both know and which are not equal, but for the name."""
    return plain_differences(one.plain(portable), other.plain(portable))


def plain_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The same of settings in types that JSON knows; one that only one of both has is newer than the other."""
    changed = changed_settings(one, other)
    return {key: pair for key, pair in changed.items() if key != "name" and not any(value is ABSENT for value in pair)}


def arguments(preset: Path, options: Mapping[str, Any]) -> list[str]:
    """What train.py is called with."""
    return ["--config", str(found_preset(preset)), *as_options(options)]


def read_ablation(file: Path) -> Ablation:
    """Read what is to be compared, and understand every option of every alternative as train.py would.

    Raises:
        ValueError: the file or an option in it cannot be understood, or two alternatives would be mixed up.
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
            raise ValueError(f"{file}: {alternative} has no letter that names of files have (a to z): rename it")
        if alternative.slug in slugs[:i]:
            raise ValueError(f"{file}: {alternative} has the short name of another one, {alternative.slug}: rename it")
        if not differences(base.config, alternative.config):
            raise ValueError(f"{file}: {alternative} does not differ from the base: change or remove it")
    return Ablation(file, spec, base, found)


def _read_spec(file: Path) -> AblationSpec:
    if not file.is_file():
        raise ValueError(f"no ablation {file}: give a file such as const/ablation/multi30k.yaml")
    given = read_yaml(file)
    if not isinstance(given, dict):
        known = ", ".join(leaf.name for leaf in fields(AblationSpec))
        raise ValueError(f"{file}: no settings of an ablation: give {known}")
    parser = Parser(exit_on_error=False)
    parser.add_class_arguments(AblationSpec)
    try:
        said = {key: value for key, value in given.items() if value is not None}  # `options:` and nothing else
        spec = AblationSpec(**parser.instantiate(parser.parse_object(said)))
    except ArgumentError as error:
        raise ValueError(f"{file}: {parser.explain(str(error))}") from error
    if not spec.seeds or len({*spec.seeds}) < len(spec.seeds) or min(spec.seeds) < 0:
        raise ValueError(f"{file}: seeds={spec.seeds}: give each seed once, 0 or more, two to know the spread")
    if not re.fullmatch(r"[a-z0-9_]+", spec.name):
        raise ValueError(f"{file}: name={spec.name} names files: give small letters, digits and _")
    return spec


def _alternative(file: Path, spec: AblationSpec, switch: str, label: str, options: dict[str, Any]) -> Alternative:
    together = spec.options | options
    for key in _OURS:
        if key in together:
            raise ValueError(f"{file}: {switch} {label}: {key} is given to each training: leave it out")
    try:
        config = _config(spec.preset, together)
    except ValueError as error:
        raise ValueError(f"{file}: {f'{switch} {label}'.strip()}: {error}") from error
    return Alternative(switch, label, together, config)


def _config(preset: Path, options: Mapping[str, Any]) -> Config:
    found = settings(arguments(preset, options))
    if not isinstance(found, Config):
        raise ValueError(f"{preset} is of task {task_of(type(found))}: an ablation compares translators")
    return replace(found, name="")
