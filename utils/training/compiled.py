"""torch.compile, a block of the network at a time: equal blocks share what was compiled for the first of them."""

from torch import nn

from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.recurrent_block import RecurrentBlock


def compile_blocks(net: nn.Module) -> None:
    """Have each block compiled at its first call, for batches of every shape."""
    for part in net.modules():
        if isinstance(part, EncoderBlock | DecoderBlock | RecurrentBlock):
            part.compile(dynamic=True)
