"""A translator without an encoder: one stack of blocks reads the source, then writes the target behind it.

A prefix language model, Raffel et al. 2020, 3.2.1: every position attends to the whole source, and a target position
to the target up to itself, too. Only the target is predicted.
"""

from typing import NamedTuple, cast

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from config.model import DecoderOnlyConfig
from const.token import PAD_ID
from layers.dropout import Dropout
from layers.encoder_block import EncoderBlock
from layers.feed_forward import FeedForward
from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.residual import NORM
from layers.rotary_embedding import RotaryEmbedding
from layers.scaled_dot_product_attention import attention_kernel
from layers.token_embedding import TokenEmbedding
from models.translation_model import TranslationModel
from models.weight import initialise


class DecoderOnlyState(NamedTuple):
    """What has been read, source and target alike, in each of R rows. Immutable, as `TransformerState` is."""

    mask: Bool[Tensor, "R 1 1 L"]  # False: padding, which is in front of the source
    past: tuple[KeyValue, ...]  # one per layer, (R, H, L, K)

    def select(self, rows: Int[Tensor, "N W"]) -> "DecoderOnlyState":
        """Keep these rows."""
        rows = rows.flatten()
        return DecoderOnlyState(self.mask.index_select(0, rows), tuple(kv.select(rows) for kv in self.past))


class CachedBlock(EncoderBlock):
    """An encoder's block that reads some more positions of each row at a time."""

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "R T D"], mask: Bool[Tensor, "..."], past: KeyValue | None
    ) -> tuple[Float[Tensor, "R T D"], KeyValue]:
        """Process T more positions; return the output, and `past` with these positions appended."""
        longer: KeyValue

        def attend(x: Tensor) -> Tensor:
            nonlocal longer
            longer = self.self_attention.project(x, past)
            return self.self_attention.attend(x, longer, mask)

        x = self.around_self(x, attend)
        return self.around_feed(x, self.feed_forward), longer


class DecoderOnlyTranslator(TranslationModel):
    """Source ids in, logits of the next target token out.

    Positions are rotary, so that distances alone count, and padding in front of a source changes nothing.
    """

    def __init__(self, config: DecoderOnlyConfig, src_vocab: int, tgt_vocab: int) -> None:
        super().__init__()
        self.config = c = config
        self.src_embedding = TokenEmbedding(src_vocab, c.d_model, padding_idx=PAD_ID)
        self.tgt_embedding = TokenEmbedding(tgt_vocab, c.d_model, padding_idx=PAD_ID)
        self.dropout = Dropout(c.dropout)
        self.decoder = nn.ModuleList(self._block() for _ in range(c.n_layers))
        self.decoder_norm = NORM[c.norm](c.d_model, 1e-5)
        self.output = nn.Linear(c.d_model, tgt_vocab, bias=c.tie == "none")
        initialise(self)
        self.tie(c.tie)

    def _block(self) -> CachedBlock:
        c = self.config
        rotary = RotaryEmbedding(c.d_model // c.n_heads, 2 * c.max_length)
        kernel = attention_kernel(c.fused, c.attention_dropout)
        attention = MultiHeadAttention(c.d_model, c.n_heads, kernel, rotary=rotary)
        feed_forward = FeedForward(c.d_model, c.d_ff, c.activation, c.dropout)
        return CachedBlock(attention, feed_forward, c.d_model, c.dropout, norm=c.norm)

    def start(self, src: Int[Tensor, "N S"]) -> DecoderOnlyState:
        """Read N sources, ready for the first step, with one row each."""
        src = src.gather(1, (src != PAD_ID).int().argsort(dim=1, stable=True))  # padding first: the target adjoins
        return self._read(self.src_embedding(src), padding_mask(src, PAD_ID), None)[1]

    def decode(
        self, tgt: Int[Tensor, "R T"], state: DecoderOnlyState
    ) -> tuple[Float[Tensor, "R T D"], DecoderOnlyState]:
        """Read T more target positions; padding behind the target is hidden by causality."""
        return self._read(self.tgt_embedding(tgt), F.pad(state.mask, (0, tgt.size(1)), value=True), state.past)

    def _read(
        self, x: Float[Tensor, "R T D"], mask: Bool[Tensor, "R 1 1 L"], past: tuple[KeyValue, ...] | None
    ) -> tuple[Float[Tensor, "R T D"], DecoderOnlyState]:
        x, longer = self.dropout(x), []
        seen = mask if past is None else mask & causal_mask(x.size(1), mask.size(-1), x.device)
        for i, block in enumerate(self.decoder):
            x, own = cast(CachedBlock, block)(x, seen, None if past is None else past[i])
            longer.append(own)
        return self.decoder_norm(x), DecoderOnlyState(mask, tuple(longer))
