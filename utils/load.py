"""What was trained, loaded: a translator, a BERT, a Transformer-XL or a classifier, and what belongs to it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from config.data import primary_language
from config.model import BertConfig, TransformerConfig
from config.search import SamplingConfig, SearchConfig
from config.training import InferencePrecision
from models.bert import BertClassifier, BertForPreTraining
from models.decoder_only import DecoderOnlyTranslator
from models.recurrent import RecurrentTranslator
from models.stepwise import stepwise
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from models.translation_model import TranslationModel
from utils.config import (
    ClassificationConfig,
    DecoderOnlyTranslationConfig,
    LanguageConfig,
    MaskedLanguageConfig,
    RecurrentTranslationConfig,
    RunConfigT,
    TranslationConfig,
)
from utils.dataset.labelled import LabelNames
from utils.device import packing, pick_device, require_precision
from utils.file import read_json
from utils.run import CONFIG, TEST, WEIGHTS, find_run, read_config
from utils.search.constraint import Ensemble, Searchable
from utils.search.searcher import BeamSearch, Sampling
from utils.search.translator import Translator
from utils.text.tokenizer import Tokenizer, TokenizerPair, every_token, load_tokenizers
from utils.text.words import plain_text
from utils.training.checkpoint import read_weights

VocabularyT = TypeVar("VocabularyT")
NetT = TypeVar("NetT", bound=nn.Module)


def load_weights(
    net: nn.Module, folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda weights: weights
) -> None:
    """Load the best weights of a run into a network, as `change` returns them."""
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ValueError(f"{folder} has no {WEIGHTS} yet: it appears with the first validation")
    try:
        net.load_state_dict(change(read_weights(weights)))
    except ValueError as error:
        raise ValueError(f"{error}: train the run again") from error
    except RuntimeError as error:  # its second line is the first that does not fit
        reason = str(error).splitlines()[:2][-1].strip()[:200]
        raise ValueError(f"{weights} does not fit {CONFIG}: {reason}") from error


class _Undrawn(TorchFunctionMode):
    """Within the block, networks are built of zeros: to draw weights, only to load others, takes 0.1 s."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").endswith(("uniform_", "normal_")):  # of a tensor, or of `nn.init`
            return nn.init.zeros_(args[0] if args else kwargs["tensor"])
        return func(*args, **kwargs)


def _trained(build: Callable[[], NetT], folder: Path, device: torch.device | None) -> NetT:
    """Build a network and load the best weights of a run, ready to be used on a device."""
    with _Undrawn():
        net = build().to(device)
    load_weights(net, folder)
    return net.eval()


class Run(NamedTuple):
    """A translator and what belongs to it."""

    folder: Path
    config: TranslationConfig
    tokenizers: TokenizerPair
    model: TranslationModel

    @property
    def window(self) -> int:
        """Most source tokens to translate at a time, </s> included: as many as in training."""
        return min(self.config.model.max_length, self.config.batch.max_tokens)

    @property
    def transformer(self) -> Transformer:
        """The network, where it has to be a Transformer."""
        if not isinstance(self.model, Transformer):
            raise ValueError(f"{self.folder} is of task {self.config.task}: give the run of a Transformer")
        return self.model

    def translator(self, search: SearchConfig | None = None, precision: InferencePrecision = "auto") -> Translator:
        """Return a translator with the present weights; by default with the run's own search settings."""
        return build_translator([self], search, precision=precision, thorough=True)


def build_network(config: TranslationConfig, src_vocab: int, tgt_vocab: int) -> TranslationModel:
    """Build the network that the settings of a translator describe."""
    if isinstance(config, RecurrentTranslationConfig):
        return RecurrentTranslator(config.model, src_vocab, tgt_vocab)
    if isinstance(config, DecoderOnlyTranslationConfig):
        return DecoderOnlyTranslator(config.model, src_vocab, tgt_vocab)
    return Transformer(config.model, src_vocab, tgt_vocab)


def load_run(folder: Path, device: torch.device | None = None, plain: bool = False, tag: str | None = None) -> Run:
    """Read a translator's run, ready to translate on a device.

    Args:
        plain: translate plain text, even if it learned from words.
        tag: the kind of the texts to translate; "": they get no tag; None: the run's own.
    """
    config, tokenizers = read_config(folder, TranslationConfig), load_tokenizers(folder, tag)
    tokenizers = plain_text(tokenizers, folder) if plain else tokenizers
    sizes = len(tokenizers.src), len(tokenizers.tgt)
    return Run(folder, config, tokenizers, _trained(partial(build_network, config, *sizes), folder, device))


def load_translator(name: str | Path, precision: InferencePrecision = "auto") -> Translator:
    """Load the run of this name or folder to translate plain text in Python, on a GPU where there is one."""
    return load_run(find_run(Path(name)), pick_device(), plain=True).translator(precision=precision)


