"""A tree of settings for each task, each leaf declared beside its owner; read from YAML and the command line."""

import dataclasses
from argparse import ArgumentError
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, TypeVar, get_args

import yaml
from jsonargparse import ArgumentParser, Namespace

from models.bert import BertConfig, ClassifierConfig
from models.transformer import TransformerConfig
from models.transformer_xl import TransformerXLConfig
from utils.command_line import Parser
from utils.dataset.batch import BatchConfig
from utils.dataset.corpus import DataConfig
from utils.dataset.labelled import LabelledConfig
from utils.dataset.masked import MaskingConfig
from utils.dataset.monolingual import MonolingualConfig
from utils.dataset.stream import StreamConfig
from utils.file import write_text
from utils.search.hypothesis import SearchConfig
from utils.text.pair import TokenizerConfig
from utils.training.checkpoint_store import CheckpointConfig
from utils.training.optimizer import OptimizerConfig
from utils.training.plan import PlanConfig, TrainingConfig

TreeT = TypeVar("TreeT", bound="Tree")


@dataclass(frozen=True)
class Tree:
    """What the settings of all tasks have in common."""

    def save(self, path: Path) -> None:
        """Write the resolved tree as YAML."""
        write_text(path, yaml.safe_dump(self.plain(), sort_keys=False, allow_unicode=True))

    def plain(self, written: Callable[[Path], str] = str) -> dict[str, Any]:
        """All settings in types that YAML and JSON know, paths as they are to be written."""
        return _plain(dataclasses.asdict(self), written)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote, or a preset.

        Raises:
            ValueError: no such file, of another task, or an unknown or ill-typed key.
        """
        if not path.is_file():
            raise ValueError(f"no settings {path}: give the folder of a run, or a preset")
        tree = tree_of(path)
        if not issubclass(tree, cls):
            raise ValueError(f"{path} is of task {task_of(tree)}, and here {task_of(cls)} is needed")
        parser = Parser(exit_on_error=False)
        add_config(parser, tree)
        try:
            return to_config(parser, parser.parse_path(path), tree)
        except ArgumentError as error:
            raise ValueError(f"{path}: {parser.explain(str(error))}") from error


@dataclass(frozen=True)
class Config(Tree):
    """All settings of a translator's run.

    Args:
        task: what is learned.
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

    task: Literal["translation"] = "translation"
    name: str = "kftt_ja_en"
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: TransformerConfig = field(default_factory=TransformerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass(frozen=True)
class MaskedLanguageConfig(Tree):
    """All settings of a BERT's run.

    Args:
        task: what is learned.
        name: of the run.
        data: which text.
        tokenizer: how it is cut.
        masking: what is hidden of it.
        model: the architecture.
        batch: how sentences become batches.
        optimizer: how weights move.
        training: for how long, and how it is watched.
        checkpoint: what a training leaves on disk.
    """

    task: Literal["masked_language"] = "masked_language"
    name: str = "bert"
    data: MonolingualConfig = field(default_factory=MonolingualConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    model: BertConfig = field(default_factory=BertConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: PlanConfig = field(default_factory=PlanConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass(frozen=True)
class LanguageConfig(Tree):
    """All settings of a Transformer-XL's run.

    Args:
        task: what is learned.
        name: of the run.
        data: which text.
        tokenizer: how it is cut.
        model: the architecture.
        batch: how documents become streams.
        optimizer: how weights move.
        training: for how long, and how it is watched.
        checkpoint: what a training leaves on disk.
    """

    task: Literal["language"] = "language"
    name: str = "transformer_xl"
    data: MonolingualConfig = field(default_factory=MonolingualConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: TransformerXLConfig = field(default_factory=TransformerXLConfig)
    batch: StreamConfig = field(default_factory=StreamConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: PlanConfig = field(default_factory=PlanConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass(frozen=True)
class ClassificationConfig(Tree):
    """All settings of a classifier's run.

    Args:
        task: what is learned.
        name: of the run.
        data: which texts, and their labels.
        tokenizer: how texts are cut, where no BERT's run says it.
        model: the architecture, where no BERT's run says it.
        batch: how texts become batches.
        optimizer: how weights move.
        training: for how long, and how it is watched.
        checkpoint: what a training leaves on disk.
    """

    task: Literal["classification"] = "classification"
    name: str = "classifier"
    data: LabelledConfig = field(kw_only=True)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ClassifierConfig = field(default_factory=ClassifierConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: PlanConfig = field(default_factory=PlanConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


AnyConfig = Config | MaskedLanguageConfig | LanguageConfig | ClassificationConfig
TREES: dict[str, type[AnyConfig]] = {
    "translation": Config,
    "masked_language": MaskedLanguageConfig,
    "language": LanguageConfig,
    "classification": ClassificationConfig,
}


def task_of(tree: type[Tree]) -> str:
    """The name of the task that these are the settings of."""
    return next((task for task, known in TREES.items() if known is tree), "any")


def tree_of(path: Path) -> type[AnyConfig]:
    """What the settings in a file are settings of; of translation where it does not say, or cannot be read.

    Raises:
        ValueError: an unknown task.
    """
    task = _read(path).get("task", "translation")
    if not isinstance(task, str) or task not in TREES:
        raise ValueError(f"{path}: task={task} is none of {', '.join(TREES)}")
    return TREES[task]


def names_corpus(path: Path) -> bool:
    """Whether the settings in a file say of which corpus they are."""
    data = _read(path).get("data")
    return isinstance(data, dict) and "corpus" in data


def _read(path: Path) -> dict[str, Any]:
    """What stands in a file; nothing where it cannot be read: the parser that is given it says what is wrong."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _plain(value: Any, written: Callable[[Path], str]) -> Any:
    """The same in types that YAML and JSON know."""
    if isinstance(value, dict):
        return {key: _plain(item, written) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, written) for item in value]
    return written(value) if isinstance(value, Path) else value


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
        elif isinstance(value, Namespace):  # a group that may be null, and is not
            (group,) = (kind for kind in get_args(leaf.type) if kind is not NoneType)
            _require_values(group, value, f"{key}.")


def add_config(parser: ArgumentParser, tree: type[Tree] = Config) -> None:
    """Give a parser an option for every leaf of a tree."""
    parser.add_class_arguments(tree)


def to_config(parser: ArgumentParser, arguments: Namespace, tree: type[TreeT]) -> TreeT:
    """The tree from parsed arguments; what else was parsed is left aside.

    Raises:
        ValueError: null or a value stands where something else belongs, or one that its owner refuses.
    """
    _require_values(tree, arguments)
    ready = parser.instantiate(arguments)
    settings = {leaf.name: ready[leaf.name] for leaf in dataclasses.fields(tree)}
    settings["optimizer"].ending_at(settings["training"].max_steps)  # refuses a cosine of no known length
    return tree(**settings)
