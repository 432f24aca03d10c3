"""A run: one folder under pickles/ that holds all that using or resuming it needs."""

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
    Config,
    LanguageConfig,
    MaskedLanguageConfig,
    Tree,
    TreeT,
    task_of,
    tree_of,
)
from utils.device import Precision, inference_dtype
from utils.file import locked
from utils.search.coverage import Covered
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
CHECKPOINTS = "checkpoints"  # where training stood at its latest validations
KEPT_WEIGHTS = "weights"  # of other good or recent validations
TRACE = "trace.json.gz"
CURVE = "curve.png"
ATTENTION = "attention.png"
TEST = "test.json"  # scores of the test set
TRANSLATIONS = "test.txt"  # its translations, line by line
_LOCK = ".training"  # held while a process trains the run


# what to train where a run is missing
_PRESETS: dict[type[Tree] | None, str] = {
    MaskedLanguageConfig: "bert_ja",
    LanguageConfig: "transformer_xl_en",
    ClassificationConfig: "kftt_category_ja",
}


class Run(NamedTuple):
    """A trained model and what belongs to it."""

    folder: Path
    config: Config
    tokenizers: TokenizerPair
    model: Transformer

    @property
    def window(self) -> int:
        """Most source tokens that it translates at a time: as many as it has learned from, </s> included."""
        return min(self.config.model.max_length, self.config.batch.max_tokens)

    @property
    def precision(self) -> Precision:
        """That it was trained in; where its model now lives on a CPU, which knows no fp16, what is fast there."""
        trained = self.config.training.precision
        on_cpu = next(self.model.parameters()).device.type == "cpu"
        return "auto" if trained == "fp16" and on_cpu else trained

    def translator(self, search: SearchConfig | None = None) -> Translator:
        """What translates with its present weights; by its own search settings when no others are given."""
        return build_translator([self], search, precision=self.precision)


def build_translator(
    runs: Sequence[Run],
    search: SearchConfig | None = None,
    sampling: SamplingConfig | None = None,
    minimum_bayes_risk: bool = False,
    precision: Precision = "auto",
) -> Translator:
    """What translates with one run, or with several at once.

    Args:
        runs: on one device; several are an ensemble.
        search: the settings; those of the first run when not given.
        sampling: draw translations instead.
        minimum_bayes_risk: order candidates by how much they agree.
        precision: of the matrix products.

    Raises:
        ValueError: the runs do not share a vocabulary; several runs and a coverage penalty.
    """
    first = runs[0]
    for other in runs[1:]:
        if not all(
            every_token(ours) == every_token(theirs)
            for ours, theirs in zip(first.tokenizers, other.tokenizers, strict=True)
        ):
            raise ValueError(f"{first.folder} and {other.folder} have other vocabularies: an ensemble needs the same")
    device = next(first.model.parameters()).device
    search = search or first.config.search
    models = [packed(run.model, inference_dtype(device, precision)) for run in runs]
    model: Searchable[Any] = models[0] if len(models) == 1 else Ensemble(models)
    if search.coverage_penalty and sampling is None:
        if len(models) > 1:
            raise ValueError(
                f"coverage_penalty={search.coverage_penalty} asks where one model looks, and these are {len(models)}: "
                "translate with one run, or give 0"
            )
        model = Covered(models[0])
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
    """Make the folder of a new run, with its settings and vocabulary in it."""
    name = f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, n = root / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:  # two in one second
            n += 1
            folder = root / f"{name}-{n}"
    vocabulary.save(folder)
    config.save(folder / CONFIG)
    return folder


def trained_alone(folder: Path) -> AbstractContextManager[None]:
    """Inside, no other process trains this run.

    Raises:
        ValueError: one does already.
    """
    return locked(folder / _LOCK, f"{folder} is being trained by another process: wait, or --resume another run")


def newest_run(having: str, root: Path = PICKLES, tree: type[Tree] | None = Config) -> Path:
    """The run whose file or folder of this name was written last.

    Args:
        having: the name.
        root: where runs are.
        tree: whose settings the run has; None: any.

    Raises:
        ValueError: there is none.
    """
    files = sorted(root.glob(f"*/{having}"), key=lambda file: -file.stat().st_mtime)
    for file in files:
        settings = file.parent / CONFIG
        if not settings.is_file():
            continue
        with suppress(ValueError):  # of a task that is not known here
            if tree is None or tree_of(settings) is tree:
                return file.parent
    kind = "" if tree is None else f" of task {task_of(tree)}"
    raise ValueError(
        f"no run{kind} with a {having} in {root}: train one first, for example "
        f"`python train.py --config const/preset/{_PRESETS.get(tree, 'demo')}.yaml`"
    )


def find_run(name: Path | None, tree: type[Tree] = Config, root: Path = PICKLES) -> Path:
    """The folder of a run, by its path or by its name alone; the one trained last where none is named.

    Args:
        name: the path, or the name.
        tree: whose settings the one trained last has.
        root: where runs are.

    Raises:
        ValueError: there is none.
    """
    if name is None:
        return newest_run(WEIGHTS, root, tree)
    for folder in (name, root / name):
        if folder.is_dir():
            return folder
    near = get_close_matches(str(name), [folder.name for folder in root.glob("*/")], n=1)
    raise ValueError(f"no run {name}: " + (f"did you mean {near[0]}?" if near else f"give a folder under {root}"))


def load_run(folder: Path, device: torch.device) -> Run:
    """Read a run, ready to translate.

    Args:
        folder: of the run.
        device: where the model shall live.

    Raises:
        ValueError: no such run, or nothing learned yet, or weights that do not fit its settings.
    """
    config = read_config(folder, Config)
    tokenizers = load_tokenizers(folder)
    model = Transformer(config.model, len(tokenizers.src), len(tokenizers.tgt)).to(device)
    load_weights(model, folder)
    return Run(folder, config, tokenizers, model.eval())


def read_config(folder: Path, tree: type[TreeT]) -> TreeT:
    """The settings of a run.

    Raises:
        ValueError: no such run, or one of another task.
    """
    if not folder.is_dir():
        raise ValueError(f"no run {folder}: give a folder under {PICKLES}")
    return tree.load(folder / CONFIG)


def load_weights(net: nn.Module, folder: Path) -> None:
    """Give a network the best weights of a run.

    Raises:
        ValueError: nothing is learned yet, or the weights do not fit.
    """
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{folder} has no {WEIGHTS} yet: it appears with the first validation")
    try:
        net.load_state_dict(read_weights(weights))
    except ValueError as error:
        raise ValueError(f"{error}: train the run anew") from error
    except RuntimeError as error:
        raise ValueError(f"{weights} does not fit {CONFIG}: {first_difference(error)}") from error
