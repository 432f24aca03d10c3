"""The same networks in inference, prepared for many small steps: fewer and larger operations, equal results.

Weights are laid out once for all later products, and a decoder block's step launches half as many operations. A network
that is not packed translates as well, only slower; so does a block that is not of the standard kind.
"""

import copy
import time
from collections.abc import Callable
from functools import cache
from typing import Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from layers.decoder_block import DecoderBlock
from layers.feed_forward import FeedForward
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.residual import Residual

_ROWS = 64  # the number of rows of x that the layout is optimised for; others work too
_INT8 = 127  # the largest of integers of eight bits, and as far from zero as the smallest in use
_INT8_MULTIPLE = 16  # inputs: for other numbers of them, torch's product of a few rows reads beyond the weight
_INT8_SMALL = 2**19  # weights that a row is multiplied with in less time than it takes to round that row
_INT8_ROWS = 8  # whose product with a weight of eight bits takes less time than in single precision, without VNNI
_FEW_ROWS = 32  # so many attend on a CPU in single precision in less time than oneDNN takes to begin in half
_SMALL = 2**18  # multiplications in single precision that take less time than oneDNN takes to begin
# of torch, but private: where a version lacks one, F.linear computes
_OPERATORS = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
_KNOWN = {MultiHeadAttention, FeedForward, Residual, nn.LayerNorm, nn.RMSNorm}  # what `PackedDecoderBlock` replaces

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def packed(module: ModuleT, dtype: torch.dtype, int8: bool = False) -> ModuleT:
    """Return a copy for inference: its linear layers and decoder blocks are packed, everything else is unchanged.

    Nothing is shared with the original, which may continue training. A decoder block of another kind, or one with
    another kind of attention, feed-forward layer or norm in it, or with a score bias, keeps its own `forward`. Whether
    all the rest computes the same is for models/stepwise.py to find out. `dtype` is as for `PackedLinear`; int8: with
    `Int8Linear`.
    """
    layer = Int8Linear if int8 else PackedLinear
    linears = (part for part in module.modules() if isinstance(part, nn.Linear))
    twin = copy.deepcopy(module, {id(linear): layer(linear, dtype) for linear in linears})
    known = {name: cast(DecoderBlock, part) for name, part in module.named_modules() if name and _is_known(part)}
    _fuse_relu(twin)
    for name, part in known.items():
        projections = layer(_query_key_value(part.self_attention), dtype)
        twin.set_submodule(name, PackedDecoderBlock(cast(DecoderBlock, twin.get_submodule(name)), projections))
    return twin.eval()


def _fuse_relu(module: nn.Module) -> None:
    """Make ReLU a part of the product before it, where there is one: a pass over the widest tensor less."""
    for part in module.modules():
        if type(part) is FeedForward and part.activation is F.relu:
            cast(PackedLinear, part.widen).after = "relu"
            part.activation = _unchanged


def _unchanged(x: Tensor) -> Tensor:
    return x


def _is_known(part: nn.Module) -> bool:
    layers = list(part.children())
    layers += [layer.norm for layer in layers if isinstance(layer, Residual)]
    if type(part) is not DecoderBlock or not {type(layer) for layer in layers} <= _KNOWN:
        return False
    return part.self_attention.score_bias is part.cross_attention.score_bias is None


def _has_blocks(dtype: torch.dtype) -> bool:
    """Return whether oneDNN has a layout for weights of this precision here; for bf16 it needs AVX-512."""
    if not torch.backends.mkldnn.is_available() or not all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS):
        return False
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


