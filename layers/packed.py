"""Networks in inference, prepared for many small steps."""

import copy
from typing import TypeVar, cast

import torch
from torch import nn

from layers.decoder_block import DecoderBlock
from layers.feed_forward import FeedForward
from layers.multi_head_attention import MultiHeadAttention
from layers.packed_decoder_block import packed_block
from layers.packed_linear import PackedLinear
from layers.residual import Residual

_KNOWN = {MultiHeadAttention, FeedForward, Residual, nn.LayerNorm}  # what `PackedDecoderBlock.step` replaces

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def packed(module: ModuleT, dtype: torch.dtype) -> ModuleT:
    """Return a copy for inference: its linear layers and decoder blocks are packed, everything else is unchanged.

    Nothing is shared with the original, which may continue training. A decoder block of another kind, or one with
    another kind of attention, feed-forward layer or norm in it, keeps its own `step`.

    Args:
        module: a network.
        dtype: precision of the matrix products.
    """
    linears = (part for part in module.modules() if isinstance(part, nn.Linear))
    twin = copy.deepcopy(module, {id(linear): PackedLinear(linear, dtype) for linear in linears})
    for name, part in module.named_modules():
        if name and _is_known(part):
            block = cast(DecoderBlock, twin.get_submodule(name))
            twin.set_submodule(name, packed_block(block, part.self_attention, dtype))
    return twin.eval()


def _is_known(part: nn.Module) -> bool:
    layers = list(part.children())
    layers += [layer.norm for layer in layers if isinstance(layer, Residual)]
    return type(part) is DecoderBlock and {type(layer) for layer in layers} == _KNOWN
