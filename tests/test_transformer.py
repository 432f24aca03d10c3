"""The whole network against nn.Transformer, its weights and sizes; see test_translators.py for what all networks do."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from config.model import Activation, BertConfig, Initialisation, TransformerConfig, TransformerXLConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from layers.decoder_block import DecoderBlock
from layers.dropout import Dropout
from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention
from layers.positional_encoding import LearnedPositionalEncoding, sinusoid
from layers.token_embedding import TokenEmbedding
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from models.weight import initialise, initialise_truncated
from tests.test_translators import SRC, TGT, TRANSFORMERS, VOCAB, lively, named
from tests.test_translators import TRANSFORMER as TINY
from tests.tiny import assert_learned, block_state, drawn, sources

BERT = BertConfig(d_model=8, n_heads=2, d_ff=12, n_layers=1, max_length=12)
FUSED = [config for config in TRANSFORMERS if config.tie != "all"][:12]  # each norm and position with both kernels
fused_or_not = pytest.mark.parametrize("config", FUSED, ids=named)


# oracle


@pytest.mark.parametrize("config", [config for config in FUSED if config.positions != "rotary"], ids=named)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_it_is_the_transformer_of_torchs_blocks(config: TransformerConfig, activation: Activation) -> None:
    model = lively(replace(config, activation=activation, tie="none", n_decoder_layers=3))
    encoder_norm, decoder_norm = (nn.LayerNorm(8) if config.norm_first else None for _ in range(2))
    sizes = 8, 2, 12, 0.0, activation, 1e-5, True, config.norm_first
    encoder_layer, decoder_layer = nn.TransformerEncoderLayer(*sizes), nn.TransformerDecoderLayer(*sizes)
    encoder = drawn(nn.TransformerEncoder(encoder_layer, 2, encoder_norm, enable_nested_tensor=False).double())
    decoder = drawn(nn.TransformerDecoder(decoder_layer, 3, decoder_norm).double())
    for ours, theirs in zip(model.encoder, encoder.layers, strict=True):
        ours.load_state_dict(block_state(theirs, "self", "feed"))
    for ours, theirs in zip(model.decoder, decoder.layers, strict=True):
        ours.load_state_dict(block_state(theirs, "self", "cross", "feed"))
    if encoder_norm is not None and decoder_norm is not None:
        model.encoder_norm.load_state_dict(encoder_norm.state_dict())
        model.decoder_norm.load_state_dict(decoder_norm.state_dict())

    weight = dict(model.named_parameters())

    def embed(side: str, ids: Tensor) -> Tensor:
        table = weight[f"{side}_positions.table.weight"] if config.positions == "learned" else sinusoid(12, 8)
        return weight[f"{side}_embedding.weight"][ids] * math.sqrt(8) + table[: ids.size(1)]

    memory = encoder(embed("src", SRC), src_key_padding_mask=SRC == PAD_ID)
    future = torch.ones(5, 5).triu(1).bool()
    x = decoder(embed("tgt", TGT), memory, tgt_mask=future, memory_key_padding_mask=SRC == PAD_ID)
    logits = x @ weight["output.weight"].T + weight["output.bias"]
    torch.testing.assert_close(model(SRC, TGT), logits)
    with torch.no_grad():  # another kernel, where fused
        torch.testing.assert_close(model(SRC, TGT), logits)


# twin path: cached steps


@given(st.lists(st.integers(1, 11), min_size=1, max_size=9), st.integers(1, 60))
@torch.no_grad()
def test_sources_encoded_in_slices_are_those_encoded_at_once(lengths: list[int], positions: int) -> None:
    """In any order; a position is padding or the same."""
    model, src = lively(TINY), sources(*lengths, vocab=VOCAB)
    read: list[Tensor] = []

    def encode(ids: Tensor) -> Tensor:
        read.append(ids)
        return Transformer.encode(model, ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.transformer._SLICE", positions)
        patch.setattr(model, "encode", encode)
        sources_read = model.start(src).source
    memory, real = model.encode(src), (src != PAD_ID)[:, None, :, None]
    for block, kv in zip(model.decoder, sources_read, strict=True):
        for ours, expected in zip(kv, cast(DecoderBlock, block).cross_attention.project(memory), strict=True):
            torch.testing.assert_close(ours * real, expected * real)
    assert all(ids.numel() <= positions or len(ids) == 1 for ids in read if lengths == sorted(lengths, reverse=True))
    assert sum(map(len, read)) == len(src)


@torch.no_grad()
def test_sources_without_padding_are_searched_without_a_mask_and_one_may_leave() -> None:
    model = lively(TINY)
    whole = model(SRC[[0, 0]], TGT[[1, 2]])
    state = model.start(SRC[[0, 0]])
    assert state.source_mask is None
    assert model.start(SRC[:2]).source_mask is not None
    logits, state = model.step(TGT[[1, 2], 0], state)
    torch.testing.assert_close(logits, whole[:, 0], atol=1e-6, rtol=1e-6)
    logits, _ = model.step(TGT[2:, 1], state.select(torch.tensor([[1]])))
    torch.testing.assert_close(logits, whole[1:, 1], atol=1e-6, rtol=1e-6)


# what the paper claims, switched off


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@torch.no_grad()
def test_without_positions_the_order_of_the_source_is_not_seen(fused: bool) -> None:
    model = lively(replace(TINY, positions="none", fused=fused))
    shuffled = SRC[:1, [3, 0, 6, 2, 5, 1, 4]]
    torch.testing.assert_close(model(shuffled, TGT[:1]), model(SRC[:1], TGT[:1]))
    # but that of the target is: a causal mask shows each position another part of it
    tgt = torch.tensor([[BOS_ID, 4, 5, 6], [BOS_ID, 5, 4, 6]])
    first, second = model(SRC[:1].expand(2, -1), tgt)[:, -1]
    assert (first - second).abs().max() > 1e-5
    state = model.start(SRC[:1])
    for token, logits in zip(tgt[0], model(SRC[:1], tgt[:1])[0], strict=True):
        stepped, state = model.step(token[None], state)
        torch.testing.assert_close(stepped[0], logits)


@fused_or_not
def test_what_is_not_scaled_is_the_network_with_scaled_weights(config: TransformerConfig) -> None:
    """Embeddings divided by √D, and queries multiplied by √K, undo both scalings."""
    config = replace(config, tie="none")
    model = lively(replace(config, scale_embedding=False, scale_attention=False))
    twin = lively(config)
    for name, parameter in twin.named_parameters():
        if name in ("src_embedding.weight", "tgt_embedding.weight"):
            parameter.data.div_(math.sqrt(8))
        elif ".query." in name:
            parameter.data.mul_(math.sqrt(4))
    torch.testing.assert_close(model(SRC, TGT), twin(SRC, TGT))
    with torch.no_grad():  # another kernel, where fused
        _, state = model.step(TGT[:, 0], model.start(SRC))
        torch.testing.assert_close(model.step(TGT[:, 1], state)[0], twin(SRC, TGT[:, :2])[:, -1])
        torch.testing.assert_close(model(SRC, TGT), twin(SRC, TGT))


# weights


@pytest.mark.parametrize("config", TRANSFORMERS, ids=named)
def test_no_parameter_begins_as_it_lay_in_memory(config: TransformerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil_and_initialise(module: nn.Module, initialisation: Initialisation) -> None:
        for parameter in module.parameters():
            nn.init.constant_(parameter, math.nan)
        initialise(module, initialisation)

    monkeypatch.setattr("models.transformer.initialise", spoil_and_initialise)
    model = Transformer(config, VOCAB, VOCAB)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        assert parameter.abs().max() < 2, name
    for side in ("src", "tgt"):
        rows = model.get_parameter(f"{side}_embedding.weight").abs().sum(1)
        assert (rows == 0).nonzero().flatten().tolist() == [PAD_ID]


def test_tied_logits_begin_with_unit_variance() -> None:
    torch.manual_seed(0)
    logits = Transformer(replace(TINY, d_model=16), 500, 500)(SRC, TGT)
    assert logits[..., 1:].std().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("config", "vocabularies", "expected"),
    [
        (
            TransformerConfig(256, 8, 512, 3, 3, norm_first=False, positions="learned", max_length=100, tie="none"),
            (7855, 5893),
            9_038_853,
        ),
        (TransformerConfig(activation="gelu"), (15920, 15920), 52_291_584),
    ],
    ids=["small", "base"],
)
def test_parameter_counts(config: TransformerConfig, vocabularies: tuple[int, int], expected: int) -> None:
    with torch.device("meta"):
        model = Transformer(config, *vocabularies)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


# dropout, precision, lengths, errors


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize(
    ("network", "config", "n_outside"),
    [  # of the positions; in each block, of the ways around and of the feed-forward
        (Transformer, TINY, 2 + 2 * 3 + 2 * 4),
        (TransformerXL, TransformerXLConfig(8, 2, 12, 3), 1 + 3 * 3),
    ],
)
def test_each_dropout_has_its_own_rate(network: Any, config: Any, n_outside: int, fused: bool) -> None:
    sizes = [VOCAB] * (2 if network is Transformer else 1)
    model: nn.Module = network(replace(config, dropout=0.25, attention_dropout=0.5, fused=fused), *sizes)
    rates = {name: part.p for name, part in model.named_modules() if isinstance(part, Dropout)}
    outside = [rate for name, rate in rates.items() if "_attention.attention" not in name]
    assert outside == [0.25] * n_outside
    assert {rate for name, rate in rates.items() if "_attention.attention" in name} == {0.5}


@settings(max_examples=20)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=4),
    config=st.sampled_from(FUSED),
)
def test_no_lengths_make_a_nan_forward_or_back(lengths: list[tuple[int, int]], config: TransformerConfig) -> None:
    torch.manual_seed(0)
    model = Transformer(config, VOCAB, VOCAB)
    src, tgt = (torch.zeros(len(lengths), max(side), dtype=torch.long) for side in zip(*lengths, strict=True))
    for row, (source, target) in enumerate(lengths):
        src[row, : source - 1], src[row, source - 1] = 4, EOS_ID
        tgt[row, 0], tgt[row, 1:target] = BOS_ID, 5
    logits = model(src, tgt)
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert_learned(model, -1)


def test_errors_name_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"\(13, 8\) and \(11, 8\).*joint vocabulary"):
        Transformer(replace(TINY, tie="all"), 11, 13)


@pytest.mark.parametrize(
    "changes", [{"tie": "all"}, {"tie": "target", "d_model": 16}], ids=["one vocabulary", "another width"]
)
def test_a_bert_that_cannot_read_for_the_model_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^a BERT of d_model=8 cannot read for .*: give both the same width, and"):
        Transformer(replace(TINY, bert=BERT, **changes), VOCAB, VOCAB)


@pytest.mark.parametrize("fused", [True, False])
def test_a_bert_that_reads_the_source_has_the_kernel_of_the_whole(fused: bool) -> None:
    reader = Transformer(
        replace(TINY, tie="target", fused=fused, bert=replace(BERT, fused=not fused)), VOCAB, VOCAB
    ).bert
    assert reader is not None
    assert reader.config.fused is fused


D = 16


def parts(pad_id: int = 0) -> nn.ModuleDict:
    """One of each kind, all of it garbage: NaN, as uninitialised memory may be."""
    torch.manual_seed(0)
    network = nn.ModuleDict(
        {
            "token": TokenEmbedding(2000, D, padding_idx=pad_id),
            "position": LearnedPositionalEncoding(D, 500),
            "attention": MultiHeadAttention(D, 2),
            "linear": nn.Linear(D, 1000),
            "gated": FeedForward(D, 1200, "swiglu"),
            "bare": nn.Linear(D, 3, bias=False),
            "norm": nn.LayerNorm(D),
        }
    )
    for parameter in network.parameters():
        nn.init.constant_(parameter, math.nan)
    return network


GLOROT = [  # one joined matrix of query, key and value, unless each has the bound of its own shape
    ("unit_variance", "linear.weight", D + 1000),
    ("unit_variance", "bare.weight", D + 3),
    ("unit_variance", "gated.widen.weight", D + 800),  # gate and value by themselves
    ("unit_variance", "attention.query.weight", D + 3 * D),
    ("unit_variance", "attention.key_value.weight", D + 3 * D),
    ("unit_variance", "attention.output.weight", D + D),
    ("xavier_uniform", "token.weight", D + 2000),
    ("xavier_uniform", "position.table.weight", D + 500),
    ("xavier_uniform", "linear.weight", D + 1000),
    ("xavier_uniform", "attention.query.weight", D + D),
    ("xavier_uniform", "attention.key_value.weight", D + D),
]


@pytest.mark.parametrize(("initialisation", "name", "fans"), GLOROT)
def test_matrices_are_uniform_up_to_glorots_bound(initialisation: Initialisation, name: str, fans: int) -> None:
    """Biases are zero, and norms the identity."""
    network, bound = parts(), math.sqrt(6 / fans)
    initialise(network, initialisation)
    weight = network.get_parameter(name).detach()
    assert 0.85 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
    assert not name.startswith("token") or (weight[0] == 0).all()
    for other, parameter in network.named_parameters():
        if other.endswith("bias") or other.startswith("norm"):
            assert (parameter == (other == "norm.weight")).all(), other


@pytest.mark.parametrize("pad_id", [0, 3])
def test_embeddings_leave_the_scaling_with_unit_variance_and_padding_is_the_only_zero_row(pad_id: int) -> None:
    network = parts(pad_id)
    initialise(network)
    for name, zero_rows in ("token.weight", [pad_id]), ("position.table.weight", []):
        weight = network.get_parameter(name).detach()
        assert (weight == 0).all(1).nonzero().flatten().tolist() == zero_rows
        assert (weight * math.sqrt(D)).std().item() == pytest.approx(1, rel=0.03)
        assert weight.mean().abs() < 0.01


class Gate(nn.Module):
    """Closed at first."""

    def __init__(self) -> None:
        super().__init__()
        self.open = nn.Linear(D, D)
        self.scale = nn.Parameter(torch.empty(D))


class ClosedGate(Gate):
    def initialise(self) -> None:
        nn.init.zeros_(self.open.weight)
        nn.init.ones_(self.scale)


@pytest.mark.parametrize("rule", [initialise, lambda net: initialise_truncated(net, 0.02)], ids=["ours", "BERT's"])
def test_a_layer_has_the_last_word_on_its_weights_and_none_is_forgotten(rule: Callable[[nn.Module], None]) -> None:
    network = nn.Sequential(nn.Linear(D, D), ClosedGate())
    rule(network)
    gate = cast(ClosedGate, network[1])
    assert not gate.open.weight.any()
    assert (gate.scale == 1).all()
    assert cast(nn.Linear, network[0]).weight.any()
    with pytest.raises(ValueError, match=r"^nothing initialises 1\.scale: give Gate a method initialise\(\)"):
        rule(nn.Sequential(nn.Linear(D, D), Gate()))


@pytest.mark.parametrize("pad_id", [0, 3])
def test_berts_matrices_and_embeddings_are_normal_up_to_two_deviations(pad_id: int) -> None:
    network = parts(pad_id)
    initialise_truncated(network, 0.5)
    assert (network.get_parameter("token.weight") == 0).all(1).nonzero().flatten().tolist() == [pad_id]
    beyond = math.exp(-2) * math.sqrt(2 / math.pi) * 2 / math.erf(math.sqrt(2))  # variance that the cut takes away
    for name, parameter in network.named_parameters():
        weight = parameter.detach()
        if name.endswith("bias") or name == "norm.weight":
            assert weight.equal(torch.full_like(weight, float(name == "norm.weight"))), name
        else:
            assert weight.abs().max() <= 1, name
            assert weight.std().item() == pytest.approx(
                0.5 * math.sqrt(1 - beyond), rel=0.02 + 1 / weight.numel() ** 0.5
            )
            assert weight.mean().abs() < 2 / weight.numel() ** 0.5, name
