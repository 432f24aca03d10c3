"""The recurrent translator: its attention pair by pair, its steps against the whole, and all that runs can do."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from config.data import BatchConfig, DataConfig
from config.model import RecurrentConfig
from config.search import Bounds, SearchConfig
from config.training import OptimizerConfig, TranslationTrainingConfig
from const.token import BOS_ID, EOS, EOS_ID, PAD_ID
from export import export
from layers.additive_attention import AdditiveAttention
from layers.packed import packed
from models.recurrent import RecurrentTranslator
from tests.tiny import TEXT, TOKENIZER, assert_learned, drawn, reversed_rightly, sources, tokenizers
from tests.tree import asked
from utils.config import RecurrentTranslationConfig
from utils.export.safetensors import load_safetensors, write_safetensors
from utils.load import load_run
from utils.run import WEIGHTS, create_run, find_run, translators
from utils.search.beam import beam_search
from utils.search.forced import align, attention_weights, layer_guesses, token_log_probs
from utils.search.sampling import greedy_search
from utils.search.translator import Translator
from utils.task.task import prepare
from utils.training.checkpoint import write_weights
from utils.training.schedule import Rank
from utils.visualize.attention import show_attention
from utils.visualize.explain import show_explanation

CPU = torch.device("cpu")
TINY = RecurrentConfig(d_model=8, d_hidden=6, dropout=0.0, max_length=24)
VOCAB = 11
SRC = torch.tensor([[4, 5, 6, 7, 8, 9, EOS_ID], [9, 4, EOS_ID, 0, 0, 0, 0], [EOS_ID, 0, 0, 0, 0, 0, 0]])
TGT = torch.tensor([[BOS_ID, 4, 5, 0, 0], [BOS_ID, 6, 7, 8, 9], [BOS_ID, 0, 0, 0, 0]])


def lively(config: RecurrentConfig = TINY, src_vocab: int = VOCAB, tgt_vocab: int = VOCAB) -> RecurrentTranslator:
    torch.manual_seed(0)
    return drawn(RecurrentTranslator(config, src_vocab, tgt_vocab)).eval()


def test_additive_attention_is_the_formula_pair_by_pair() -> None:
    torch.manual_seed(0)
    attention = AdditiveAttention(5, 7, 3).double()
    query, memory = torch.randn(2, 4, 5).double(), torch.randn(2, 6, 7).double()
    mask = torch.tensor([[[True] * 6], [[True] * 2 + [False] * 4]])
    mixed, weights = attention.attend(query, attention.project(memory), memory, mask)
    w, u, v = attention.query, attention.key.weight, attention.score.weight[0]
    for b, s_len in enumerate((6, 2)):
        for t in range(4):
            scores = [v @ torch.tanh(w(query[b, t]) + u @ memory[b, s]) for s in range(s_len)]
            total = sum(score.exp() for score in scores)
            expected = torch.stack([score.exp() / total for score in scores])
            torch.testing.assert_close(weights[b, t], F.pad(expected, (0, 6 - s_len)))
            torch.testing.assert_close(mixed[b, t], expected @ memory[b, :s_len])


@torch.no_grad()
def test_steps_are_the_forward_of_every_beam() -> None:
    """Beams are permuted, doubled and dropped at random, and a sentence leaves on the way."""
    model = lively().double()
    draw = torch.Generator().manual_seed(1)
    src, state = SRC, model.start(SRC)
    said = torch.full((len(src), 1), BOS_ID)
    fresh = said[:, 0]
    for t in range(1, 9):
        logits, state = model.step(fresh, state)
        held = len(said) // len(src)
        torch.testing.assert_close(logits, model(src.repeat_interleave(held, 0), said)[:, -1])
        assert len(state.memory) == len(src)  # never once per beam
        staying = torch.tensor([0, 2]) if t == 5 else torch.arange(len(src))
        rows = staying[:, None] * held + torch.randint(held, (len(staying), 3), generator=draw)
        state, src = state.select(rows), src[staying]
        fresh = torch.randint(4, VOCAB, (rows.numel(),), generator=draw)
        said = torch.cat([said[rows.flatten()], fresh[:, None]], dim=1)


@torch.no_grad()
def test_padding_changes_nothing_and_neither_does_the_future() -> None:
    model = lively().double()
    together = model(F.pad(SRC, (0, 3), value=PAD_ID), F.pad(TGT, (0, 4), value=PAD_ID))
    for row, (src, tgt) in enumerate(zip(SRC, TGT, strict=True)):
        src, tgt = src[src != PAD_ID], tgt[tgt != PAD_ID]
        torch.testing.assert_close(together[row, : len(tgt)], model(src[None], tgt[None])[0])
    other = TGT.clone()
    other[:, 2] = 10
    torch.testing.assert_close(model(SRC, other)[:, :2], model(SRC, TGT)[:, :2])
    assert (model(SRC, other)[:, 2] - model(SRC, TGT)[:, 2]).abs().amax(-1).min() > 1e-5


@torch.no_grad()
def test_every_source_token_matters_in_every_place() -> None:
    model, src = lively().double(), SRC[:1]
    logits = model(src, TGT[:1])
    for place in range(src.size(1)):
        other = src.clone()
        other[0, place] = 10
        assert (model(other, TGT[:1]) - logits).abs().amax(-1).min() > 1e-6, place


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_the_gradient_reaches_every_parameter(tie: Literal["none", "target", "all"]) -> None:
    torch.manual_seed(0)
    model = RecurrentTranslator(replace(TINY, tie=tie), VOCAB, VOCAB)
    assert model.get_parameter("src_embedding.weight")[PAD_ID].count_nonzero() == 0
    F.cross_entropy(model(SRC, TGT)[:, :-1].flatten(0, 1), TGT[:, 1:].flatten(), ignore_index=PAD_ID).backward()
    assert_learned(model, 1e-7)
    shared = model.output.weight is model.tgt_embedding.weight, model.src_embedding.weight is model.tgt_embedding.weight
    assert shared == (tie != "none", tie == "all")


@torch.no_grad()
def test_packed_it_says_the_same_in_half_precision_too() -> None:
    model = lively()
    with torch.autocast("cpu", torch.bfloat16):
        half = model(SRC, TGT)
    for dtype, expected, tolerance in ((torch.float32, model(SRC, TGT), 1e-5), (torch.bfloat16, half.float(), 0.1)):
        copy = packed(model, dtype)
        torch.testing.assert_close(copy(SRC, TGT).float(), expected, atol=tolerance, rtol=0)
        stepped, _ = copy.step(TGT[:, 0], copy.start(SRC))
        assert stepped.dtype == dtype
        torch.testing.assert_close(stepped.float(), expected[:, 0], atol=tolerance, rtol=0)


def test_it_learns_to_reverse() -> None:
    torch.manual_seed(0)
    assert reversed_rightly(RecurrentTranslator(replace(TINY, d_model=32, d_hidden=32), 12, 12), 150) > 0.7


# search, attention, runs: all that a Transformer can do


def test_a_beam_of_one_is_greedy_and_a_batch_changes_nothing() -> None:
    model, src = lively(replace(TINY, tie="target"), 20, 23), sources(5, 2, 7, 1, 3)
    requests = asked(src, [Bounds(0, 9)] * len(src))
    greedy = greedy_search(model, requests, SearchConfig(beam_size=1))
    ones = [one for (one,) in beam_search(model, requests, SearchConfig(beam_size=1))]
    assert [one.ids for one in ones] == [one.ids for one in greedy]
    together = beam_search(model, requests, SearchConfig(beam_size=4))
    for request, found in zip(requests, together, strict=True):
        (alone,) = beam_search(model, [request], SearchConfig(beam_size=4))
        assert [one.ids for one in alone] == [one.ids for one in found]
    # what a search says of its best is what forced decoding says of it
    given = [found[0].ids for found in together]
    log_probs = token_log_probs(model, [row[row > EOS_ID].tolist() for row in src], given)
    for found, each in zip(together, log_probs, strict=True):
        assert found[0].score * SearchConfig().penalty(len(each)) == pytest.approx(sum(each), abs=1e-4)


def test_its_attention_is_one_head_of_cross_attention_and_its_decoder_one_layer() -> None:
    model = lively()
    src, tgt = [4, 5, 6], [7, 8]
    (weights,) = attention_weights(model, src, tgt)["cross"]
    assert weights.shape == (1, 3, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3))
    state = model.start(torch.tensor([[*src, EOS_ID]]))
    for token, row in zip((BOS_ID, *tgt), weights[0], strict=True):
        query = state.hidden[:, None]
        _, expected = model.decoder.attention.attend(query, state.key, state.memory, state.mask)
        torch.testing.assert_close(row, expected[0, 0].detach())
        _, state = model.step(torch.tensor([token]), state)
    (only,) = layer_guesses(model, src, tgt)
    torch.testing.assert_close(only, model(torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]]))[0])
    (links,) = align([model], [src], [tgt])
    assert links == [(int(row[:-1].argmax()), t) for t, row in enumerate(weights[0, :-1])]


CONFIG = RecurrentTranslationConfig(
    name="recurrent",
    data=DataConfig(corpus="files"),
    tokenizer=TOKENIZER,
    model=replace(TINY, tie="target"),
    batch=BatchConfig(max_tokens=24),
    training=TranslationTrainingConfig(precision="fp32", device="cpu"),
    search=SearchConfig(beam_size=2, min_length=3),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that has learned nothing."""
    folder = create_run(CONFIG, tokenizers(), root=tmp_path / "pickles")
    net = lively(CONFIG.model, *map(len, tokenizers()))
    write_weights(net.state_dict(), folder / WEIGHTS, Rank(0.0))
    return folder


