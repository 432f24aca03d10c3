"""Packed layers and blocks compute what those that they were made of do."""

import time
from collections.abc import Callable
from itertools import product
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor, nn

from layers import packed as packed_module
from layers.decoder_block import DecoderBlock
from layers.feed_forward import FeedForward
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.packed import (
    Int8Linear,
    PackedDecoderBlock,
    PackedLinear,
    multiplies_few_in_int8,
    multiplies_int8,
    packed,
)
from layers.scaled_dot_product_attention import attention_kernel
from tests.tiny import drawn

with_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
layouts = pytest.mark.parametrize("blocked", [True, False], ids=["oneDNN", "without oneDNN"])


pytestmark = pytest.mark.processor


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def exact_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers of eight bits are multiplied exactly, on a processor that does not by a slower product."""
    if not multiplies_int8():
        monkeypatch.setattr(torch, "_int_mm", lambda x, weight: x.int() @ weight.int())
        monkeypatch.setattr(packed_module, "multiplies_int8", lambda: True)


@with_bias
@layouts
@pytest.mark.parametrize("small", [0, 24 * 40, 5 * 24 * 40])  # never kept as it is, for one row, for several
@pytest.mark.parametrize("shape", [(1,), (5,), (200,), (3, 1), (2, 3, 4), (0,), ()], ids=str)
def test_it_is_the_linear_layer_for_any_shape(
    shape: tuple[int, ...], small: int, bias: bool, blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not blocked:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(packed_module, "_SMALL", small)
    linear, x = nn.Linear(24, 40, bias), torch.randn(*shape, 24)
    layer = PackedLinear(linear, torch.float32)
    assert (layer.blocked is not None) == (blocked and torch.backends.mkldnn.is_available())
    assert (layer.weight is None) == (layer.blocked is not None and small < 24 * 40)
    torch.testing.assert_close(layer(x), linear(x).detach(), atol=1e-5, rtol=1e-5)


@with_bias
@layouts
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_in_half_precision_it_is_the_product_under_autocast(
    bias: bool, given: torch.dtype, blocked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not blocked:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    linear, x = nn.Linear(24, 40, bias), torch.randn(7, 24).to(given)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = linear(x)
    output = PackedLinear(linear, torch.bfloat16)(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected, atol=0.02, rtol=0.02)


@with_bias
@pytest.mark.parametrize("after", ["none", "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exact", [True, False], ids=["VNNI", "without VNNI"])
@pytest.mark.usefixtures("exact_integers")
def test_few_rows_are_multiplied_by_weights_of_eight_bits(
    bias: bool, after: Literal["none", "relu"], dtype: torch.dtype, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_module, "multiplies_int8", lambda: exact)
    monkeypatch.setattr(packed_module, "multiplies_few_in_int8", lambda: True)
    linear, x, heights = nn.Linear(48, 40, bias), torch.randn(11, 48), list[int]()
    layer, product_of_torch = Int8Linear(linear, dtype), torch._weight_int8pack_mm

    def product_in_eight_bits(x: Tensor, *weight: Tensor) -> Tensor:
        heights.append(len(x))
        return product_of_torch(x, *weight)

    monkeypatch.setattr(torch, "_weight_int8pack_mm", product_in_eight_bits)
    layer.after, expected = after, linear(x).detach()
    alone = torch.stack([layer(row[None, None])[0, 0] for row in x])
    few = torch.cat([layer(x[i : i + 8, None])[:, 0] for i in (0, 8)])
    layer(x)  # more than few
    assert heights == [1] * 11 + ([] if exact else [8, 3])
    assert alone.dtype == few.dtype == dtype
    close = 0.02 if exact else 0.01  # with rows that are rounded, or the same product
    torch.testing.assert_close(few, alone, atol=close, rtol=close)
    errors = (alone - (expected.relu() if after == "relu" else expected)).abs()
    # rounding moves a weight by half a step at most; bfloat16 adds its own rounding, of weights, scales and products
    max_errors = x.abs().sum(1, keepdim=True) * linear.weight.detach().abs().amax(1) / 254 + 0.02
    assert (errors <= max_errors).all()
    assert errors.max() > 1e-4  # it has been rounded


@with_bias
@pytest.mark.parametrize("after", ["none", "relu"])
@pytest.mark.parametrize("width", [48, 24])  # of 24, few rows are too narrow for their own kind of product
@pytest.mark.usefixtures("exact_integers")
def test_many_rows_are_rounded_one_by_one_and_multiplied_in_integers(
    bias: bool, after: Literal["none", "relu"], width: int
) -> None:
    linear, x = nn.Linear(width, 40, bias), torch.randn(11, width) * torch.logspace(-3, 3, 11)[:, None]
    x[3] = 0
    layer, exact = Int8Linear(linear, torch.float32), linear(x).detach()
    assert layer.weight is layer.blocked is None  # a quarter of the memory
    layer.after = after
    steps = x.abs().amax(1, keepdim=True) / 127
    rounded = (x / steps.clamp(min=1e-9)).round() * steps.double()
    expected = rounded @ (layer.int8 * layer.scale[:, None].double()).t()
    expected = (expected if linear.bias is None else expected + linear.bias.detach()).float()
    output = layer(x[None])[0]
    torch.testing.assert_close(output, expected.relu() if after == "relu" else expected, rtol=1e-5, atol=1e-5)
    error = (expected - exact).norm(dim=1) / exact.norm(dim=1).clamp(min=1e-9)
    assert (error < 0.02).all()
    assert error.mean() > 0.001  # it has been rounded
    assert layer(x.flip(0)).flip(0).equal(output)
    assert layer(x[:9]).equal(output[:9])
    assert layer(x[:0]).shape == (0, 40)
    if width == 24:
        assert layer(x[:2]).equal(output[:2])
    half = Int8Linear(linear, torch.bfloat16)
    half.after = after
    assert half(x).dtype == torch.bfloat16
    torch.testing.assert_close(half(x).float(), output, rtol=0.02, atol=0.02)
    torch.testing.assert_close(half(x.bfloat16()), half(x.bfloat16().float()), rtol=0, atol=0)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.usefixtures("exact_integers")
def test_a_row_is_rounded_where_its_weight_is_large(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_module, "_INT8_SMALL", 40 * 48 if few else 40 * 48 - 1)
    layer, x = Int8Linear(nn.Linear(48, 40), torch.float32), torch.randn(2, 48)
    assert layer(x[:1]).equal(layer(x)[:1]) != few


def test_where_integers_cannot_be_multiplied_exactly_or_fast_many_rows_are_as_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by processors that multiply what is not negative and add pairs of products in sixteen bits, or one by one."""

    def saturating(x: Tensor, weight: Tensor) -> Tensor:
        pairs = ((x.int() + 128).unflatten(1, (-1, 2, 1)) * weight.int().unflatten(0, (-1, 2))).sum(2)
        return pairs.clamp(-(2**15), 2**15 - 1).sum(1) - 128 * weight.int().sum(0)

    right = torch.full((256, 256), 256 * 127**2)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch, "_int_mm", lambda *_: right)
    assert multiplies_int8.__wrapped__()
    for other in (saturating, lambda x, weight: x.int() @ weight.int()):
        monkeypatch.setattr(torch, "_int_mm", other)
        assert not multiplies_int8.__wrapped__()
    monkeypatch.setattr(packed_module, "multiplies_int8", lambda: False)
    for width, few in product((48, 24), (True, False)):
        monkeypatch.setattr(packed_module, "multiplies_few_in_int8", lambda few=few: few)
        linear, x = nn.Linear(width, 40), torch.randn(11, width)
        layer, plain = Int8Linear(linear, torch.float32), PackedLinear(linear, torch.float32)
        assert layer(x).equal(plain(x))
        assert layer(x[:8]).equal(plain(x[:8])) == (width == 24 or not few)


