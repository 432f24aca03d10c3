"""Whatever is edited in a layer, a search takes the steps of the network's own forward pass, and slow ones are said."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from config.search import Bounds, SearchConfig
from layers.decoder_block import DecoderBlock
from layers.feed_forward import FeedForward
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.packed import PackedDecoderBlock
from layers.residual import Residual
from models.stepwise import Recomputing, stepwise
from models.transformer import Transformer
from tests.tiny import MODEL, lively, sources
from tests.tree import asked
from utils.search.beam import beam_search

TGT = torch.tensor([[2, 5, 6, 7, 8, 9], [2, 9, 5, 5, 6, 4]])


def network() -> Transformer:
    return lively(MODEL, 20, 20)


def assert_right(net: Transformer, searched: Any) -> None:
    """Each step gives the logits of the forward pass, and beams are reordered rightly."""
    src = sources(7, 4)
    with torch.no_grad():
        state, expected = searched.start(src), net(src, TGT)
        for t in range(TGT.size(1)):
            logits, state = searched.step(TGT[:, t], state)
            torch.testing.assert_close(logits, expected[:, t], atol=1e-3, rtol=1e-3)
    found, again = (
        beam_search(model, asked(src, [Bounds(2, 6)] * 2), SearchConfig(beam_size=3))
        for model in (searched, Recomputing.of(net))
    )
    assert [[best.ids for best in n_best] for n_best in found] == [[best.ids for best in n_best] for n_best in again]


def windowed(own: Any) -> Any:
    """Attention of a decoder to itself sees the last two keys only."""

    def attend(self: MultiHeadAttention, x: Tensor, kv: KeyValue, mask: Tensor | None = None) -> Tensor:
        if hasattr(self, "window"):
            keys, queries = torch.arange(kv.key.size(2)), torch.arange(kv.key.size(2) - x.size(1), kv.key.size(2))
            near = keys > queries[:, None] - int(cast(Any, self.window))
            mask = near if mask is None else mask & near
        return cast(Tensor, own(self, x, kv, mask))

    return attend


# what is edited -> the class and its method, and what the method becomes
EDITS: dict[str, tuple[type, str, Callable[[Any], Any]]] = {
    "feed-forward": (FeedForward, "forward", lambda own: lambda self, x: 1.1 * own(self, x)),
    "residual": (Residual, "forward", lambda own: lambda self, x, f: own(self, x, lambda x: 0.9 * f(x))),
    "attention": (MultiHeadAttention, "attend", lambda own: lambda self, *given: 0.9 * own(self, *given)),
    "window": (MultiHeadAttention, "attend", windowed),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_layer_is_used_and_not_its_packed_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, method, change = EDITS[name]
    monkeypatch.setattr(layer, method, change(getattr(layer, method)))
    net = network()
    for block in cast(Sequence[DecoderBlock], net.decoder):
        block.self_attention.window = 2  # type: ignore[assignment]  # read by `windowed` alone
    with pytest.warns(UserWarning, match=r"^layers/packed\.py computes something else"):
        searched = stepwise(net, torch.float32, thorough=True)
    assert isinstance(searched, Transformer)
    assert_right(net, searched)


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_that_one_block_alone_has_is_seen(dtype: torch.dtype, thorough: bool) -> None:
    net = network()
    last = cast(DecoderBlock, net.decoder[-1])
    own = last.feed_forward.forward
    last.feed_forward.forward = lambda x: 3 * own(x)  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match=r"is not used: that is slower$"):
        searched = stepwise(net, dtype, thorough=thorough)
    assert_right(net, searched)


def test_what_cannot_be_packed_is_searched_as_it_is() -> None:
    net = network()
    for part in net.modules():
        if isinstance(part, MultiHeadAttention):  # as written with bias=False
            for linear in (part.query, part.key_value, part.output):
                linear.bias = None  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="AttributeError: .*is not used: that is slower$"):
        searched = stepwise(net, torch.bfloat16)
    assert_right(net, searched)


class Centred(DecoderBlock):
    """Subtracts what all positions have in common, those to come as well."""

    def forward(self, *given: Any, **named: Any) -> tuple[Tensor, KeyValue]:
        x, past = super().forward(*given, **named)
        return x - x.mean(1, keepdim=True) / 2, past


class Whole(DecoderBlock):
    """Needs all positions at once."""

    def forward(self, x: Tensor, source: KeyValue, mask: Tensor | None = None, *rest: Any) -> tuple[Tensor, KeyValue]:
        if rest[-1] is not None and rest[-1].key.size(2):
            raise RuntimeError("positions cannot be appended")
        return super().forward(x, source, mask, *rest)


@pytest.mark.parametrize(("block_type", "said"), [(Centred, r"logits differ by \d"), (Whole, "cannot be appended")])
def test_where_steps_are_not_the_forward_pass_each_computes_all_again(block_type: type, said: str) -> None:
    net = network()
    for block in net.decoder:
        block.__class__ = block_type
    with pytest.warns(UserWarning, match=said):
        searched = stepwise(net, torch.float32)
    assert isinstance(searched, Recomputing)
    src, state = sources(7, 4), searched.start(sources(7, 4))
    for t in range(3):
        logits, state = searched.step(TGT[:, t], state)
        torch.testing.assert_close(logits, net(src, TGT[:, : t + 1])[:, -1])


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_of_a_network_that_says_nothing_nothing_is_said(value: float) -> None:
    net = network()
    nn.init.constant_(net.output.weight, value)
    with warnings.catch_warnings(action="error"):
        assert all(isinstance(block, PackedDecoderBlock) for block in stepwise(net, torch.float32).decoder)


@pytest.mark.parametrize(("dtype", "int8"), [(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)])
@pytest.mark.parametrize("thorough", [True, False])
def test_what_was_not_edited_is_packed_without_a_word(dtype: torch.dtype, int8: bool, thorough: bool) -> None:
    net = network().train()
    with warnings.catch_warnings(action="error"):
        searched = stepwise(net, dtype, int8, thorough)
    assert isinstance(searched, Transformer)
    assert all(isinstance(block, PackedDecoderBlock) for block in searched.decoder)
    assert net.training
    assert not any(isinstance(part, nn.Module) and part.training for part in searched.modules())
