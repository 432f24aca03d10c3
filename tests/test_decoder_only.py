"""The translator without an encoder: one stack against the whole sequence at once, its steps, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from config.data import BatchConfig, DataConfig
from config.model import DecoderOnlyConfig, RecurrentConfig
from config.search import Bounds, SearchConfig
from config.training import TranslationTrainingConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from export import export
from layers.mask import causal_mask
from layers.packed import PackedLinear, packed
from models.decoder_only import CachedBlock, DecoderOnlyTranslator
from models.recurrent import RecurrentTranslator
from models.stepwise import stepwise
from tests.tiny import TEXT, TOKENIZER, assert_learned, drawn, reversed_rightly, sources, tokenizers
from tests.tree import asked
from utils.config import DecoderOnlyTranslationConfig
from utils.export.safetensors import load_safetensors, write_safetensors
from utils.load import load_run
from utils.run import WEIGHTS, create_run
from utils.search.beam import beam_search
from utils.search.forced import attention_weights, layer_guesses, token_log_probs
from utils.training.checkpoint import write_weights
from utils.training.schedule import Rank

TINY = DecoderOnlyConfig(d_model=8, n_heads=2, d_ff=12, n_layers=2, dropout=0.0, max_length=24)
MODERN = replace(TINY, activation="swiglu", norm="rms", tie="none", fused=False)
VOCAB = 11
SRC = torch.tensor([[4, 5, 6, 7, 8, 9, EOS_ID], [9, 4, EOS_ID, 0, 0, 0, 0], [EOS_ID, 0, 0, 0, 0, 0, 0]])
TGT = torch.tensor([[BOS_ID, 4, 5, 0, 0], [BOS_ID, 6, 7, 8, 9], [BOS_ID, 0, 0, 0, 0]])

both = pytest.mark.parametrize("config", [TINY, MODERN], ids=["classic", "modern"])


def lively(config: DecoderOnlyConfig = TINY, vocab: int = VOCAB) -> DecoderOnlyTranslator:
    torch.manual_seed(0)
    return drawn(DecoderOnlyTranslator(config, vocab, vocab)).eval()


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)  # angles are in single precision


@both
@torch.no_grad()
def test_it_is_one_sequence_of_which_the_source_is_seen_by_all(config: DecoderOnlyConfig) -> None:
    model, src, tgt = lively(config).double(), SRC[:1], TGT[1:2]
    s_len, whole = src.size(1), src.size(1) + tgt.size(1)
    mask = causal_mask(whole, whole) | (torch.arange(whole) < s_len)
    x = torch.cat([model.src_embedding(src), model.tgt_embedding(tgt)], 1)
    for block in model.decoder:
        assert isinstance(block, CachedBlock)
        x, _ = block(x, mask, None)
    close(model(src, tgt), model.output(model.decoder_norm(x))[:, s_len:])


@both
@torch.no_grad()
def test_padding_and_the_other_rows_change_nothing_and_neither_does_the_future(config: DecoderOnlyConfig) -> None:
    model = lively(config).double()
    together = model(F.pad(SRC, (0, 3), value=PAD_ID), F.pad(TGT, (0, 4), value=PAD_ID))
    for row, (src, tgt) in enumerate(zip(SRC, TGT, strict=True)):
        src, tgt = src[src != PAD_ID], tgt[tgt != PAD_ID]
        close(together[row, : len(tgt)], model(src[None], tgt[None])[0])
    other = TGT.clone()
    other[:, 2] = 10
    close(model(SRC, other)[:, :2], model(SRC, TGT)[:, :2])
    assert (model(SRC, other)[:, 2] - model(SRC, TGT)[:, 2]).abs().amax(-1).min() > 1e-5
    for place in range(SRC.size(1)):
        changed = SRC[:1].clone()
        changed[0, place] = 10
        assert (model(changed, TGT[:1]) - model(SRC[:1], TGT[:1])).abs().amax(-1).min() > 1e-6, place


@both
@pytest.mark.parametrize("dtype", [None, torch.float32])
@torch.no_grad()
def test_steps_are_the_forward_of_every_beam(config: DecoderOnlyConfig, dtype: torch.dtype | None) -> None:
    """Beams are permuted, doubled and dropped at random, and a sentence leaves on the way; packed, too."""
    model, draw = lively(config), torch.Generator().manual_seed(1)
    stepping = model if dtype is None else packed(model, dtype)
    src, state = SRC, stepping.start(SRC)
    said = torch.full((len(src), 1), BOS_ID)
    fresh = said[:, 0]
    for t in range(1, 9):
        logits, state = stepping.step(fresh, state)
        held = len(said) // len(src)
        torch.testing.assert_close(logits, model(src.repeat_interleave(held, 0), said)[:, -1], atol=1e-4, rtol=1e-4)
        staying = torch.tensor([0, 2]) if t == 5 else torch.arange(len(src))
        rows = staying[:, None] * held + torch.randint(held, (len(staying), 3), generator=draw)
        state, src = state.select(rows), src[staying]
        fresh = torch.randint(4, VOCAB, (rows.numel(),), generator=draw)
        said = torch.cat([said[rows.flatten()], fresh[:, None]], dim=1)


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_the_gradient_reaches_every_parameter(tie: Literal["none", "target", "all"]) -> None:
    torch.manual_seed(0)
    model = DecoderOnlyTranslator(replace(MODERN, tie=tie), VOCAB, VOCAB)
    F.cross_entropy(model(SRC, TGT)[:, :-1].flatten(0, 1), TGT[:, 1:].flatten(), ignore_index=PAD_ID).backward()
    assert_learned(model, 1e-7)
    shared = model.output.weight is model.tgt_embedding.weight, model.src_embedding.weight is model.tgt_embedding.weight
    assert shared == (tie != "none", tie == "all")


def test_it_learns_to_reverse() -> None:
    torch.manual_seed(0)
    assert reversed_rightly(DecoderOnlyTranslator(replace(TINY, d_model=32, d_ff=64), 12, 12), 150) > 0.7


def test_a_search_says_of_its_best_what_forced_decoding_does_and_the_last_layer_is_the_network() -> None:
    model, src = lively(replace(TINY, tie="target"), 20), sources(5, 2, 7, 1, 3)
    requests = asked(src, [Bounds(0, 9)] * len(src))
    together = beam_search(model, requests, SearchConfig(beam_size=4))
    for request, hypotheses in zip(requests, together, strict=True):
        (alone,) = beam_search(model, [request], SearchConfig(beam_size=4))
        assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in hypotheses]
    given = [hypotheses[0].ids for hypotheses in together]
    log_probs = token_log_probs(model, [row[row > EOS_ID].tolist() for row in src], given)
    for hypotheses, row in zip(together, log_probs, strict=True):
        assert hypotheses[0].score * SearchConfig().penalty(len(row)) == pytest.approx(sum(row), abs=1e-4)
    guesses = layer_guesses(model, [4, 5, 6], [7, 8])
    close(guesses[-1], model(torch.tensor([[4, 5, 6, EOS_ID]]), torch.tensor([[BOS_ID, 7, 8]]))[0])
    assert len(guesses) == 2


def test_its_run_translates_and_is_exported_and_what_needs_an_encoder_refuses_it(tmp_path: Path) -> None:
    config = DecoderOnlyTranslationConfig(
        name="decoder_only",
        data=DataConfig(corpus="files"),
        tokenizer=TOKENIZER,
        model=replace(TINY, tie="target"),
        batch=BatchConfig(max_tokens=24),
        training=TranslationTrainingConfig(precision="fp32", device="cpu"),
        search=SearchConfig(beam_size=2, min_length=3),
    )
    folder = create_run(config, tokenizers(), root=tmp_path / "pickles")
    torch.manual_seed(0)
    net = drawn(DecoderOnlyTranslator(config.model, *map(len, tokenizers()))).eval()
    write_weights(net.state_dict(), folder / WEIGHTS, Rank(0.0))
    run, ids = load_run(folder, torch.device("cpu")), sources(3, 7)
    assert all(found.text for found in run.translator().translate(TEXT.src[:3]))
    (tmp_path / "exported").mkdir()
    write_safetensors(run.model, run.tokenizers, {"name": "京都"}, Rank(1.0), tmp_path / "exported")
    assert load_safetensors(tmp_path / "exported").net(ids, ids).equal(run.model(ids, ids))
    with pytest.raises(
        ValueError, match=r"is of task decoder_only_translation, but only Transformers .*: give --to safe"
    ):
        export(folder, "ctranslate2", tmp_path / "ctranslate2")
    with pytest.raises(ValueError, match=r"is of task decoder_only_translation: give the run of a Transformer$"):
        _ = run.transformer
    with pytest.raises(ValueError, match=r"no attention to the source alone: give a Transformer's run$"):
        attention_weights(run.model, [4], [5])


@pytest.mark.parametrize("network", ["decoder-only", "recurrent"])
def test_edited_layers_are_used_and_not_their_packed_copies(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    recurrent = RecurrentTranslator(RecurrentConfig(d_model=8, d_hidden=6, max_length=24), VOCAB, VOCAB)
    model = drawn(recurrent).eval() if network == "recurrent" else lively()
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: 1.1 * F.linear(x, self.weight, self.bias))
    with pytest.warns(UserWarning, match=r"^layers/packed\.py computes something else than the layers \(logits differ"):
        assert not any(isinstance(part, PackedLinear) for part in stepwise(model, torch.float32).modules())
    decode = type(model).decode
    monkeypatch.setattr(type(model), "decode", lambda self, tgt, state: decode(self, tgt.flip(1), state))
    with pytest.raises(ValueError, match=r"steps of this network are not its forward pass .*: have `decode` of"):
        stepwise(model, torch.float32)
