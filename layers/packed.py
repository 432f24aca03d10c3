"""Networks that no longer learn, made ready for many small steps."""

import copy
from typing import TypeVar, cast

import torch
from torch import nn

from layers.decoder_block import DecoderBlock
from layers.packed_decoder_block import packed_block
from layers.packed_linear import PackedLinear

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def packed(module: ModuleT, dtype: torch.dtype) -> ModuleT:
    """A copy to infer with: linear layers and the decoder blocks inside are packed, all else is as it was.

    Nothing is shared with the original, which may go on learning.

    Args:
        module: a network.
        dtype: of its products.
    """
    linears = (part for part in module.modules() if isinstance(part, nn.Linear))
    twin = copy.deepcopy(module, {id(linear): PackedLinear(linear, dtype) for linear in linears})
    for name, part in module.named_modules():
        if name and isinstance(part, DecoderBlock) and part.self_attention.score_bias is None:
            block = cast(DecoderBlock, twin.get_submodule(name))
            twin.set_submodule(name, packed_block(block, part.self_attention, dtype))
    return twin.eval()
