"""Export to ONNX: the graphs compute what the network computes, whatever it is made of, and are searched alike."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, cast

import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import export
from config.data import DataConfig
from config.model import BertConfig, TransformerConfig
from config.search import Bounds, SearchConfig
from const.path import PICKLES, ROOT
from const.token import PAD_ID
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.mask import padding_mask
from layers.probe import recorded_calls, recorded_weights, silenced_head
from models.transformer import Transformer
from tests import tiny
from tests.test_export import snippet_of, tagged
from tests.tiny import MODEL, TEXT, TOKENIZER, Outcome, lively, outcome, run, sources, tokenizers
from utils.config import TranslationConfig
from utils.dataset.corpus import take
from utils.dataset.text import read_lines
from utils.evaluation.metric import bleu_tokenizer, build_metrics
from utils.export.graph import FACTS, WEIGHTS, Graphs, Traced, write_graphs
from utils.load import Run, load_run
from utils.search.beam import beam_search
from utils.search.forced import attentions
from utils.search.sampling import greedy_search
from utils.search.searcher import Request
from utils.training.checkpoint import read_weights, write_weights
from utils.training.schedule import Rank

CPU = torch.device("cpu")
NETWORKS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rotary", "n_encoder_layers": 2, "tie": "all"},
    "as in the paper": {"norm_first": False, "activation": "gelu"},
    "learned": {"positions": "learned", "norm": "rms", "activation": "swiglu", "tie": "none", "fused": False},
    "none": {"positions": "none", "scale_attention": False, "scale_embedding": False, "norm": "rms"},
}


def bent(x: Tensor) -> Tensor:
    """An edited activation."""
    return x.tanh() + 0.1 * x


def tiny_run(config: TransformerConfig, activation: Callable[[Tensor], Tensor] | None = None) -> Run:
    one = tokenizers().tgt
    pair = tokenizers()._replace(src=one) if config.tie == "all" else tokenizers()
    model = lively(config, len(pair.src), len(pair.tgt))
    if activation is not None:
        cast(DecoderBlock, model.decoder[0]).feed_forward.activation = activation
    settings = TranslationConfig(data=DataConfig(corpus="files"), tokenizer=TOKENIZER, model=config)
    return Run(Path("tiny"), settings, pair, model)


@cache
def exported(name: str) -> tuple[Transformer, Graphs]:
    """A network and its graphs, traced once for all tests."""
    given, folder = tiny_run(replace(MODEL, **NETWORKS[name]), bent if name == "none" else None), Path(mkdtemp())
    write_graphs(given, folder)
    return given.transformer, Graphs(folder)


def same(found: NDArray[Any], expected: Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=2e-5, rtol=1e-4)


def expected_of(model: Transformer, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
    """What the graphs should return for rows (N, W, T), each of which reads a copy of its source here."""
    kinds = attentions(model)
    rows, copies = tgt.flatten(0, 1), src.repeat_interleave(tgt.size(1), 0)
    with (
        torch.no_grad(),
        recorded_weights(kinds["encoder"]) as read,
        recorded_weights(kinds["decoder"]) as own,
        recorded_weights(kinds["cross"]) as cross,
        recorded_calls(model.decoder) as calls,
    ):
        source = model.before(model.encode(src)).source
        before = model.before(model.encode(copies), padding_mask(copies, PAD_ID))
        hidden, after = model.decode(rows, before)
        states = torch.stack([output for _, (output, _) in calls])
        return {
            "source": torch.stack([torch.stack(kv) for kv in source]),
            "attention": torch.stack(read[: len(model.encoder)]),
            "states": states,
            "present": torch.stack([torch.stack(kv) for kv in after.past]),
            "self_attention": torch.stack(own),
            "cross_attention": torch.stack(cross),
            "log_probs": torch.stack([model.output(model.decoder_norm(each)).log_softmax(-1) for each in states]),
            "last": model.output(hidden).log_softmax(-1),
        }


def computed(graphs: Graphs, src: Tensor, tgt: Tensor, **heads: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """What the graphs return for rows (N, W, T) without a past."""
    of_encoder = {"heads": heads["encoder"]} if "encoder" in heads else {}
    of_decoder = {f"{side}_heads": factors for side, factors in heads.items() if side != "encoder"}
    found = dict(zip(("source", "attention"), graphs.run("encoder", src=src.numpy(), **of_encoder), strict=True))
    past, rows = found["source"][:, :, :, :, :0], torch.zeros(tgt.shape[:2], dtype=torch.long)
    given = {"tgt": tgt.numpy(), "src": src.numpy(), "source": found["source"], "past": past, "rows": rows.numpy()}
    names = "states", "present", "self_attention", "cross_attention"
    found |= dict(zip(names, graphs.run("decoder", **given, **of_decoder), strict=True))
    (log_probs,) = graphs.run("output", states=found["states"])
    return found | {"log_probs": log_probs, "last": log_probs[-1]}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_output_is_that_of_the_network(name: str) -> None:
    model, graphs = exported(name)
    for src, (width, length) in ((sources(5), (1, 1)), (sources(3, 9, 1), (3, 4)), (sources(2, 4), (1, 17))):
        draw = torch.Generator().manual_seed(length)
        tgt = torch.randint(4, 20, (len(src), width, length), generator=draw)
        expected, found = expected_of(model, src, tgt), computed(graphs, src, tgt)
        assert found.keys() == expected.keys()
        for output, tensor in expected.items():
            same(found[output], tensor)
        # one position more, where rows have changed places, and some have gone
        rows = torch.stack([torch.tensor([width - 1, 0]) + width * n for n in range(len(src))])
        new = torch.randint(4, 20, (len(src), 2, 1), generator=draw)
        step = {"tgt": new.numpy(), "src": src.numpy(), "source": found["source"]}
        states, present, own, cross = graphs.run("decoder", **step, past=found["present"], rows=rows.numpy())
        longer = torch.cat([tgt.flatten(0, 1)[rows], new], 2)
        expected = expected_of(model, src, longer)
        same(present, expected["present"])
        for output, array in {"states": states, "self_attention": own, "cross_attention": cross}.items():
            tensor = expected[output]
            same(array, tensor[..., -1:, :])
    assert tgt.size(2) > model.config.max_length // 3


def test_a_muted_head_is_one_whose_output_is_zero() -> None:
    model, graphs = exported("rotary")
    src, tgt = sources(3, 6), torch.randint(4, 20, (2, 2, 5), generator=torch.Generator().manual_seed(1))
    whole = expected_of(model, src, tgt)
    c = model.config
    for side, blocks in (("encoder", model.encoder), ("self", model.decoder), ("cross", model.decoder)):
        factors = torch.ones(len(blocks), c.n_heads)
        factors[1, 0] = 0
        attention = getattr(blocks[1], "cross_attention" if side == "cross" else "self_attention")
        with silenced_head(attention, 0):
            expected = expected_of(model, src, tgt)
        found = computed(graphs, src, tgt, **{side: factors.numpy()})
        for output, tensor in expected.items():
            same(found[output], tensor)
        assert (expected["last"] - whole["last"]).abs().max() > 0.1


def test_a_source_token_that_is_set_to_padding_is_hidden() -> None:
    model, graphs = exported("as in the paper")
    src, tgt = sources(6), torch.tensor([[[2, 7, 9]]])
    hidden = src.clone()
    hidden[0, 2] = PAD_ID
    found = computed(graphs, hidden, tgt)
    for output, tensor in expected_of(model, hidden, tgt).items():
        same(found[output], tensor)
    assert not found["attention"][..., 2].any()
    assert not found["cross_attention"][..., 2].any()
    assert abs(found["last"] - computed(graphs, src, tgt)["last"]).max() > 0.01


# ---- the folder

Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *words: outcome("export.py", export.main, capsys, *words)


class Searched(NamedTuple):
    """The state of a search in graphs."""

    src: Tensor
    source: NDArray[Any]
    past: NDArray[Any]
    rows: Tensor

    def select(self, rows: Tensor) -> "Searched":
        """A state without the sentences of which no row stays."""
        stay = rows[:, 0] // self.rows.size(1)
        return Searched(self.src[stay], self.source[:, :, stay.numpy()], self.past, rows)


class Searching:
    """The graphs as a model that our own search can search."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs

    def start(self, src: Tensor) -> Searched:
        source, _ = self.graphs.run("encoder", src=src.numpy())
        return Searched(src, source, source[:, :, :, :, :0], torch.arange(len(src))[:, None])

    def step(self, tokens: Tensor, state: Searched) -> tuple[Tensor, Searched]:
        step = {"tgt": tokens.view(*state.rows.shape, 1).numpy(), "src": state.src.numpy(), "source": state.source}
        states, present, *_ = self.graphs.run("decoder", **step, past=state.past, rows=state.rows.numpy())
        (log_probs,) = self.graphs.run("output", states=states[-1:])
        rows = torch.arange(len(tokens)).view(state.rows.shape)
        return torch.from_numpy(log_probs[0, :, 0]), state._replace(past=present, rows=rows)


