"""A corpus, tokenizers, networks and runs, each so small that it is made in a blink; what tests share."""

import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from config.data import BatchConfig, DataConfig, LabelledConfig, MonolingualConfig, StreamConfig, TokenizerConfig
from config.model import BertConfig, ClassifierConfig, TransformerConfig, TransformerXLConfig
from config.search import Bounds, SearchConfig
from config.training import TranslationTrainingConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from utils.command import run_command
from utils.config import AnyConfig, ClassificationConfig, LanguageConfig, MaskedLanguageConfig, TranslationConfig
from utils.dataset.corpus import Corpus
from utils.dataset.labelled import LabelNames
from utils.dataset.text import ParallelFiles, ParallelText
from utils.load import Labelling
from utils.run import WEIGHTS, create_run
from utils.search.sampling import greedy_search
from utils.search.searcher import Request
from utils.text.tokenizer import Tokenizer, TokenizerPair, Vocabulary, train_tokenizers
from utils.training.checkpoint import write_weights
from utils.training.schedule import Rank

ModuleT = TypeVar("ModuleT", bound=nn.Module)
MODEL = TransformerConfig(
    d_model=16, n_heads=2, d_ff=32, n_encoder_layers=1, n_decoder_layers=2, dropout=0.0, max_length=48, tie="target"
)
TOKENIZER = TokenizerConfig(kind="bpe", vocab_size=48, joint=False)

_PLACES = {"京都": "Kyoto", "奈良": "Nara", "大阪": "Osaka", "嵐山": "Arashiyama", "宇治": "Uji", "伏見": "Fushimi"}
_KINDS = {"古い": "old", "新しい": "new", "美しい": "beautiful", "小さい": "small"}
_THINGS = {"寺": "temple", "橋": "bridge", "川": "river", "庭": "garden", "店": "shop"}

TEXT = ParallelText(
    [f"{place}に{kind}{thing}がある。" for place in _PLACES for kind in _KINDS for thing in _THINGS],
    [f"There is a {k} {t} in {p}." for p in _PLACES.values() for k in _KINDS.values() for t in _THINGS.values()],
)

_NOWHERE = ParallelFiles(Path("nowhere.src"), Path("nowhere.tgt"))
CORPUS = Corpus("files", DataConfig("files"), _NOWHERE, _NOWHERE, _NOWHERE)


@cache
def tokenizers() -> TokenizerPair:
    return train_tokenizers(TOKENIZER, TEXT.src, TEXT.tgt)


def tagged_tokenizers() -> TokenizerPair:
    """Those of a translator that has learned both directions and two kinds of text, for one of these kinds."""
    config = replace(TOKENIZER, joint=True, tag=True, vocab_size=90)
    return train_tokenizers(config, TEXT.src, TEXT.tgt, ("ja", "en"), ["bt", "law"]).with_tag("law")