@pytest.mark.parametrize("slower", [True, False])
def test_whether_few_rows_are_fast_in_eight_bits_is_measured(slower: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is not by a processor without vector instructions for it, which multiplies in a plain loop."""
    now = 0.0

    def takes(seconds: float) -> Callable[..., None]:
        def product_of(*_: Tensor) -> None:
            nonlocal now
            now += seconds

        return product_of

    monkeypatch.setattr(time, "thread_time", lambda: now)
    monkeypatch.setattr(torch, "_weight_int8pack_mm", takes(3.0 if slower else 1.0))
    monkeypatch.setattr(nn.functional, "linear", takes(2.0))
    assert multiplies_few_in_int8.__wrapped__() == (not slower)


class Network(nn.Module):
    """Linear layers in a list, used twice and tied to an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.other = nn.Embedding(11, 8), nn.Embedding(11, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))])
        self.again = self.layers[0]
        self.norm = nn.LayerNorm(8)
        self.output = nn.Linear(8, 11, bias=False)
        self.output.weight = self.other.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids) + self.other(ids)
        for layer in (*self.layers, self.again):
            x = self.norm(x + layer(x))
        return self.output(x)


def linears(module: nn.Module) -> list[str]:
    return [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]


def test_all_linear_layers_are_packed_and_all_else_is_copied_as_it_is_tied() -> None:
    """And the original is left as it was."""
    network = Network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    copy = packed(network, torch.float32)
    assert linears(copy) == []
    assert [name for name, part in copy.named_modules() if isinstance(part, PackedLinear)] == linears(network)
    assert copy.again is copy.layers[0]
    assert copy.other.weight is copy.embedding.weight
    ours, theirs = ({tensor.data_ptr() for tensor in module.state_dict().values()} for module in (copy, network))
    assert not ours & theirs
    assert len(linears(network)) == 3  # the one that is used twice counts once
    assert network.output.weight is network.embedding.weight
    assert all(tensor.equal(before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_a_packed_module_computes_what_the_original_did_whatever_becomes_of_that() -> None:
    network, ids = Network(), torch.arange(11)
    copy = packed(network, torch.float32)
    assert network.training
    expected = network.eval()(ids).detach()
    torch.testing.assert_close(copy(ids), expected, atol=1e-5, rtol=1e-5)
    network.train()
    network(ids).square().sum().backward()
    with torch.no_grad():
        for parameter in network.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.5 * parameter.grad)
    assert not network.eval()(ids).allclose(expected, atol=0.1)
    torch.testing.assert_close(copy(ids), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_cuda_it_is_the_linear_layer_too(dtype: torch.dtype) -> None:
    linear, x = nn.Linear(24, 40, device="cuda"), torch.randn(7, 24, device="cuda")
    layer = PackedLinear(linear, dtype)
    assert layer.blocked is None
    torch.testing.assert_close(layer(x).float(), linear(x).detach(), atol=0.02, rtol=0.02)


S, D, H, F = 5, 12, 3, 20


def lively_block() -> DecoderBlock:
    torch.manual_seed(3)
    own, cross = (MultiHeadAttention(D, H, attention_kernel(True, 0.1)) for _ in range(2))
    return drawn(DecoderBlock(own, cross, FeedForward(D, F, "relu", 0.1), D, 0.1), 0.4)


@torch.no_grad()
def test_in_half_precision_the_few_rows_of_a_sentence_attend_in_single() -> None:
    original = lively_block().eval()
    twin = cast(DecoderBlock, packed(nn.Sequential(original), torch.bfloat16)[0])
    source, x = original.cross_attention.project(torch.randn(1, S, D)), torch.randn(34, 1, D)
    half = KeyValue(source.key.bfloat16(), source.value.bfloat16())
    past = twin_past = original.self_attention.project(x[:, :0])
    for height in (1, 5, 34, 32, 1, 2):  # as a batch grows with its beams, and shrinks
        rows = torch.arange(height) % len(past.key)
        expected, past = original(x[:height], source, past=past.select(rows))
        output, twin_past = twin(x[:height], half, past=twin_past.select(rows))
        assert {part.dtype for part in twin_past} == {torch.float32 if height <= 32 else torch.bfloat16}
        torch.testing.assert_close(output, expected, atol=0.04, rtol=0.05)


@torch.no_grad()
def test_off_the_cpu_few_rows_attend_in_half_precision_as_many_do() -> None:
    original = lively_block().to("meta")
    twin = cast(DecoderBlock, packed(nn.Sequential(original), torch.bfloat16)[0])
    assert isinstance(twin, PackedDecoderBlock)
    x = torch.empty(5, 1, D, device="meta")
    half = KeyValue(*torch.empty(2, 1, H, S, D // H, dtype=torch.bfloat16, device="meta"))
    past = KeyValue(*torch.empty(2, 5, H, 0, D // H, dtype=torch.bfloat16, device="meta"))
    assert {part.dtype for part in twin(x, half, past=past)[1]} == {torch.bfloat16}


class HalfAttention(MultiHeadAttention):
    """Says half of what it has seen."""

    def attend(self, x: Tensor, kv: KeyValue, mask: Tensor | None = None) -> Tensor:
        return super().attend(x, kv, mask) / 2


class TwiceFed(DecoderBlock):
    """Thinks again."""

    def forward(self, x: Tensor, source: KeyValue, *rest: Any, **named: Any) -> tuple[Tensor, KeyValue]:
        x, past = super().forward(x, source, *rest, **named)
        return self.around_feed(x, self.feed_forward), past


class Nearer(nn.Module):
    """A score bias for what comes last."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.arange(float(key.size(2))).expand(*query.shape[:3], -1)


def biased(block: Any, name: str) -> None:
    block.get_submodule(name).score_bias = Nearer()


OTHERS: dict[str, Callable[[Any], None]] = {
    "bias": lambda block: biased(block, "self_attention"),
    "bias of the source": lambda block: biased(block, "cross_attention"),
    "attention": lambda block: setattr(block.self_attention, "__class__", HalfAttention),
    "block": lambda block: setattr(block, "__class__", TwiceFed),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
@torch.no_grad()
def test_a_block_of_another_kind_takes_steps_of_its_own(change: Callable[[Any], None]) -> None:
    network = nn.Sequential(lively_block(), lively_block()).eval()
    change(network[1])
    original, twin = (cast(DecoderBlock, blocks[1]) for blocks in (network, packed(network, torch.float32)))
    x, source = torch.randn(1, 1, D), original.cross_attention.project(torch.randn(1, S, D))
    past = original.self_attention.project(torch.randn(1, 2, D))
    torch.testing.assert_close(twin(x, source, past=past), original(x, source, past=past), atol=1e-5, rtol=1e-5)
