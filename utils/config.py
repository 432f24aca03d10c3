"""A tree of settings for each task, each leaf declared next to its owner; read from YAML and the command line."""

import dataclasses
from argparse import ArgumentError
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, TypeVar, get_args

import yaml
from jsonargparse import ArgumentParser, Namespace

from const.path import PRESET, ROOT
from models.bert import BertConfig, ClassifierConfig
from models.transformer import TransformerConfig
from models.transformer_xl import TransformerXLConfig
from utils.command import Parser
from utils.dataset.batch import BatchConfig
from utils.dataset.corpus import DataConfig
from utils.dataset.labelled import LabelledConfig
from utils.dataset.masked import MaskingConfig
from utils.dataset.monolingual import MonolingualConfig
from utils.dataset.stream import StreamConfig
from utils.file import write_text
from utils.removed_setting import without_removed
from utils.search.constraint import SearchConfig
from utils.text.tokenizer import TokenizerConfig
from utils.training.checkpoint import CheckpointConfig
from utils.training.plan import OptimizerConfig, TrainingConfig, TranslationTrainingConfig

# YAML that hides no mistakes: every key is a string and appears only once.

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Refuses what PyYAML accepts: duplicate keys, of which the last would win, and `2`, `off`, `null` as keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        known: set[str] = set()
        for below, _ in node.value:
            if below.tag == _MERGE:
                continue
            key, line = self.construct_object(below, deep=True), below.start_mark.line + 1
            if not isinstance(key, str):
                raise ValueError(f"line {line}: the key {_as_written(below)} is not a string: quote it")
            if key in known:
                raise ValueError(f"line {line}: the key {key} appears twice: leave one of them out")
            known.add(key)
        return super().construct_mapping(node, deep)


