"""torch.compile, one block of the network at a time: equal blocks share what was compiled for the first."""

from torch import nn

from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock


def compile_blocks(net: nn.Module) -> None:
    """Have each block compiled at its first call, for batches of any shape."""
    for part in net.modules():
        if isinstance(part, EncoderBlock | DecoderBlock):
            part.compile(dynamic=True)
