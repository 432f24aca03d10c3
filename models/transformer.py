"""The Transformer for translation, Vaswani et al. 2017, Figure 1."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple, cast

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from config.model import TransformerConfig
from const.token import PAD_ID
from layers.decoder_block import DecoderBlock
from layers.encoder_block import EncoderBlock
from layers.feed_forward import FeedForward
from layers.mask import causal_mask, padding_mask
from layers.multi_head_attention import KeyValue, MultiHeadAttention
from layers.positional_encoding import LearnedPositionalEncoding, NoPositionalEncoding, SinusoidalPositionalEncoding
from layers.residual import NORM
from layers.rotary_embedding import RotaryEmbedding
from layers.scaled_dot_product_attention import attention_kernel
from layers.token_embedding import TokenEmbedding
from models.bert import Bert
from models.translation_model import TranslationModel
from models.weight import initialise

_SLICE = 1024  # positions that keep a CPU busy


class TransformerState(NamedTuple):
    """The state of decoding after some steps, for N sentences with W rows (beams) each; R = N · W.

    Immutable: `step` and `select` return new states.
    """

    source: tuple[KeyValue, ...]  # one per layer, (N, H, S, K): once per sentence, never once per beam
    source_mask: Bool[Tensor, "N 1 1 S"] | None  # None: nothing is padded
    past: tuple[KeyValue, ...]  # one per layer, (R, H, t, K); none before the first position

    def select(self, rows: Int[Tensor, "N W"]) -> "TransformerState":
        """Keep these rows: W for each sentence that stays, from that sentence's own rows.

        Sentences keep their order; where none leaves, the sources are not copied.
        """
        source, source_mask = self.source, self.source_mask
        n_sentences = len(source[0].key)
        if len(rows) < n_sentences:
            width = len(self.past[0].key) // n_sentences
            sentences = rows[:, 0] // width
            source = tuple(kv.select(sentences) for kv in source)
            source_mask = None if source_mask is None else source_mask.index_select(0, sentences)
        return TransformerState(source, source_mask, tuple(kv.select(rows.flatten()) for kv in self.past))


class Transformer(TranslationModel):
    """Source ids in, logits of the next target token out; both vocabularies are given by their sizes."""

    def __init__(self, config: TransformerConfig, src_vocab: int, tgt_vocab: int) -> None:
        super().__init__()
        self.config = c = config
        if c.bert is not None and (c.tie == "all" or c.bert.d_model != c.d_model):
            raise ValueError(
                f"a BERT of d_model={c.bert.d_model} cannot read for a model of d_model={c.d_model}, tie={c.tie}: "
                "give both the same width, and tie=target"
            )
        self.bert: Bert | None
        self.register_module("bert", None)  # reads the source instead of an embedding, if there is one
        table = TokenEmbedding if c.scale_embedding else nn.Embedding
        if c.bert is None:
            self.src_embedding = table(src_vocab, c.d_model, padding_idx=PAD_ID)
        self.tgt_embedding = table(tgt_vocab, c.d_model, padding_idx=PAD_ID)
        if c.bert is None:
            self.src_positions = self._positions()
        self.tgt_positions = self._positions()
        rotary = c.positions == "rotary"  # of self-attention alone
        around: Any = {"d_model": c.d_model, "dropout": c.dropout, "norm_first": c.norm_first, "norm": c.norm}
        self.encoder = nn.ModuleList(
            EncoderBlock(self._attention(rotary), self._feed_forward(), **around) for _ in range(c.n_encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderBlock(self._attention(rotary), self._attention(), self._feed_forward(), **around)
            for _ in range(c.n_decoder_layers)
        )
        # with norm last, every block ends with a norm already
        self.encoder_norm, self.decoder_norm = (
            NORM[c.norm](c.d_model, 1e-5) if c.norm_first else nn.Identity() for _ in range(2)
        )
        self.output = nn.Linear(c.d_model, tgt_vocab, bias=c.tie == "none")
        initialise(self, c.initialisation)
        self.tie(c.tie)
        if c.bert is not None:  # initialised as a BERT is; its vocabulary has one more token at the end, [MASK]
            self.bert = Bert(replace(c.bert, fused=c.fused), src_vocab + 1)

    def _positions(self) -> nn.Module:
        if self.config.positions in ("rotary", "none"):
            return NoPositionalEncoding(self.config.dropout)
        encoding = {"sinusoidal": SinusoidalPositionalEncoding, "learned": LearnedPositionalEncoding}
        return encoding[self.config.positions](self.config.d_model, self.config.max_length, self.config.dropout)

    def _attention(self, rotary: bool = False) -> MultiHeadAttention:
        c = self.config
        kernel = attention_kernel(c.fused, c.attention_dropout, c.scale_attention)
        turn = RotaryEmbedding(c.d_model // c.n_heads, c.max_length) if rotary else None
        return MultiHeadAttention(c.d_model, c.n_heads, kernel, rotary=turn)

    def _feed_forward(self) -> FeedForward:
        c = self.config
        return FeedForward(c.d_model, c.d_ff, c.activation, c.dropout)

    def hidden(self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the decoder's output, from which `output` makes logits."""
        return self.decode(tgt, self.before(self.encode(src), padding_mask(src, PAD_ID)))[0]

    def encode(self, src: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """Encode the source; each position attends to all positions."""
        mask = padding_mask(src, PAD_ID)
        x = self.src_positions(self.src_embedding(src)) if self.bert is None else self.bert(src)
        for block in self.encoder:
            x = block(x, mask)
        return self.encoder_norm(x)

    def before(
        self, memory: Float[Tensor, "N S D"], source_mask: Bool[Tensor, "N 1 1 S"] | None = None
    ) -> TransformerState:
        """Return the state before the first target position, from what `encode` returned."""
        source = tuple(cast(DecoderBlock, block).cross_attention.project(memory) for block in self.decoder)
        return TransformerState(source, source_mask, ())

    def decode(
        self, tgt: Int[Tensor, "R T"], state: TransformerState
    ) -> tuple[Float[Tensor, "R T D"], TransformerState]:
        """Decode T more positions: all of them in training, one in a step of a search.

        Each attends to the source and to the target up to itself. Padding follows the real tokens, so the causal mask
        hides it from them.
        """
        begin, length = state.past[0].key.size(2) if state.past else 0, tgt.size(1)
        # a step attends to all before it, unless `causal_mask` says otherwise
        hides = length > 1 or not causal_mask(1, begin + 1).all()
        mask = causal_mask(length, begin + length, tgt.device) if hides else None
        x = self.tgt_positions(self.tgt_embedding(tgt), start=begin)
        past = []
        for i, block in enumerate(self.decoder):
            x, own = block(x, state.source[i], mask, state.source_mask, state.past[i] if state.past else None)
            past.append(own)
        return self.decoder_norm(x), state._replace(past=tuple(past))

    def start(self, src: Int[Tensor, "N S"]) -> TransformerState:
        """Encode N sources, ready for the first step, with one row each."""
        parts = [self.before(self.encode(part)).source for part in ([src] if src.is_cuda else _slices(src))]
        # every step reads them: contiguous, head by head, not views of (N, S, D)
        source = tuple(
            KeyValue(*(_stacked(of_all, src.size(1)) for of_all in zip(*of_layer, strict=True)))
            for of_layer in zip(*parts, strict=True)
        )
        past = tuple(KeyValue(kv.key[:, :, :0], kv.value[:, :, :0]) for kv in source)  # length 0: no target token yet
        mask = padding_mask(src, PAD_ID)
        return TransformerState(source, mask if src.is_cuda or not mask.all() else None, past)  # a GPU would wait


def _slices(src: Int[Tensor, "N S"]) -> Iterator[Int[Tensor, "_ _"]]:
    """Yield sources slice by slice, each only as long as its longest; a search has them of all lengths, sorted."""
    lengths, begin = (src != PAD_ID).sum(1).tolist(), 0
    while begin < len(src):
        end = begin + max(1, _SLICE // lengths[begin])
        yield src[begin:end, : max(lengths[begin:end])]
        begin = end


def _stacked(parts: Sequence[Float[Tensor, "_ H _ K"]], length: int) -> Float[Tensor, "N H S K"]:
    """Return the rows of all parts, each with zeros up to a length."""
    ends = [*accumulate(map(len, parts))]
    whole = parts[0].new_zeros(ends[-1], parts[0].size(1), length, parts[0].size(3))
    for part, end in zip(parts, ends, strict=True):
        whole[end - len(part) : end, :, : part.size(2)] = part
    return whole