def build_translator(
    runs: Sequence[Run],
    search: SearchConfig | None = None,
    sampling: SamplingConfig | None = None,
    precision: InferencePrecision = "auto",
    thorough: bool = False,
) -> Translator:
    """Build a translator from one run, or from several that share a vocabulary as an ensemble, all on one device.

    Args:
        search: None: the settings of the first, which also has the languages.
        sampling: if given, draw translations instead of searching.
        precision: of the matrix products; auto: what is fast here, whatever the runs were trained in; int8: of linear
            layers, all else in single precision.
        thorough: as for `stepwise`.
    """
    first, device = runs[0], next(runs[0].model.parameters()).device
    for other in runs[1:]:
        if [*map(every_token, first.tokenizers)] != [*map(every_token, other.tokenizers)]:
            raise ValueError(
                f"{first.folder} and {other.folder} have different vocabularies: an ensemble needs the same"
            )
        own, theirs = (" ".join(run.tokenizers.tags) or "no tag" for run in (first, other))
        if own != theirs:
            raise ValueError(
                f"sources of {first.folder} begin with {own}, those of {other.folder} with {theirs}: give runs of one "
                "direction, and a --tag that both know"
            )
    require_precision(device, precision)
    models = [stepwise(run.model, *packing(precision, device, run.config.model.d_model), thorough) for run in runs]
    model: Searchable[Any] = models[0] if len(models) == 1 else Ensemble(models)
    return Translator(
        BeamSearch(model, device) if sampling is None else Sampling(model, device, sampling),
        first.tokenizers,
        first.config.data.tgt_lang,
        search or first.config.search,
        min(run.window for run in runs),
        min(run.config.model.max_length for run in runs),
        src_lang=first.config.data.src_lang,
    )


class Trained(NamedTuple, Generic[RunConfigT, VocabularyT, NetT]):
    """A network of another task, trained, and what belongs to it."""

    config: RunConfigT
    vocabulary: VocabularyT
    net: NetT


LABELS = "labels.json"  # in a classifier's run


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


TrainedBert = Trained[MaskedLanguageConfig, Tokenizer, BertForPreTraining]
TrainedLanguageModel = Trained[LanguageConfig, Tokenizer, TransformerXL]
TrainedClassifier = Trained[ClassificationConfig, Labelling, BertClassifier]


def load_bert(folder: Path, device: torch.device | None = None) -> TrainedBert:
    """Read the run of a BERT, whose one token beyond the vocabulary is the mask."""
    config, tokenizer = read_config(folder, MaskedLanguageConfig), load_tokenizers(folder).src
    build = partial(BertForPreTraining, config.model, len(tokenizer) + 1)
    return Trained(config, tokenizer, _trained(build, folder, device))


def load_language_model(folder: Path, device: torch.device | None = None) -> TrainedLanguageModel:
    """Read the run of a Transformer-XL."""
    config, tokenizer = read_config(folder, LanguageConfig), load_tokenizers(folder).src
    return Trained(config, tokenizer, _trained(partial(TransformerXL, config.model, len(tokenizer)), folder, device))


def load_classifier(folder: Path, device: torch.device | None = None) -> TrainedClassifier:
    """Read the run of a classifier."""
    config, vocabulary = read_config(folder, ClassificationConfig), Labelling.load(folder)
    build = partial(BertClassifier, config.model, len(vocabulary.tokenizer) + 1, len(vocabulary.labels))
    return Trained(config, vocabulary, _trained(build, folder, device))


def pretrained_shape(folder: Path, own: TransformerConfig | BertConfig, language: str | None = None) -> dict[str, Any]:
    """Return the settings of a BERT, for a network initialised from it; dropouts and `fused` are the network's own.

    `language` is what the network is to read; None: any.
    """
    config = read_config(folder, MaskedLanguageConfig)
    if language is not None and primary_language(config.data.language) != primary_language(language):
        raise ValueError(f"init_encoder={folder} reads {config.data.language}, but the texts to read are in {language}")
    free = {"dropout": own.dropout, "attention_dropout": own.attention_dropout, "fused": own.fused}
    return asdict(config.model) | free


_MAX_EXAMPLE, _EASY_TO_READ = 100, 40  # characters; it is a button


def examples(folder: Path) -> list[str]:
    """Return sentences of the dev text that the last validation of a run showed; without a log, of the test text."""
    from utils.training.report import LOG, read_log  # which translating need not wait for

    records = read_log(folder / LOG) if (folder / LOG).is_file() else []
    shown = [record["samples"] for _, record in records if record.get("samples")]
    if not shown and (folder / TEST).is_file():
        shown = [read_json(folder / TEST).get("samples", [])]
    sources = [sample["source"] for sample in (shown or [[]])[-1]]
    fitting = [source for source in sources if len(source) <= _MAX_EXAMPLE]
    return sorted(fitting, key=lambda source: abs(len(source) - _EASY_TO_READ))
