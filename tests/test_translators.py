"""What every translator does, whatever reads the source: its steps, what changes nothing, its weights, its run."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from config.data import BatchConfig, DataConfig
from config.model import Architecture, DecoderOnlyConfig, RecurrentConfig, TransformerConfig
from config.search import Bounds, SearchConfig
from config.training import TranslationTrainingConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from export import export
from layers.feed_forward import ACTIVATION
from layers.packed import PackedLinear, packed
from models.decoder_only import DecoderOnlyTranslator
from models.recurrent import RecurrentState, RecurrentTranslator
from models.stepwise import stepwise
from models.transformer import Transformer, TransformerState
from models.translation_model import TranslationModel
from tests.tiny import TEXT, TOKENIZER, drawn, reversed_rightly, sources, tokenizers
from tests.tree import asked
from utils.config import DecoderOnlyTranslationConfig, RecurrentTranslationConfig, TranslationConfig
from utils.export.safetensors import load_safetensors, write_safetensors
from utils.load import load_run
from utils.run import WEIGHTS, create_run, find_run, translators
from utils.search.beam import beam_search
from utils.search.forced import token_log_probs
from utils.search.sampling import greedy_search
from utils.training.checkpoint import write_weights
from utils.training.muon import block_matrices
from utils.training.schedule import Rank

TRANSFORMER = TransformerConfig(
    d_model=8, n_heads=2, d_ff=12, n_encoder_layers=2, n_decoder_layers=2, dropout=0.0, max_length=12
)
RECURRENT = RecurrentConfig(d_model=8, d_hidden=6, dropout=0.0, max_length=24)
DECODER_ONLY = DecoderOnlyConfig(d_model=8, n_heads=2, d_ff=12, n_layers=2, dropout=0.0, max_length=24)
NETWORK: dict[type, Any] = {
    TransformerConfig: Transformer,
    RecurrentConfig: RecurrentTranslator,
    DecoderOnlyConfig: DecoderOnlyTranslator,
}
VOCAB = 11

# lengths differ from each other, from row to row, and from the number of heads
SRC = torch.tensor([[4, 5, 6, 7, 8, 9, EOS_ID], [9, 4, EOS_ID, 0, 0, 0, 0], [EOS_ID, 0, 0, 0, 0, 0, 0]])
TGT = torch.tensor([[BOS_ID, 4, 5, 0, 0], [BOS_ID, 6, 7, 8, 9], [BOS_ID, 0, 0, 0, 0]])

TIES: Any = ("none", "target", "all")
_SHAPES: Any = product((True, False), ("sinusoidal", "learned", "rotary"), TIES)
_BLOCKS: Any = cycle(product(ACTIVATION, (True, False)))
TRANSFORMERS = [  # in these, everything is met that there is, and each norm and position with both kernels
    replace(TRANSFORMER, norm_first=norm_first, positions=positions, tie=tie, activation=activation, fused=fused)
    for (norm_first, positions, tie), (activation, fused) in zip(_SHAPES, _BLOCKS, strict=False)
] + [replace(TRANSFORMER, activation="swiglu", norm="rms")]
_BASES: Any = (RECURRENT, DECODER_ONLY)
OTHERS: list[Any] = [
    *(replace(config, tie=tie) for config, tie in product(_BASES, TIES)),
    replace(DECODER_ONLY, activation="swiglu", norm="rms", fused=False),
]


def named(config: Architecture) -> str:
    return " ".join([type(config).__name__, *(str(value) for value in vars(config).values() if isinstance(value, str))])


every = pytest.mark.parametrize("config", [*TRANSFORMERS, *OTHERS], ids=named)
one_of_each = pytest.mark.parametrize("config", [TRANSFORMER, RECURRENT, DECODER_ONLY], ids=named)


def fresh(config: Architecture, vocab: int = VOCAB) -> Any:
    torch.manual_seed(0)
    return NETWORK[type(config)](config, vocab, vocab)


def lively(config: Architecture, vocab: int = VOCAB) -> Any:
    """In float64 and with every weight drawn, so that a forgotten bias or a norm in the wrong place shows."""
    return drawn(fresh(config, vocab).double()).eval()


def assert_close(ours: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """The angles of rotary positions are in single precision."""
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)


def held_once(state: object) -> Sequence[Tensor]:
    """What a state has of each sentence, and not of each beam."""
    if isinstance(state, TransformerState):
        return [tensor for kv in state.source for tensor in kv]
    return [state.memory, state.key, state.mask] if isinstance(state, RecurrentState) else []


@every
@pytest.mark.parametrize("is_packed", [False, True], ids=["as it is", "packed"])
@torch.no_grad()
def test_steps_are_the_forward_of_every_beam(config: Architecture, is_packed: bool) -> None:
    """Beams are permuted, doubled and dropped at random, and a sentence leaves on the way."""
    model = lively(config).float() if is_packed else lively(config)
    stepping = packed(model, torch.float32) if is_packed else model
    tolerance, draw = 1e-4 if is_packed else 1e-5, torch.Generator().manual_seed(1)
    assert_close(stepping(SRC, TGT), model(SRC, TGT), tolerance)
    src, state = SRC, stepping.start(SRC)
    said = torch.full((len(src), 1), BOS_ID)
    for t in range(1, 9):
        logits, state = stepping.step(said[:, -1], state)
        held = len(said) // len(src)
        assert_close(logits, model(src.repeat_interleave(held, 0), said)[:, -1], tolerance)
        assert all(len(tensor) == len(src) for tensor in held_once(state))
        staying = torch.tensor([0, 2]) if t == 5 else torch.arange(len(src))
        rows = staying[:, None] * held + torch.randint(held, (len(staying), 3), generator=draw)
        before, state, src = state, state.select(rows), src[staying]
        # copied only where a sentence leaves
        assert all((old is new) == (t != 5) for old, new in zip(held_once(before), held_once(state), strict=True))
        chosen = torch.randint(4, VOCAB, (rows.numel(), 1), generator=draw)
        said = torch.cat([said[rows.flatten()], chosen], dim=1)


@one_of_each
def test_a_state_is_a_value_that_can_be_gone_on_from_twice(config: Architecture) -> None:
    model = lively(config)
    _, state = model.step(torch.full((3,), BOS_ID), model.start(SRC))
    first, _ = model.step(torch.tensor([4, 5, 6]), state)
    several, _ = model.decode(TGT[:, 1:4], state)
    assert_close(model.output(several), model(SRC, TGT[:, :4])[:, 1:])
    model.step(torch.tensor([7, 8, 9]), state)
    model.step(torch.tensor([7, 8]), state.select(torch.tensor([[1], [2]])))
    again, _ = model.step(torch.tensor([4, 5, 6]), state)
    assert again.equal(first)


@every
@torch.no_grad()
def test_packed_in_half_precision_it_is_the_network_under_autocast(config: Architecture) -> None:
    model = fresh(config).eval()
    with torch.autocast("cpu", torch.bfloat16):
        half = model(SRC, TGT)
    copy = packed(model, torch.bfloat16)
    torch.testing.assert_close(copy(SRC, TGT).float(), half.float(), atol=0.03, rtol=0)
    stepped, _ = copy.step(TGT[:, 0], copy.start(SRC))
    assert stepped.dtype == half.dtype == torch.bfloat16
    torch.testing.assert_close(stepped.float(), half[:, 0].float(), atol=0.03, rtol=0)


@one_of_each
def test_an_edited_layer_is_used_and_not_its_packed_copy(config: Architecture, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(config).float()
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: 1.1 * F.linear(x, self.weight, self.bias))
    with pytest.warns(UserWarning, match=r"^layers/packed\.py computes something else than the layers \(logits differ"):
        assert not any(isinstance(part, PackedLinear) for part in stepwise(model, torch.float32).modules())
    if not isinstance(config, TransformerConfig):  # whose steps can be computed all again
        decode = type(model).decode
        monkeypatch.setattr(type(model), "decode", lambda self, tgt, state: decode(self, tgt.flip(1), state))
        with pytest.raises(ValueError, match=r"steps of this network are not its forward pass .*: have `decode` of"):
            stepwise(model, torch.float32)


# invariance


@every
@torch.no_grad()
def test_padding_the_other_rows_and_the_future_change_nothing(config: Architecture) -> None:
    model = lively(config)
    together = model(F.pad(SRC, (0, 3), value=PAD_ID), F.pad(TGT, (0, 4), value=PAD_ID))
    for row, (src, tgt) in enumerate(zip(SRC, TGT, strict=True)):
        src, tgt = src[src != PAD_ID], tgt[tgt != PAD_ID]
        assert_close(together[row, : len(tgt)], model(src[None], tgt[None])[0])
    tgt = torch.tensor([[BOS_ID, 4, 5, 6, 7]] * 3)
    before = model(SRC, tgt)
    for changed in (1, 2, 4):
        after = model(SRC, tgt.index_fill(1, torch.tensor([changed]), 9))
        torch.testing.assert_close(before[:, :changed], after[:, :changed])
        assert (before[:, changed:] - after[:, changed:]).abs().amax(-1).min() > 1e-5


@every
@torch.no_grad()
def test_every_source_token_matters_in_every_place(config: Architecture) -> None:
    model, src = lively(config), SRC[:1]
    logits = model(src, TGT[:1])
    others = [src.index_fill(1, torch.tensor([place]), 10) for place in range(src.size(1))]
    for other in (*others, src.flip(1)):
        assert (model(other, TGT[:1]) - logits).abs().amax(-1).min() > 1e-6


# weights


@every
def test_the_gradient_reaches_every_parameter_and_ties_are_those_asked_for(config: Any) -> None:
    model = fresh(config)
    loss = F.cross_entropy(model(SRC, TGT)[:, :-1].flatten(0, 1), TGT[:, 1:].flatten(), ignore_index=PAD_ID)
    loss.backward()
    rotary = getattr(config, "positions", "rotary") == "rotary"
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        *others, value = parameter.grad.chunk(2) if ".key_value." in name else [parameter.grad]
        assert value.abs().max() > 1e-7, name
        for key in others:
            # a key's bias adds the same q·b to all scores of a query, which the softmax forgets; rotary positions turn
            # it by another angle at each key
            is_forgotten = name.endswith("bias") and not (rotary and "self_attention" in name)
            assert (key.abs().max() > 1e-6) != is_forgotten, name
    assert (model.output.weight is model.tgt_embedding.weight) == (config.tie != "none")
    assert (model.src_embedding.weight is model.tgt_embedding.weight) == (config.tie == "all")
    assert model.src_embedding.weight[PAD_ID].count_nonzero() == 0


@pytest.mark.parametrize(
    ("config", "n_updates"),
    [
        (replace(TRANSFORMER, n_encoder_layers=1, n_decoder_layers=1), 100),
        pytest.param(
            replace(TRANSFORMER, n_encoder_layers=1, n_decoder_layers=1, norm_first=False), 100, marks=pytest.mark.slow
        ),
        (replace(RECURRENT, d_hidden=32), 150),
        (DECODER_ONLY, 150),
    ],
    ids=["norm first", "norm last", "recurrent", "decoder-only"],
)
def test_it_learns_to_reverse(config: Any, n_updates: int) -> None:
    wide = {"d_model": 32} | ({"d_ff": 64} if hasattr(config, "d_ff") else {})
    assert reversed_rightly(fresh(replace(config, **wide), 12), n_updates) > 0.7  # by chance: one in 4,096


@pytest.mark.parametrize("config", [TRANSFORMERS[-1], OTHERS[-1]], ids=["Transformer", "decoder-only"])
def test_muon_moves_every_matrix_of_the_blocks_and_a_gate_by_itself(config: Any) -> None:
    model = fresh(config)
    matrices = block_matrices(model)
    blocks = {parameter for name, parameter in model.named_parameters() if parameter.dim() == 2 and "coder." in name}
    assert matrices.keys() == blocks
    widen = model.decoder[0].feed_forward.widen.weight
    gate, value = matrices[widen](widen)
    assert torch.cat([gate, value]).equal(widen)


# search, and runs: what a Transformer can do is in the tests of each


others = pytest.mark.parametrize("config", [RECURRENT, DECODER_ONLY], ids=named)


@others
def test_a_beam_of_one_is_greedy_and_a_batch_changes_nothing(config: Any) -> None:
    model, src = lively(replace(config, tie="target"), 20).float(), sources(5, 2, 7, 1, 3)
    requests = asked(src, [Bounds(0, 9)] * len(src))
    greedy = greedy_search(model, requests, SearchConfig(beam_size=1))
    of_one = [hypotheses[0] for hypotheses in beam_search(model, requests, SearchConfig(beam_size=1))]
    assert [hypothesis.ids for hypothesis in of_one] == [hypothesis.ids for hypothesis in greedy]
    together = beam_search(model, requests, SearchConfig(beam_size=4))
    for request, hypotheses in zip(requests, together, strict=True):
        (alone,) = beam_search(model, [request], SearchConfig(beam_size=4))
        assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in hypotheses]
    # what a search says of its best is what forced decoding says of it
    given = [hypotheses[0].ids for hypotheses in together]
    log_probs = token_log_probs(model, [row[row > EOS_ID].tolist() for row in src], given)
    for hypotheses, row in zip(together, log_probs, strict=True):
        assert hypotheses[0].score * SearchConfig().penalty(len(row)) == pytest.approx(sum(row), abs=1e-4)


def untrained_run(config: Any, root: Path) -> Path:
    """The folder of a run that has learned nothing."""
    config_type: Any = {RecurrentConfig: RecurrentTranslationConfig, DecoderOnlyConfig: DecoderOnlyTranslationConfig}
    settings: TranslationConfig = config_type[type(config)](
        name="tiny",
        data=DataConfig(corpus="files"),
        tokenizer=TOKENIZER,
        model=replace(config, tie="target"),
        batch=BatchConfig(max_tokens=24),
        training=TranslationTrainingConfig(precision="fp32", device="cpu"),
        search=SearchConfig(beam_size=2, min_length=3),
    )
    folder = create_run(settings, tokenizers(), root=root)
    torch.manual_seed(0)
    net = drawn(NETWORK[type(config)](settings.model, *map(len, tokenizers())))
    write_weights(net.state_dict(), folder / WEIGHTS, Rank(0.0))
    return folder


@others
def test_its_run_is_found_translated_with_exported_and_refused_where_a_transformer_is_needed(
    config: Architecture, tmp_path: Path
) -> None:
    folder = untrained_run(config, tmp_path / "pickles")
    assert find_run(None, root=folder.parent) == folder
    assert [*translators(folder.parent)] == [(folder, "ja", "en")]
    run, ids = load_run(folder, torch.device("cpu")), sources(3, 7)
    assert isinstance(run.model, NETWORK[type(config)])
    assert isinstance(run.model, TranslationModel)
    assert all(translation.text for translation in run.translator().translate(TEXT.src[:5]))
    (tmp_path / "exported").mkdir()
    write_safetensors(run.model, run.tokenizers, {"name": "京都"}, Rank(1.0), tmp_path / "exported")
    loaded, _, facts = load_safetensors(tmp_path / "exported")
    assert facts["architecture"] == type(run.model).__name__
    assert loaded(ids, ids).equal(run.model(ids, ids))
    with pytest.raises(ValueError, match=rf"is of task {run.config.task}, but only Transformers .*: give --to safe"):
        export(folder, "ctranslate2", tmp_path / "ctranslate2")
    with pytest.raises(ValueError, match=rf"is of task {run.config.task}: give the run of a Transformer$"):
        _ = run.transformer