def drawn(module: ModuleT, std: float = 0.5) -> ModuleT:
    """Every weight is drawn, so that a forgotten bias or a norm in the wrong place shows."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module


def lively(config: TransformerConfig, src_vocab: int, tgt_vocab: int, seed: int = 1) -> Transformer:
    """What it says depends on all that it reads."""
    torch.manual_seed(seed)
    return drawn(Transformer(config, src_vocab, tgt_vocab), 0.6).eval()


def translating(config: TransformerConfig = MODEL, seed: int = 1) -> Transformer:
    """A lively network for `tokenizers`."""
    return lively(config, len(tokenizers().src), len(tokenizers().tgt), seed)


def sources(*lengths: int, vocab: int = 20, seed: int = 0) -> Tensor:
    """A random source of each length, </s> behind it and padding behind that."""
    draw = torch.Generator().manual_seed(seed)
    src = torch.full((len(lengths), max(lengths) + 1), PAD_ID)
    for row, length in zip(src, lengths, strict=True):
        row[:length] = torch.randint(4, vocab, (length,), generator=draw)
        row[length] = EOS_ID
    return src


def run(root: Path, model: TransformerConfig = MODEL) -> Path:
    """The folder of a run that has learned nothing."""
    config = TranslationConfig(
        name="tiny",
        data=DataConfig(corpus="files"),
        tokenizer=TOKENIZER,
        model=model,
        batch=BatchConfig(max_tokens=32),
        training=TranslationTrainingConfig(precision="fp32", device="cpu"),
        search=SearchConfig(beam_size=2),
    )
    return _run(config, tokenizers(), translating(model), root)


def _run(config: AnyConfig, vocabulary: Vocabulary, net: nn.Module, root: Path) -> Path:
    folder = create_run(config, vocabulary, root=root)
    write_weights(net.state_dict(), folder / WEIGHTS, Rank(0.0))
    return folder


def written_out(model: Transformer) -> Transformer:
    """The same weights with every attention by the formula, none by a fused kernel."""
    weights = model.state_dict()
    sizes = (len(weights[f"{name}.weight"]) for name in ("src_embedding", "output"))
    twin = Transformer(replace(model.config, fused=False), *sizes)
    twin.load_state_dict(weights)
    return twin.eval()


class Outcome(NamedTuple):
    """How a command ended, and what it said."""

    status: object
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that a mistake is answered with."""
        assert self.status == 2
        assert not self.out
        assert re.fullmatch(r"[a-z]+\.py( [a-z-]+)?: error: [^\n]+\n", self.err)
        return self.err


def outcome(
    program: str, main: Callable[[], None], captured: pytest.CaptureFixture[str], *words: object, stdin: bytes = b""
) -> Outcome:
    """Run a command to its end, in the tests' own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *map(str, words)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            run_command(program, main)
    return Outcome(ended.value.code, *captured.readouterr())


# Any warning fails the test (of a glyph that is missing, say, or a map that has no room), but for those of a resource
# that another test left open and that is only collected now.
no_warning = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")


def assert_twin(ours: Callable[[], Tensor], expected: Tensor, *inputs: Tensor) -> None:
    """Equal values, where nothing learns too (there another kernel may compute them), and equal gradients."""
    value = ours()
    torch.testing.assert_close(value, expected)
    with torch.no_grad():
        torch.testing.assert_close(ours(), expected)
    direction = torch.randn_like(expected)
    mine, theirs = (torch.autograd.grad((x * direction).sum(), inputs) for x in (value, expected))
    torch.testing.assert_close(mine, theirs)


def reversed_rightly(net: Any, n_updates: int) -> float:
    """Trains it to write four symbols backwards: the share of new ones that greedy search then gets right."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        symbols = torch.randint(4, 12, (size, 4))
        bos, eos = torch.full((size, 1), BOS_ID), torch.full((size, 1), EOS_ID)
        return torch.cat([symbols, eos], 1), torch.cat([bos, symbols.flip(1), eos], 1)

    for _ in range(n_updates):
        src, tgt = batch(64)
        optimizer.zero_grad()
        F.cross_entropy(net(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten()).backward()
        optimizer.step()
    src, tgt = batch(100)
    requests = [Request(row[:-1], Bounds(0, 6)) for row in src.tolist()]
    hypotheses = greedy_search(net.eval(), requests, SearchConfig())
    return sum(hypothesis.ids == row[1:-1] for hypothesis, row in zip(hypotheses, tgt.tolist(), strict=True)) / 100


def assert_learned(net: nn.Module, minimum: float = 0.0) -> None:
    """The gradient has reached every parameter, and is a number everywhere."""
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > minimum, name


# Torch's own modules as oracles: their weights under our names.


def attention_state(theirs: nn.MultiheadAttention) -> dict[str, Tensor]:
    """What a MultiHeadAttention of ours loads to be this one."""
    return _split_projections(theirs.state_dict())


def block_state(theirs: nn.Module, *around: str) -> dict[str, Tensor]:
    """What a block of ours loads to be this layer of torch's, whose norms stand around these, in their order."""
    names = {
        "self_attn": "self_attention",
        "multihead_attn": "cross_attention",
        "linear1": "feed_forward.widen",
        "linear2": "feed_forward.narrow",
    } | {f"norm{number}": f"around_{name}.norm" for number, name in enumerate(around, start=1)}
    state = {}
    for name, tensor in theirs.state_dict().items():
        part, _, rest = name.partition(".")
        state[f"{names[part]}.{rest}"] = tensor
    return _split_projections(state)


def _split_projections(state: dict[str, Tensor]) -> dict[str, Tensor]:
    ours = {}
    for name, tensor in state.items():
        if "in_proj_" in name:
            third = len(tensor) // 3
            ours[name.replace("in_proj_", "query.")], ours[name.replace("in_proj_", "key_value.")] = tensor.split(
                [third, 2 * third]
            )
        else:
            ours[name.replace("out_proj", "output")] = tensor
    return ours


JAPANESE = tokenizers().src
LABELS = LabelNames(("bridge", "garden", "river"))
BERT = BertConfig(d_model=8, n_heads=2, d_ff=12, n_layers=1, max_length=16)
BATCH = BatchConfig(tokens_per_batch=64, max_tokens=12)
XL = TransformerXLConfig(d_model=8, n_heads=2, d_ff=12, n_layers=2, memory_length=20, tie=False)
NOWHERE = LabelledConfig(*(Path(f"nowhere.{part}") for part in "abcdef"))


def enliven(net: nn.Module, seed: int = 0) -> None:
    """What it says depends on all that it reads."""
    torch.manual_seed(seed)
    for parameter in net.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.6)