class PackedLinear(nn.Module):
    """A linear layer that computes in a precision of its own.

    On a CPU, torch reorders a weight into oneDNN's blocks for every product. For the few rows of a decoding step
    that takes longer than the product, so here it is done once. For products that are even smaller than that, as
    those of a small model with one sentence, the weight is kept as it is, too: oneDNN would take longer to begin.

    Args:
        linear: the layer; its weight is copied.
        dtype: precision of the product; x is cast to it.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.after: Literal["none", "relu"] = "none"  # what is done with each number of the product
        self.blocked: Tensor | None = None
        self.weight: Tensor | None = None
        self._lay_out(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype, copy=True)

    def _lay_out(self, weight: Float[Tensor, "O I"]) -> None:
        self.weight = weight = weight.to(self.dtype, copy=True)
        if weight.device.type == "cpu" and _has_blocks(self.dtype):
            self.blocked = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
            if self.dtype != torch.float32 or weight.numel() > _SMALL:
                self.weight = None

    def forward(self, x: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Return xWᵀ + b, without a gradient."""
        x = x.detach().to(self.dtype)
        if self.blocked is not None and (self.weight is None or x.numel() * self.weight.size(0) > _SMALL):
            return torch.ops.mkldnn._linear_pointwise(x, self.blocked, self.bias, self.after, [], "")
        y = F.linear(x, cast(Tensor, self.weight), self.bias)
        return y.relu_() if self.after == "relu" else y


