"""One tree of settings for a run, each leaf declared beside its owner; read from YAML and the command line."""

import dataclasses
from argparse import ArgumentError
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import yaml
from jsonargparse import ArgumentParser, Namespace

from models.transformer import TransformerConfig
from utils.command_line import Parser
from utils.dataset.batch import BatchConfig
from utils.dataset.corpus import DataConfig
from utils.file import atomic_file
from utils.search.hypothesis import SearchConfig
from utils.text.pair import TokenizerConfig
from utils.training.checkpoint_store import CheckpointConfig
from utils.training.optimizer import OptimizerConfig
from utils.training.plan import TrainingConfig


@dataclass(frozen=True)
class Config:
    """All settings of a run.

    Args:
        name: of the run; its folder is pickles/<name>-<date>-<time>.
        data: which texts.
        tokenizer: how they are cut.
        model: the architecture.
        batch: how pairs become batches.
        optimizer: how weights move.
        training: for how long, and how it is watched.
        checkpoint: what a training leaves on disk.
        search: how translations are looked for when the run is tested and used (validation is greedy).
    """

    name: str = "kftt_ja_en"
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: TransformerConfig = field(default_factory=TransformerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def save(self, path: Path) -> None:
        """Write the resolved tree as YAML."""
        with atomic_file(path) as draft:
            draft.write_text(yaml.safe_dump(_plain(dataclasses.asdict(self)), sort_keys=False, allow_unicode=True))

    @classmethod
    def load(cls, path: Path) -> "Config":
        """Read what `save` wrote, or a preset.

        Raises:
            ValueError: no such file, or an unknown or ill-typed key.
        """
        if not path.is_file():
            raise ValueError(f"no settings {path}: give the folder of a run, or a preset")
        parser = Parser(exit_on_error=False)
        add_config(parser)
        try:
            return to_config(parser, parser.parse_path(path))
        except ArgumentError as error:
            raise ValueError(f"{path}: {parser.explain(str(error))}") from error


def _plain(value: Any) -> Any:
    """The same in types that YAML knows."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _require_values(owner: type, arguments: Namespace, above: str = "") -> None:
    """What jsonargparse lets pass: a null anywhere, and a bare value in place of a group."""
    for leaf in dataclasses.fields(owner):
        value, key = arguments[leaf.name], above + leaf.name
        if isinstance(leaf.type, type) and dataclasses.is_dataclass(leaf.type):
            if not isinstance(value, Namespace):
                raise ValueError(f"{key} is a group of settings, not {value}: give them below it, or leave it out")
            _require_values(leaf.type, value, f"{key}.")
        elif value is None and NoneType not in get_args(leaf.type):
            raise ValueError(f"{key} cannot be null: give it a value, or leave it out")


def add_config(parser: ArgumentParser) -> None:
    """Give a parser an option for every leaf of the tree."""
    parser.add_class_arguments(Config)


def to_config(parser: ArgumentParser, arguments: Namespace) -> Config:
    """The tree from parsed arguments; what else was parsed is left aside.

    Raises:
        ValueError: null or a value stands where something else belongs, or one that its owner refuses.
    """
    _require_values(Config, arguments)
    ready = parser.instantiate(arguments)
    return Config(**{leaf.name: ready[leaf.name] for leaf in dataclasses.fields(Config)})