def says(net: nn.Module, output: nn.Linear, probabilities: list[float]) -> None:
    """It says the same whatever it reads."""
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        output.bias.copy_(torch.tensor(probabilities).log())


def bert_run(root: Path, probabilities: list[float] | None = None) -> Path:
    """A BERT with `JAPANESE`; enliven, or one that always says the same."""
    net = BertForPreTraining(BERT, len(JAPANESE) + 1)
    enliven(net) if probabilities is None else says(net, net.head.output, probabilities)
    config = MaskedLanguageConfig(tokenizer=TOKENIZER, model=BERT, batch=BATCH)
    return _run(config, TokenizerPair(JAPANESE, JAPANESE), net, root)


def classifier_run(root: Path, probabilities: list[float] | None = None, data: LabelledConfig = NOWHERE) -> Path:
    """A classifier with `JAPANESE` and `LABELS`."""
    model = ClassifierConfig(d_model=8, n_heads=2, d_ff=12, n_layers=1, max_length=16)
    net = BertClassifier(model, len(JAPANESE) + 1, len(LABELS))
    enliven(net, 5) if probabilities is None else says(net, net.classifier, probabilities)
    config = ClassificationConfig(data=data, tokenizer=TOKENIZER, model=model, batch=BATCH)
    return _run(config, Labelling(JAPANESE, LABELS), net, root)


@cache
def english() -> Tokenizer:
    """A language model's own tokenizer, not the translator's."""
    return train_tokenizers(replace(TOKENIZER, vocab_size=40), TEXT.src, TEXT.tgt).tgt


def language_run(root: Path, probabilities: list[float] | None = None) -> Path:
    """A Transformer-XL with the tokenizer `english`."""
    net = TransformerXL(XL, len(english()))
    enliven(net, 1) if probabilities is None else says(net, net.output, probabilities)
    data = MonolingualConfig(corpus="files", language="en")
    config = LanguageConfig(name="xl", data=data, tokenizer=TOKENIZER, model=XL, batch=StreamConfig(segment_length=5))
    return _run(config, TokenizerPair(english(), english()), net, root)
