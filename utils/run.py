"""The folder of a training run: how it is made, found and read, whatever the task."""

import platform
import re
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from config.data import primary_language
from config.model import BertConfig, TransformerConfig
from config.search import SamplingConfig, SearchConfig
from config.training import Precision
from const.corpora import VERSION
from const.path import CORPUS, PICKLES, ROOT
from layers.packed import packed
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from utils.config import (
    AnyConfig,
    ClassificationConfig,
    LanguageConfig,
    MaskedLanguageConfig,
    RunConfig,
    RunConfigT,
    TranslationConfig,
    config_type_of,
    task_of,
)
from utils.dataset.labelled import LabelNames
from utils.device import inference_dtype
from utils.file import locked
from utils.search.constraint import Ensemble, Searchable
from utils.search.translator import Translator
from utils.text.tokenizer import Tokenizer, TokenizerPair, Vocabulary, every_token, load_tokenizers
from utils.training.checkpoint import first_difference, read_weights

CONFIG = "config.yaml"  # the resolved settings
WEIGHTS = "model.safetensors"  # of the best validation
CHECKPOINTS = "checkpoints"  # state of the training at its latest validations
KEPT_WEIGHTS = "weights"  # of other good or recent validations
TRACE = "trace.json.gz"
CURVE = "curve.png"
ATTENTION = "attention.png"
TEST = "test.json"  # scores of the test set
TRANSLATIONS = "test.txt"  # its translations, line by line
_LOCK = ".training"  # locked while a process trains the run


# presets to suggest where a run is missing
_PRESETS: dict[type[RunConfig] | None, str] = {
    MaskedLanguageConfig: "bert_ja",
    LanguageConfig: "transformer_xl_en",
    ClassificationConfig: "kftt_category_ja",
}


class Run(NamedTuple):
    """A trained model and what belongs to it."""

    folder: Path
    config: TranslationConfig
    tokenizers: TokenizerPair
    model: Transformer

    @property
    def window(self) -> int:
        """Most source tokens to translate at a time, </s> included."""
        return own_window(self.config)

    @property
    def precision(self) -> Precision:
        """Precision of its training, where its device supports it."""
        return own_precision(self.config, next(self.model.parameters()).device)

    def translator(self, search: SearchConfig | None = None) -> Translator:
        """Return a translator with the present weights; by default with the run's own search settings."""
        return translator_of([self.model], self.tokenizers, [self.config], search)


def own_window(config: TranslationConfig) -> int:
    """Return the most source tokens to translate at a time, </s> included: as many as in training."""
    return min(config.model.max_length, config.batch.max_tokens)


def own_precision(config: TranslationConfig, device: torch.device) -> Precision:
    """Return the precision of the training; auto for fp16 on a CPU, where it is not supported."""
    precision = config.training.precision
    return "auto" if precision == "fp16" and device.type == "cpu" else precision


def translator_of(
    nets: Sequence[Transformer],
    tokenizers: TokenizerPair,
    configs: Sequence[TranslationConfig],
    search: SearchConfig | None = None,
    sampling: SamplingConfig | None = None,
    minimum_bayes_risk: bool = False,
    precision: Precision | None = None,
) -> Translator:
    """Build a translator from a network, its tokenizers and its settings, or from several networks as an ensemble.

    Args:
        nets: on one device.
        tokenizers: which all of them share.
        configs: of each network.
        search: the search settings; None: those of the first.
        sampling: if given, draw translations instead of searching.
        minimum_bayes_risk: order candidates by how much they agree.
        precision: of the matrix products; None: that of the first.
    """
    first, device = configs[0], next(nets[0].parameters()).device
    dtype = inference_dtype(device, precision or own_precision(first, device))
    models = [packed(net, dtype) for net in nets]
    model: Searchable[Any] = models[0] if len(models) == 1 else Ensemble(models)
    return Translator(
        model,
        tokenizers,
        first.data.tgt_lang,
        search or first.search,
        min(map(own_window, configs)),
        min(config.model.max_length for config in configs),
        device,
        sampling,
        minimum_bayes_risk,
    )


def build_translator(
    runs: Sequence[Run],
    search: SearchConfig | None = None,
    sampling: SamplingConfig | None = None,
    minimum_bayes_risk: bool = False,
    precision: Precision = "auto",
) -> Translator:
    """Build a translator from one run, or from several that share a vocabulary; arguments as for `translator_of`."""
    first = runs[0]
    for other in runs[1:]:
        if not all(
            every_token(ours) == every_token(theirs)
            for ours, theirs in zip(first.tokenizers, other.tokenizers, strict=True)
        ):
            raise ValueError(
                f"{first.folder} and {other.folder} have different vocabularies: an ensemble needs the same"
            )
    nets, configs = [run.model for run in runs], [run.config for run in runs]
    return translator_of(nets, first.tokenizers, configs, search, sampling, minimum_bayes_risk, precision)


