"""All settings of each task, composed of the groups in `config/`; saved with every run and read again."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

import yaml

from config.data import (
    BatchConfig,
    DataConfig,
    LabelledConfig,
    MaskingConfig,
    MonolingualConfig,
    StreamConfig,
    TokenizerConfig,
)
from config.model import BertConfig, ClassifierConfig, RecurrentConfig, TransformerConfig, TransformerXLConfig
from config.reader import Settings, read, settings_from_file, without_removed
from config.search import SearchConfig
from config.training import CheckpointConfig, OptimizerConfig, TrainingConfig, TranslationTrainingConfig
from const.path import CORPUS, PRESET, ROOT
from utils.file import spooled, write_text

RunConfigT = TypeVar("RunConfigT", bound="RunConfig")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run; a task has its own types of some groups, and further ones.

    Args:
        task: what to learn.
        name: name of the run; its folder is pickles/<name>-<date>-<time>.
        data: texts to train, validate and test on.
        tokenizer: how texts are split into tokens; a classifier of a pre-trained BERT has that of its run.
        model: the architecture.
        batch: how texts become batches.
        optimizer: how the weights are updated.
        training: how long to train, and how often to validate and report.
        checkpoint: what a training leaves on disk.
        masking: which tokens a BERT has to fill in.
        search: how to search for translations when a run is tested and used (validation is greedy).
    """

    task: Any = "any"
    name: str
    data: Any
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: Any
    batch: Any
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def save(self, path: Path) -> None:
        """Write the resolved settings as YAML."""
        write_text(path, yaml.safe_dump(self.plain(), sort_keys=False, allow_unicode=True))

    def plain(self, written: Callable[[Path], str] = str) -> dict[str, Any]:
        """Return all settings in types that YAML and JSON have, with paths as `written` gives them."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=written))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote, or a preset."""
        settings = load_settings(path)
        config_type = config_type_in(settings, str(path))
        if not issubclass(config_type, cls):
            raise ValueError(f"{path} is of task {config_type.task}, but {cls.task} is needed here")
        return to_config(config_type, settings)


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(RunConfig):
    """All settings of a translator's run."""

    task: Literal["translation"] = "translation"
    name: str = "kftt_ja_en"
    data: DataConfig = field(default_factory=DataConfig)
    model: TransformerConfig = field(default_factory=TransformerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    training: TranslationTrainingConfig = field(default_factory=TranslationTrainingConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


@dataclass(frozen=True, kw_only=True)
class RecurrentTranslationConfig(TranslationConfig):
    """All settings of a recurrent translator's run: a translator in everything but its network."""

    task: Literal["recurrent_translation"] = "recurrent_translation"  # type: ignore[assignment]
    model: RecurrentConfig = field(default_factory=RecurrentConfig)  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageConfig(RunConfig):
    """All settings of a BERT's run."""

    task: Literal["masked_language"] = "masked_language"
    name: str = "bert"
    data: MonolingualConfig = field(default_factory=MonolingualConfig)
    model: BertConfig = field(default_factory=BertConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(RunConfig):
    """All settings of a Transformer-XL's run."""

    task: Literal["language"] = "language"
    name: str = "transformer_xl"
    data: MonolingualConfig = field(default_factory=MonolingualConfig)
    model: TransformerXLConfig = field(default_factory=TransformerXLConfig)
    batch: StreamConfig = field(default_factory=StreamConfig)


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(RunConfig):
    """All settings of a classifier's run."""

    task: Literal["classification"] = "classification"
    name: str = "classifier"
    data: LabelledConfig
    model: ClassifierConfig = field(default_factory=ClassifierConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)


AnyConfig = (
    TranslationConfig | RecurrentTranslationConfig | MaskedLanguageConfig | LanguageConfig | ClassificationConfig
)
CONFIG_TYPES: dict[str, type[AnyConfig]] = {config_type.task: config_type for config_type in get_args(AnyConfig)}


def find_settings(name: Path) -> Path:
    """Find a file of settings: by its path, from here or from the project's folder, or a preset by its name."""
    for path in (name, ROOT / name, PRESET / f"{name}.yaml"):
        if path.is_file():
            return path
    presets = sorted(path.stem for path in PRESET.glob("*.yaml"))
    near = get_close_matches(name.stem, presets, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"give a file, or a preset: {', '.join(presets)}"
    raise ValueError(f"no settings {name}: {remedy}")


def load_settings(path: Path) -> Settings:
    """Read the settings in a file, which may be of an earlier version."""
    return without_removed(settings_from_file(path))


def config_type_in(settings: Settings, name: str) -> type[AnyConfig]:
    """Return the type of some settings; that of translation if they name no task."""
    task = str(settings.get("task", "translation"))
    if task not in CONFIG_TYPES:
        raise ValueError(f"{name}: task={task} is not one of {', '.join(CONFIG_TYPES)}")
    return CONFIG_TYPES[task]


def config_type_of(path: Path) -> type[AnyConfig]:
    """Return the type of the settings in a file."""
    return config_type_in(load_settings(path), str(path))


def to_config(config_type: type[RunConfigT], settings: Settings) -> RunConfigT:
    """Return the settings read, with absolute paths of texts: a run is used from other folders than it began in."""
    config: Any = read(config_type, settings)
    training, data = config.training, config.data
    config.optimizer.ending_at(training.max_steps, training.max_minutes)  # refuses a cosine of unknown length
    paths = {name: _absolute(value) for name, value in vars(data).items() if isinstance(value, Path)}
    return dataclasses.replace(config, data=dataclasses.replace(data, **paths))


def _absolute(path: Path) -> Path:
    """Return where a text is: below here, or else below the project's folder.

    What a pipe gives is kept as a file, for a run that is resumed needs it again.
    """
    if path.is_fifo() or Path("/dev") in path.parents:
        return spooled(path, CORPUS / "pipes")
    return ROOT / path if (ROOT / path).exists() and not path.exists() else path.absolute()