def test_its_run_is_found_loaded_and_translated_with_as_any(folder: Path, tmp_path: Path) -> None:
    assert find_run(None, root=folder.parent) == folder
    assert [*translators(folder.parent)] == [(folder, "ja", "en")]
    run = load_run(folder, CPU)
    assert run.config == CONFIG
    assert isinstance(run.model, RecurrentTranslator)
    translator = run.translator()
    assert isinstance(translator, Translator)
    assert all(found.text for found in translator.translate(TEXT.src[:5]))
    for name in ("a.png", "a.html"):
        show_attention(run, translator, TEXT.src[0], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert EOS.replace("<", "\\u003c").replace(">", "\\u003e") in page
    assert '"kind":"encoder"' not in page
    with pytest.raises(ValueError, match=r"is of task recurrent_translation: give the run of a Transformer"):
        show_explanation(run, translator, TEXT.src[0], tmp_path / "e.html")


def test_as_safetensors_it_says_the_same_and_what_is_for_transformers_refuses_it(folder: Path, tmp_path: Path) -> None:
    run, ids = load_run(folder, CPU), sources(3, 7)
    (tmp_path / "exported").mkdir()
    write_safetensors(run.model, run.tokenizers, {"name": "京都"}, Rank(1.0), tmp_path / "exported")
    loaded, _, facts = load_safetensors(tmp_path / "exported")
    assert facts["architecture"] == "RecurrentTranslator"
    assert loaded(ids, ids).equal(run.model(ids, ids))
    with pytest.raises(ValueError, match=r"is of task recurrent_translation, but only Transformers .*: give --to safe"):
        export(folder, "ctranslate2", tmp_path / "ctranslate2")
    with pytest.raises(ValueError, match=r"is of task recurrent_translation: give the run of a Transformer$"):
        _ = run.transformer
    muon = replace(CONFIG, optimizer=OptimizerConfig(kind="muon"))
    with pytest.raises(ValueError, match=r"optimizer\.kind=muon is for a Transformer's blocks: give --optimizer\.kind"):
        prepare(muon, None, print)
    assert math.isfinite(sum(token_log_probs(run.model, [[4, 5]], [[6]])[0]))