def create_run(config: AnyConfig, vocabulary: Vocabulary, root: Path = PICKLES) -> Path:
    """Create the folder of a new run, with its settings and vocabulary."""
    name = f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, n = root / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:  # two in the same second
            n += 1
            folder = root / f"{name}-{n}"
    vocabulary.save(folder)
    config.save(folder / CONFIG)
    return folder


def trained_alone(folder: Path) -> AbstractContextManager[None]:
    """Within the block, no other process trains this run; refused while another process does."""
    return locked(folder / _LOCK, f"{folder} is being trained by another process: wait, or --resume another run")


def newest_run(having: str, root: Path = PICKLES, config_type: type[RunConfig] | None = TranslationConfig) -> Path:
    """Return the run, of this type of settings or of any, whose file or folder of this name was written last."""
    files = sorted(root.glob(f"*/{having}"), key=lambda file: -file.stat().st_mtime)
    for file in files:
        settings = file.parent / CONFIG
        if not settings.is_file():
            continue
        with suppress(ValueError):  # of an unknown task
            if config_type is None or config_type_of(settings) is config_type:
                return file.parent
    kind = "" if config_type is None else f" of task {task_of(config_type)}"
    raise ValueError(
        f"no run{kind} with a {having} in {root}: train one first, for example "
        f"`python train.py --config {_PRESETS.get(config_type, 'demo')}`"
    )


def runs_named(name: str, root: Path = PICKLES) -> list[Path]:
    """Return the runs of a name, the newest first."""
    pattern = re.compile(rf"{re.escape(name)}-(\d{{8}}-\d{{6}})(?:-(\d+))?")
    found = [(match, folder) for folder in root.glob("*/") if (match := pattern.fullmatch(folder.name))]
    found.sort(key=lambda each: (each[0][1], int(each[0][2] or 1)), reverse=True)
    return [folder for _, folder in found]


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the folder names of runs that are shown together."""
    names = [folder.resolve().name for folder in folders]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two runs are named {name}: give one of them, or rename the folder of the other")
    return names


def titles(names: Sequence[str]) -> list[str]:
    """Return folder names without the time stamp at the end, unless names would then be equal."""
    short = [re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", name) for name in names]
    return [title if short.count(title) == 1 else name for title, name in zip(short, names, strict=True)]


def find_run(
    name: Path | None,
    config_type: type[RunConfig] = TranslationConfig,
    root: Path = PICKLES,
    having: str = WEIGHTS,
) -> Path:
    """Return the folder of a run, by its path, its name, or its name without date; without a name the newest.

    Args:
        name: of several runs of a name without date, the newest that has what is needed.
        config_type: type of settings of the newest run.
        root: where the runs are.
        having: name of the file or folder that is needed.
    """
    if name is None:
        return newest_run(having, root, config_type)
    for folder in (name, root / name):
        if folder.is_dir():
            return folder
    if dated := runs_named(str(name), root):
        return next((folder for folder in dated if (folder / having).exists()), dated[0])
    near = get_close_matches(str(name), [folder.name for folder in root.glob("*/")], n=1)
    raise ValueError(f"no run {name}: " + (f"did you mean {near[0]}?" if near else f"give a folder under {root}"))


def load_run(folder: Path, device: torch.device) -> Run:
    """Read a translator's run, ready to translate on a device."""
    config = read_config(folder, TranslationConfig)
    tokenizers = load_tokenizers(folder)
    model = Transformer(config.model, len(tokenizers.src), len(tokenizers.tgt)).to(device)
    load_weights(model, folder)
    return Run(folder, config, tokenizers, model.eval())


def read_config(folder: Path, config_type: type[RunConfigT]) -> RunConfigT:
    """Read the settings of a run, which is to be of their task."""
    if not folder.is_dir():
        raise ValueError(f"no run {folder}: give a folder under {PICKLES}")
    return config_type.load(folder / CONFIG)


def load_weights(net: nn.Module, folder: Path) -> None:
    """Load the best weights of a run into a network."""
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{folder} has no {WEIGHTS} yet: it appears with the first validation")
    try:
        net.load_state_dict(read_weights(weights))
    except ValueError as error:
        raise ValueError(f"{error}: train the run again") from error
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit {CONFIG}: {first_difference(error)}") from error


# Runs of the other tasks.