class Int8Linear(PackedLinear):
    """A linear layer on a CPU whose weights have eight bits, multiples of a 127th of the largest in their row.

    x is rounded like the weight, each row by itself, and integers are multiplied: in half the time of single precision.
    A single row is not rounded for a small weight, as that would take longer than the product. Where integers are not
    multiplied exactly and fast, up to eight rows, the beam of a sentence, see a rounded weight, which comes from memory
    in a quarter of the time, and more rows are multiplied in `dtype`, as without this class.
    """

    def _lay_out(self, weight: Float[Tensor, "O I"]) -> None:
        self.low_scale = (weight.abs().amax(1) / _INT8).clamp(min=1e-9).to(torch.bfloat16)
        self.scale = self.low_scale.float()
        # no clamp: a scale rounded to bfloat16 makes no quotient larger than 127.3
        self.int8 = (weight / self.scale[:, None]).round_().to(torch.int8)
        self.columns = self.int8.t()
        if multiplies_int8():
            few = 1 if weight.numel() <= _INT8_SMALL else 0
        else:
            few = _INT8_ROWS if multiplies_few_in_int8() else 0
            super()._lay_out(weight)
        self.few = 0 if weight.size(1) % _INT8_MULTIPLE else few  # rows that are not rounded

    def forward(self, x: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Return xWᵀ + b, without a gradient."""
        if 0 < x.numel() <= self.few * x.size(-1):
            rows = x.detach().to(torch.bfloat16).flatten(0, -2)
            y = torch._weight_int8pack_mm(rows, self.int8, self.low_scale)
            y = y.float() if self.bias is None else y + self.bias
        elif multiplies_int8():
            rows = x.detach().float().flatten(0, -2)
            step = rows.abs().amax(1, keepdim=True) / _INT8  # where it is 0, so is the product
            y = torch._int_mm((rows / step).round_().to(torch.int8), self.columns) * step
            y = y.mul_(self.scale) if self.bias is None else torch.addcmul(self.bias, y, self.scale)
        else:
            return super().forward(x)
        y = y.to(self.dtype).view(*x.shape[:-1], self.int8.size(0))
        return y.relu_() if self.after == "relu" else y


@cache
def multiplies_int8() -> bool:
    """Return whether this CPU multiplies integers of eight bits exactly, and faster than numbers in single precision.

    Without instructions for them (VNNI) oneDNN adds pairs of products in sixteen bits, which cannot hold the largest,
    or torch multiplies in a plain loop: exactly, and forty times as slowly as in single precision.
    """
    n = 256
    largest = torch.full((n, n), _INT8, dtype=torch.int8)
    if not torch.backends.mkldnn.is_available() or not (torch._int_mm(largest, largest) == n * _INT8**2).all():
        return False
    return _seconds(torch._int_mm, largest, largest) < _seconds(torch.mm, largest.float(), largest.float())


@cache
def multiplies_few_in_int8() -> bool:
    """Return whether the rows of a sentence take less time with weights of eight bits than in single precision."""
    n = 1024
    x, weight, scale = torch.ones(4, n), torch.ones(n, n), torch.ones(n)
    low = x.bfloat16(), weight.to(torch.int8), scale.bfloat16()
    return _seconds(torch._weight_int8pack_mm, *low) < _seconds(F.linear, x, weight)


def _seconds(product: Callable[..., Tensor], *factors: Tensor) -> float:
    """Return the least of three times that a thread takes for a product, which others do not lengthen."""
    times = []
    for _ in range(3):
        begin = time.thread_time()
        product(*factors)
        times.append(time.thread_time() - begin)
    return min(times)


class PackedDecoderBlock(DecoderBlock):
    """A decoder block that computes the same with less overhead.

    A step of a single sentence is so little work that launching it takes longer than doing it. So query, key and
    value are one product here, and modules that do nothing outside training are not called.

    Args:
        block: a block with packed layers, which are taken over.
        query_key_value: its self-attention's three projections, W_Q above W_K above W_V, packed.
    """

    def __init__(self, block: DecoderBlock, query_key_value: PackedLinear) -> None:
        nn.Module.__init__(self)
        for name, layer in block.named_children():
            self.add_module(name, layer)
        self.query_key_value = query_key_value
        # bound once: to look up a module's own modules and parameters takes as long as a small operation
        own, cross, feed = block.self_attention, block.cross_attention, block.feed_forward
        products = query_key_value, own.output, cross.query, cross.output, feed.widen, feed.narrow
        self._products = tuple(product.forward for product in products)
        self._functions = own.attention.forward, cross.attention.forward, feed.activation
        self._turn = None if own.rotary is None else own.rotary.forward
        around = block.around_self, block.around_cross, block.around_feed
        nothing: list[Callable[[Tensor], Tensor]] = [_unchanged] * len(around)
        norms = [_normalised(residual.norm) for residual in around]
        self._before, self._after = (norms, nothing) if block.around_self.norm_first else (nothing, norms)

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        source: KeyValue,
        mask: Bool[Tensor, "..."] | None = None,
        source_mask: Bool[Tensor, "..."] | None = None,
        past: KeyValue | None = None,
    ) -> tuple[Float[Tensor, "R T D"], KeyValue]:
        """Process one more target position in fewer operations; several as `DecoderBlock` does."""
        if past is None or x.size(1) > 1:
            return super().forward(x, source, mask, source_mask, past)
        project_self, write_self, query_cross, write_cross, widen, narrow = self._products
        attend_self, attend_cross, activate = self._functions
        before_self, before_cross, before_feed = self._before
        after_self, after_cross, after_feed = self._after
        n_rows, (n_sentences, n_heads, _, width) = x.size(0), source.key.shape
        x = x[:, 0]

        # Q above K above V are three times as many heads
        heads = project_self(before_self(x)).view(n_rows, 3 * n_heads, 1, width)
        if n_rows <= _FEW_ROWS and x.device.type == "cpu":
            heads = heads.float()
        if past.key.dtype != heads.dtype:  # where rows came or went
            past = KeyValue(*(part.to(heads.dtype) for part in past))
        query, key, value = heads.chunk(3, 1)
        if self._turn is not None:
            query, key = self._turn(heads[:, : 2 * n_heads], past.key.size(2)).chunk(2, 1)
        past = past.append(KeyValue(key, value))
        x = after_self(x + write_self(attend_self(query, *past, mask)[0].view(n_rows, -1)))

        beams = query_cross(before_cross(x)).view(n_sentences, -1, n_heads, width).transpose(1, 2)
        seen = attend_cross(beams, *source, source_mask)[0].transpose(1, 2).reshape(n_rows, -1)
        x = after_cross(x + write_cross(seen))

        x = after_feed(x + narrow(activate(widen(before_feed(x)))))
        return x[:, None], past


def _query_key_value(attention: MultiHeadAttention) -> nn.Linear:
    """Return one layer for the three projections of an attention that is not packed."""
    parts = attention.query, attention.key_value
    joint = nn.Linear(attention.query.in_features, sum(part.out_features for part in parts), device="meta")
    joint.weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]))
    joint.bias = nn.Parameter(torch.cat([part.bias.detach() for part in parts]))
    return joint


def _normalised(norm: nn.LayerNorm | nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    shape, weight, eps = norm.normalized_shape, norm.weight, norm.eps
    if isinstance(norm, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, shape, weight, eps)
    bias = norm.bias
    return lambda x: torch.layer_norm(x, shape, weight, bias, cast(float, eps))