def _as_written(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "that is a list or a group"


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ValueError: when it is malformed, or a key is not a string or appears twice; one line that names the file.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        at = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise ValueError(f"{path}: {at}{said}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


RunConfigT = TypeVar("RunConfigT", bound="RunConfig")
DataT = TypeVar("DataT", DataConfig, MonolingualConfig, LabelledConfig)


class SettingsParser(Parser):
    """A parser of settings; a file of them may be of an earlier version."""

    def parse_string(self, content: str, *arguments: Any, **options: Any) -> Namespace:
        """Parse the text of a file, which is well-formed, without the settings that were removed since."""
        saved = yaml.safe_load(content)
        if (known := without_removed(saved)) != saved:
            content = yaml.safe_dump(known, sort_keys=False, allow_unicode=True)
        return super().parse_string(content, *arguments, **options)


@dataclass(frozen=True)
class RunConfig:
    """Base of the settings of all tasks."""

    def save(self, path: Path) -> None:
        """Write the resolved settings as YAML."""
        write_text(path, yaml.safe_dump(self.plain(), sort_keys=False, allow_unicode=True))

    def plain(self, written: Callable[[Path], str] = str) -> dict[str, Any]:
        """Return all settings in types that YAML and JSON have, with paths as `written` gives them."""
        return _plain(dataclasses.asdict(self), written)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote, or a preset.

        Raises:
            ValueError: when there is no such file, it is of another task, or a key is unknown or of the wrong type.
        """
        if not path.is_file():
            raise ValueError(f"no settings {path}: give the folder of a run, or a preset")
        _require_settings(path)
        config_type = config_type_of(path)
        if not issubclass(config_type, cls):
            raise ValueError(f"{path} is of task {task_of(config_type)}, but {task_of(cls)} is needed here")
        parser = SettingsParser(exit_on_error=False)
        add_config(parser, config_type)
        try:
            return to_config(parser, parser.parse_path(path), config_type)
        except ArgumentError as error:
            raise ValueError(f"{path}: {parser.explain(str(error))}") from error


@dataclass(frozen=True)
class TranslationConfig(RunConfig):
    """All settings of a translator's run.

    Args:
        task: what to learn.
        name: name of the run; its folder is pickles/<name>-<date>-<time>.
        data: texts to train, validate and test on.
        tokenizer: how texts are split into tokens.
        model: the architecture.
        batch: how pairs become batches.
        optimizer: how the weights are updated.
        training: how long to train, and how often to validate and report.
        checkpoint: what a training leaves on disk.
        search: how to search for translations when the run is tested and used (validation is greedy).
    """

    task: Literal["translation"] = "translation"
    name: str = "kftt_ja_en"
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: TransformerConfig = field(default_factory=TransformerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TranslationTrainingConfig = field(default_factory=TranslationTrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass(frozen=True)
class MaskedLanguageConfig(RunConfig):
    """All settings of a BERT's run.

    Args:
        task: what to learn.
        name: name of the run.
        data: text to train, validate and test on.
        tokenizer: how it is split into tokens.
        masking: which tokens are masked.
        model: the architecture.
        batch: how sentences become batches.
        optimizer: how the weights are updated.
        training: how long to train, and how often to validate and report.
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
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass(frozen=True)
class LanguageConfig(RunConfig):
    """All settings of a Transformer-XL's run.

    Args:
        task: what to learn.
        name: name of the run.
        data: text to train, validate and test on.
        tokenizer: how it is split into tokens.
        model: the architecture.
        batch: how documents become streams.
        optimizer: how the weights are updated.
        training: how long to train, and how often to validate and report.
        checkpoint: what a training leaves on disk.
    """

    task: Literal["language"] = "language"
    name: str = "transformer_xl"
    data: MonolingualConfig = field(default_factory=MonolingualConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: TransformerXLConfig = field(default_factory=TransformerXLConfig)
    batch: StreamConfig = field(default_factory=StreamConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass(frozen=True)
class ClassificationConfig(RunConfig):
    """All settings of a classifier's run.

    Args:
        task: what to learn.
        name: name of the run.
        data: texts to train, validate and test on, and their labels.
        tokenizer: how texts are split into tokens, unless a BERT's run decides it.
        model: the architecture, unless a BERT's run decides it.
        batch: how texts become batches.
        optimizer: how the weights are updated.
        training: how long to train, and how often to validate and report.
        checkpoint: what a training leaves on disk.
    """

    task: Literal["classification"] = "classification"
    name: str = "classifier"
    data: LabelledConfig = field(kw_only=True)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ClassifierConfig = field(default_factory=ClassifierConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


AnyConfig = TranslationConfig | MaskedLanguageConfig | LanguageConfig | ClassificationConfig
CONFIG_TYPES: dict[str, type[AnyConfig]] = {
    "translation": TranslationConfig,
    "masked_language": MaskedLanguageConfig,
    "language": LanguageConfig,
    "classification": ClassificationConfig,
}


def task_of(config_type: type[RunConfig]) -> str:
    """Return the name of the task that a type of settings belongs to."""
    return next((task for task, known in CONFIG_TYPES.items() if known is config_type), "any")


def find_settings(name: Path) -> Path:
    """Find a file of settings: by its path, from here or from the project's folder, or a preset by its name.

    Raises:
        ValueError: when there is none, or it holds no settings in YAML.
    """
    for found in (name, ROOT / name, PRESET / f"{name}.yaml"):
        if found.is_file():
            break
    else:
        presets = sorted(path.stem for path in PRESET.glob("*.yaml"))
        near = get_close_matches(name.stem, presets, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"give a file, or a preset: {', '.join(presets)}"
        raise ValueError(f"no settings {name}: {remedy}")
    _require_settings(found)
    return found


def _require_settings(path: Path) -> None:
    """Refuse a file that is not a mapping in YAML, or in which a key appears twice.

    Raises:
        ValueError: one line that says where and why.
    """
    if not isinstance(read_yaml(path), dict):
        raise ValueError(f"{path}: no settings; see const/preset/ for examples")


def config_type_of(path: Path) -> type[AnyConfig]:
    """Return the type of the settings in a file; that of translation if it names no task, or cannot be read.

    Raises:
        ValueError: when the task is unknown.
    """
    task = _read(path).get("task", "translation")
    if not isinstance(task, str) or task not in CONFIG_TYPES:
        raise ValueError(f"{path}: task={task} is not one of {', '.join(CONFIG_TYPES)}")
    return CONFIG_TYPES[task]


def names_corpus(path: Path) -> bool:
    """Return whether the settings in a file name a corpus."""
    data = _read(path).get("data")
    return isinstance(data, dict) and "corpus" in data


def _read(path: Path) -> dict[str, Any]:
    """Return the contents of a file, empty if unreadable: the parser, which reads it later, reports what is wrong."""
    try:
        settings = read_yaml(path)
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _plain(value: Any, written: Callable[[Path], str]) -> Any:
    """Convert a value to types that YAML and JSON have."""
    if isinstance(value, dict):
        return {key: _plain(item, written) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, written) for item in value]
    return written(value) if isinstance(value, Path) else value


def _require_values(owner: type, arguments: Namespace, above: str = "") -> None:
    """Refuse what jsonargparse accepts: a null anywhere, and a bare value in place of a group."""
    for leaf in dataclasses.fields(owner):
        value, key = arguments[leaf.name], above + leaf.name
        if isinstance(leaf.type, type) and dataclasses.is_dataclass(leaf.type):
            if not isinstance(value, Namespace):
                raise ValueError(f"{key} is a group of settings, not {value}: give settings below it, or leave it out")
            _require_values(leaf.type, value, f"{key}.")
        elif value is None and NoneType not in get_args(leaf.type):
            raise ValueError(f"{key} cannot be null: give it a value, or leave it out")
        elif isinstance(value, Namespace):  # a group that may be null, but is not
            (group,) = (kind for kind in get_args(leaf.type) if kind is not NoneType)
            _require_values(group, value, f"{key}.")


def add_config(parser: ArgumentParser, config_type: type[RunConfig] = TranslationConfig) -> None:
    """Add an option for every leaf of the settings of a task to a parser."""
    parser.add_class_arguments(config_type)


def to_config(parser: ArgumentParser, arguments: Namespace, config_type: type[RunConfigT]) -> RunConfigT:
    """Return the settings from parsed arguments, ignoring other arguments; paths of texts become absolute.

    Raises:
        ValueError: when a null or a value is out of place, or a group refuses its values.
    """
    _require_values(config_type, arguments)
    ready = parser.instantiate(arguments)
    settings = {leaf.name: ready[leaf.name] for leaf in dataclasses.fields(config_type)}
    settings["optimizer"].ending_at(settings["training"].max_steps)  # refuses a cosine of unknown length
    settings["data"] = _with_found_paths(settings["data"])  # a run is used from other folders than it began in
    return config_type(**settings)


def _with_found_paths(data: DataT) -> DataT:
    """Return where texts are to be found, as absolute paths: from here, or else from the project's folder."""
    settings = {leaf.name: getattr(data, leaf.name) for leaf in dataclasses.fields(data)}
    paths: dict[str, Any] = {
        name: ROOT / value if (ROOT / value).exists() and not value.exists() else value.absolute()
        for name, value in settings.items()
        if isinstance(value, Path)
    }
    return dataclasses.replace(data, **paths)