LABELS = "labels.json"  # in a classifier's run


class PretrainedBert(NamedTuple):
    """A trained BERT and what belongs to it."""

    config: MaskedLanguageConfig
    tokenizer: Tokenizer
    net: BertForPreTraining


def load_bert(folder: Path, device: torch.device | None = None) -> PretrainedBert:
    """Read the run of a BERT."""
    config, tokenizer = read_config(folder, MaskedLanguageConfig), load_tokenizers(folder).src
    net = BertForPreTraining(config.model, len(tokenizer) + 1).to(device)
    load_weights(net, folder)
    return PretrainedBert(config, tokenizer, net.eval())


def pretrained_shape(folder: Path, own: TransformerConfig | BertConfig, language: str | None = None) -> dict[str, Any]:
    """Return the settings of a BERT, for a network initialised from it; dropouts and `fused` are the network's own.

    Args:
        folder: the BERT's run.
        own: settings of the network.
        language: that the network is to read; None: any.
    """
    config = read_config(folder, MaskedLanguageConfig)
    if language is not None and primary_language(config.data.language) != primary_language(language):
        raise ValueError(f"init_encoder={folder} reads {config.data.language}, but the texts to read are in {language}")
    free = {"dropout": own.dropout, "attention_dropout": own.attention_dropout, "fused": own.fused}
    return asdict(config.model) | free


class TrainedLanguageModel(NamedTuple):
    """A trained Transformer-XL and what belongs to it."""

    config: LanguageConfig
    tokenizer: Tokenizer
    net: TransformerXL


def load_language_model(folder: Path, device: torch.device | None = None) -> TrainedLanguageModel:
    """Read the run of a Transformer-XL."""
    config, tokenizer = read_config(folder, LanguageConfig), load_tokenizers(folder).src
    net = TransformerXL(config.model, len(tokenizer)).to(device)
    load_weights(net, folder)
    return TrainedLanguageModel(config, tokenizer, net.eval())


class Labelling(NamedTuple):
    """The tokenizer of a classifier, and the names of its classes."""

    tokenizer: Tokenizer
    labels: LabelNames

    def save(self, folder: Path) -> None:
        """Write both into a folder."""
        TokenizerPair(self.tokenizer, self.tokenizer).save(folder)
        self.labels.save(folder / LABELS)

    @classmethod
    def load(cls, folder: Path) -> "Labelling":
        """Read what `save` wrote."""
        return cls(load_tokenizers(folder).src, LabelNames.load(folder / LABELS))


class TrainedClassifier(NamedTuple):
    """A trained classifier and what belongs to it."""

    config: ClassificationConfig
    vocabulary: Labelling
    net: BertClassifier


def load_classifier(folder: Path, device: torch.device | None = None) -> TrainedClassifier:
    """Read the run of a classifier."""
    config, vocabulary = read_config(folder, ClassificationConfig), Labelling.load(folder)
    net = BertClassifier(config.model, len(vocabulary.tokenizer) + 1, len(vocabulary.labels)).to(device)
    load_weights(net, folder)
    return TrainedClassifier(config, vocabulary, net.eval())


# Where a figure comes from: what somebody needs to know to reproduce it.

_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu")


def provenance(device: torch.device) -> dict[str, str]:
    """Describe the time, the code, the machine and the packages."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": own_commit(),
        "machine": machine(device),
        "versions": f"Python {platform.python_version()}, "
        + ", ".join(f"{package} {version(package)}" for package in _PACKAGES),
    }


@cache
def own_commit() -> str:
    """Return the commit of this code at the first call: at the start of a training, for the code may change later."""
    return commit(ROOT)


def portable(path: Path) -> str:
    """Return a path that holds on other machines: below the project, corpus/ or pickles/, or just its name."""
    if not path.is_absolute():
        return str(path)
    found = path.resolve()
    for above, root in ((Path("corpus"), CORPUS), (Path("pickles"), PICKLES), (Path(), ROOT)):
        if found.is_relative_to(root):
            return str(above / found.relative_to(root))
    return path.name


def commit(folder: Path) -> str:
    """Return the commit of a checkout, and whether code or settings differ from it; without a checkout, the version."""
    try:
        top, revision, changed = (
            subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (
                ("rev-parse", "--show-toplevel"),
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", ":!*.md", ":!figure"),
            )
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or not a checkout
        return f"version {VERSION}"
    if Path(top).resolve() != folder.resolve():  # a copy inside another checkout
        return f"version {VERSION}"
    return f"{revision}, changed" if changed else revision


def machine(device: torch.device) -> str:
    """Describe the device: the GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
