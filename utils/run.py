"""A run: one folder under pickles/ that holds everything needed to use or resume it."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from const.path import PICKLES
from layers.packed import packed
from models.transformer import Transformer
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
from utils.device import Precision, inference_dtype
from utils.file import locked
from utils.search.ensemble import Ensemble
from utils.search.hypothesis import Searchable, SearchConfig
from utils.search.sampling import SamplingConfig
from utils.search.translator import Translator
from utils.text.pair import TokenizerPair, load_tokenizers
from utils.text.tokenizer import every_token
from utils.text.vocabulary import Vocabulary
from utils.training.checkpoint import first_difference
from utils.training.weight_store import read_weights

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
        """Maximum number of source tokens to translate at a time: as many as in training, </s> included."""
        return min(self.config.model.max_length, self.config.batch.max_tokens)

    @property
    def precision(self) -> Precision:
        """Precision of its training; for an fp16 run whose model is on a CPU, where fp16 is not supported, auto."""
        trained = self.config.training.precision
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        return "auto" if trained == "fp16" and on_cpu else trained

    def translator(self, search: SearchConfig | None = None) -> Translator:
        """Return a translator with the present weights; by default with the run's own search settings."""
        return build_translator([self], search, precision=self.precision)


def build_translator(
    runs: Sequence[Run],
    search: SearchConfig | None = None,
    sampling: SamplingConfig | None = None,
    minimum_bayes_risk: bool = False,
    precision: Precision = "auto",
) -> Translator:
    """Build a translator from one run, or from several as an ensemble.

    Args:
        runs: on one device; several are an ensemble.
        search: the search settings; None: those of the first run.
        sampling: if given, draw translations instead of searching.
        minimum_bayes_risk: order candidates by how much they agree.
        precision: of the matrix products.

    Raises:
        ValueError: when the runs do not share a vocabulary.
    """
    first = runs[0]
    for other in runs[1:]:
        if not all(
            every_token(ours) == every_token(theirs)
            for ours, theirs in zip(first.tokenizers, other.tokenizers, strict=True)
        ):
            raise ValueError(
                f"{first.folder} and {other.folder} have different vocabularies: an ensemble needs the same"
            )
    device = next(first.model.parameters()).device
    search = search or first.config.search
    models = [packed(run.model, inference_dtype(device, precision)) for run in runs]
    model: Searchable[Any] = models[0] if len(models) == 1 else Ensemble(models)
    return Translator(
        model,
        first.tokenizers,
        first.config.data.tgt_lang,
        search,
        min(run.window for run in runs),
        min(run.config.model.max_length for run in runs),
        device,
        sampling,
        minimum_bayes_risk,
    )


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
    """Within the block, no other process trains this run.

    Raises:
        ValueError: when another process already trains it.
    """
    return locked(folder / _LOCK, f"{folder} is being trained by another process: wait, or --resume another run")


def newest_run(having: str, root: Path = PICKLES, config_type: type[RunConfig] | None = TranslationConfig) -> Path:
    """Return the run whose file or folder of this name was written last.

    Args:
        having: name of the file or folder.
        root: where the runs are.
        config_type: type of the run's settings; None: any.

    Raises:
        ValueError: when there is none.
    """
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


def find_run(
    name: Path | None,
    config_type: type[RunConfig] = TranslationConfig,
    root: Path = PICKLES,
    having: str = WEIGHTS,
) -> Path:
    """Return the folder of a run, by its path, its name, or its name without date; by default the one trained last.

    Args:
        name: the path or the name, without a date the newest of that name; None: the run of this type trained last.
        config_type: type of settings of the default run.
        root: where the runs are.
        having: name of the file or folder that it is to be used for: a run of that name that has it comes first.

    Raises:
        ValueError: when there is none.
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
    """Read a run, ready to translate.

    Args:
        folder: of the run.
        device: where to put the model.

    Raises:
        ValueError: when there is no such run, it has no weights yet, or they do not fit its settings.
    """
    config = read_config(folder, TranslationConfig)
    tokenizers = load_tokenizers(folder)
    model = Transformer(config.model, len(tokenizers.src), len(tokenizers.tgt)).to(device)
    load_weights(model, folder)
    return Run(folder, config, tokenizers, model.eval())


def read_config(folder: Path, config_type: type[RunConfigT]) -> RunConfigT:
    """Read the settings of a run.

    Raises:
        ValueError: when there is no such run, or it is of another task.
    """
    if not folder.is_dir():
        raise ValueError(f"no run {folder}: give a folder under {PICKLES}")
    return config_type.load(folder / CONFIG)


def load_weights(net: nn.Module, folder: Path) -> None:
    """Load the best weights of a run into a network.

    Raises:
        ValueError: when the run has no weights yet, or they do not fit.
    """
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{folder} has no {WEIGHTS} yet: it appears with the first validation")
    try:
        net.load_state_dict(read_weights(weights))
    except ValueError as error:
        raise ValueError(f"{error}: train the run again") from error
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit {CONFIG}: {first_difference(error)}") from error