def test_the_folder_translates_as_its_card_shows_and_as_the_run_does(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.tiny.tokenizers", tagged)
    folder, output = run(tmp_path, replace(MODEL, positions="rotary", tie="all")), tmp_path / "京都 graphs"
    assert command(folder, "--to", "onnx", "--output", output, "--quantization", "int8").status == 0
    given = load_run(folder, CPU)
    read_again = tmp_path / "weights"
    write_weights(given.model.state_dict(), read_again, Rank(0.0), in_int8=True)
    given.model.load_state_dict(read_weights(read_again))
    src, tgt = sources(3, 6), torch.randint(4, 20, (2, 3, 4), generator=torch.Generator().manual_seed(1))
    found = computed(Graphs(output), src, tgt)
    for name, tensor in expected_of(given.transformer, src, tgt).items():
        same(found[name], tensor)
    requests = [Request(ids, Bounds(0, 2 * len(ids) + 12)) for ids in given.tokenizers.src.encode(TEXT.src[::4])]
    ours, theirs = (greedy_search(net, requests, SearchConfig(1)) for net in (given.model, Searching(Graphs(output))))
    assert [one.ids for one in theirs] == [one.ids for one in ours]
    assert len({tuple(one.ids) for one in ours}) > 2
    wide = SearchConfig(3, 1.0)
    mine, others = (beam_search(net, requests, wide, n_best=1) for net in (given.model, Searching(Graphs(output))))
    assert [best.ids for best, *_ in others] == [best.ids for best, *_ in mine]
    files = {"encoder.onnx", "decoder.onnx", "output.onnx", WEIGHTS, FACTS, "README.md"}
    assert {file.name for file in output.iterdir()} == files | {"tokenizer.model", "tokenizer_tag.txt"}
    assert not [file for file in output.iterdir() if str(tmp_path).encode() in file.read_bytes()]
    assert not [file for file in output.iterdir() if str(ROOT).encode() in file.read_bytes()]
    capsys.readouterr()
    with contextlib.chdir(output):
        exec(snippet_of(output).replace("a sentence", TEXT.src[4]), {})
    text = given.tokenizers.tgt.decode([greedy_search(given.model, requests[1:2], SearchConfig(1))[0].ids])[0]
    assert capsys.readouterr().out == f"{text}\n"


def of_length(x: Tensor) -> Tensor:
    """What no graph has: for long sentences it is something else."""
    return x.tanh() if x.size(1) < 9 else x.relu()


def of_value(x: Tensor) -> Tensor:
    return x.tanh() if x.sum() > 0 else x.relu()


def test_networks_that_are_made_alike_are_traced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, given = Traced(), tiny_run(MODEL)
    other = given._replace(model=lively(MODEL, len(given.tokenizers.src), len(given.tokenizers.tgt), seed=2))
    write_graphs(given, tmp_path, "float32", traced)
    before = (tmp_path / WEIGHTS).read_bytes()
    monkeypatch.setattr("utils.export.graph._traced", lambda _: 1 / 0)
    write_graphs(other, tmp_path, "float32", traced)  # which compares what they compute
    assert (tmp_path / WEIGHTS).read_bytes() != before
    with pytest.raises(ZeroDivisionError):
        write_graphs(tiny_run(replace(MODEL, norm_first=False)), tmp_path, "float32", traced)


def test_what_has_no_graph_is_refused_by_name(command: Command, tmp_path: Path) -> None:
    for function, message in (
        (of_length, r"onnxruntime computes another network than this one \(.+\): give --to safetensors$"),
        (of_value, r"this network has no ONNX graph \(.+\): give --to safetensors$"),
    ):
        given = tiny_run(replace(MODEL, n_decoder_layers=1))
        cast(EncoderBlock, given.transformer.encoder[0]).feed_forward.activation = function
        with pytest.raises(ValueError, match=message) as refused:
            write_graphs(given, tmp_path)
        assert "\n" not in str(refused.value)
    reader = replace(MODEL, bert=BertConfig(d_model=16, n_heads=2, d_ff=24, n_layers=2, max_length=12))
    with pytest.raises(ValueError, match="a BERT as encoder has no ONNX graph here: "):
        write_graphs(tiny_run(reader), tmp_path)
    output = tmp_path / "x"
    of_language = command(tiny.language_run(tmp_path), "--to", "onnx", "--output", output).complaint
    assert "only Transformers that translate can be exported --to onnx" in of_language
    to = ("--to", "onnx", "--output", output, "--quantization", "int4")
    assert "quantization=int4: ONNX files have float32 or int8" in command(run(tmp_path), *to).complaint
    assert not output.exists()


# ---- the translators that come with the project


@pytest.mark.slow
@pytest.mark.parametrize(("src_lang", "tgt_lang"), [("ja", "en"), ("en", "ja")])
def test_shipped_translators_say_the_same_token_by_token(
    src_lang: str, tgt_lang: str, shared_data: Path, tmp_path: Path
) -> None:
    """200 lines of the dev set of KFTT, as published."""
    paths = [f"orig/kyoto-dev.{language}" for language in (src_lang, tgt_lang)]
    take(shared_data / "kftt-data-1.0.tar.xz", set(paths), tmp_path)
    texts, references = ((lines := read_lines(tmp_path / path))[:: len(lines) // 200][:200] for path in paths)
    given = load_run(PICKLES / f"kftt_{src_lang}_{tgt_lang}", CPU)
    longest = given.transformer.config.max_length - 1
    ids = [each[: given.window - 1] for each in given.tokenizers.src.encode(texts)]
    order = sorted(range(200), key=lambda i: len(ids[i]))
    metric = build_metrics(tgt_lang, bleu_tokenizer(tgt_lang, False))["BLEU"]

    def translated(net: Any) -> tuple[list[list[int]], float]:
        said: dict[int, list[int]] = {}
        for begin in range(0, len(order), 40):
            part = order[begin : begin + 40]
            requests = [Request(ids[i], Bounds(0, min(2 * len(ids[i]) + 10, longest))) for i in part]
            said |= {i: found.ids for i, found in zip(part, greedy_search(net, requests, SearchConfig(1)), strict=True)}
        found = [said[i] for i in range(len(order))]
        return found, metric.corpus_score(given.tokenizers.tgt.decode(found), [references]).score

    ours, bleu = translated(given.model)
    for quantization in ("float32", "int8"):
        folder = tmp_path / quantization
        folder.mkdir()
        write_graphs(given, folder, quantization)
        theirs, score = translated(Searching(Graphs(folder)))
        equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
        print(f"{src_lang}-{tgt_lang} {quantization}: {equal} of 200 equal, BLEU {score:.2f}, ours {bleu:.2f}")
        assert equal >= 199 or quantization == "int8"
        assert abs(score - bleu) < 0.2
