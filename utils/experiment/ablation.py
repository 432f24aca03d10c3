"""One switch at a time: what is compared with what, read from a file in const/ablation/."""

import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from utils.changed_setting import ABSENT, changed_settings
from utils.command_line import Parser
from utils.config import TranslationConfig, find_settings, task_of
from utils.experiment.train_options import as_options, settings
from utils.provenance import portable
from utils.search.hypothesis import SearchConfig
from utils.strict_yaml import read_yaml

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
