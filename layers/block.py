"""The kinds of block that networks are stacks of."""

from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.recurrent_block import RecurrentBlock

Block = EncoderBlock | DecoderBlock | RecurrentBlock
