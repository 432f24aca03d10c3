"""Transformer-XL, a language model with a memory of the segments before, Dai et al. 2019."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from config.model import TransformerXLConfig
from const.token import PAD_ID
from layers.dropout import Dropout
from layers.encoder_block import EncoderBlock
from layers.feed_forward import FeedForward
from layers.mask import causal_mask
from layers.multi_head_attention import MultiHeadAttention
from layers.relative_position_bias import RelativePositionBias
from layers.scaled_dot_product_attention import attention_kernel
from layers.token_embedding import TokenEmbedding
from models.weight import initialise, tie


class Memory(NamedTuple):
    """The last M positions that were read, in each of B rows; no gradient flows into it.

    Immutable: reading more returns a new one.
    """

    hidden: tuple[Float[Tensor, "B M D"], ...]  # the input of each layer
    document: Int[Tensor, "B M"]  # number of the document that each position belongs to

    def select(self, rows: Int[Tensor, " R"]) -> "Memory":
        """Return these rows, in this order; a row may be taken more than once."""
        return Memory(tuple(x.index_select(0, rows) for x in self.hidden), self.document.index_select(0, rows))


class TransformerXL(nn.Module):
    """Token ids in, logits of the next token out, a segment at a time."""

    def __init__(self, config: TransformerXLConfig, vocab: int) -> None:
        super().__init__()
        self.config = c = config
        self.embedding = TokenEmbedding(vocab, c.d_model, padding_idx=PAD_ID)
        self.dropout = Dropout(c.dropout)
        # all layers share one u and one v
        self.u = nn.Parameter(torch.empty(c.n_heads, c.d_model // c.n_heads))
        self.v = nn.Parameter(torch.empty(c.n_heads, c.d_model // c.n_heads))
        self.blocks = nn.ModuleList(self._block() for _ in range(c.n_layers))
        self.output = nn.Linear(c.d_model, vocab, bias=not c.tie)
        initialise(self)
        if c.tie:
            tie(self.embedding, self.output)

    def initialise(self) -> None:
        """Set what no rule for all networks does."""
        nn.init.normal_(self.u, std=0.02)
        nn.init.normal_(self.v, std=0.02)

    def _block(self) -> EncoderBlock:
        c = self.config
        bias = RelativePositionBias(c.d_model, c.n_heads, self.u, self.v)
        attention = MultiHeadAttention(c.d_model, c.n_heads, attention_kernel(c.fused, c.attention_dropout), bias)
        feed_forward = FeedForward(c.d_model, c.d_ff, c.activation, c.dropout)
        return EncoderBlock(attention, feed_forward, c.d_model, c.dropout, norm_first=False)

    def start(self, n_rows: int, device: torch.device) -> Memory:
        """Return the memory before anything is read: no positions."""
        nothing = torch.empty(n_rows, 0, self.config.d_model, device=device)
        return Memory((nothing,) * len(self.blocks), torch.empty(n_rows, 0, dtype=torch.long, device=device))

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        memory: Memory,
        document: Int[Tensor, "B T"] | None = None,
        memory_length: int | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Memory]:
        """Return the hidden states of the next segment, which `output` turns into logits, and the new memory.

        A position attends to itself and to those before it in its own document. Padding follows the real tokens of a
        row, under a document number of its own.

        Args:
            ids: the segment.
            memory: what was read before, of any length.
            document: number of the document that each position belongs to; None: the memory's last document continues.
            memory_length: positions to remember from now on; None: as many as in training.
        """
        kept = self.config.memory_length if memory_length is None else memory_length
        if document is None:  # 0 before anything is read
            last = memory.document[:, -1:] if memory.document.size(1) else ids.new_zeros(len(ids), 1)
            document = last.expand(-1, ids.size(1))
        documents = torch.cat([memory.document, document], dim=1)
        same = document[:, None, :, None] == documents[:, None, None, :]
        mask = causal_mask(ids.size(1), documents.size(1), ids.device) & same
        x = self.dropout(self.embedding(ids))
        hidden = []
        for block, before in zip(self.blocks, memory.hidden, strict=True):
            hidden.append(_last(kept, before, x.detach()))
            x = block(x, mask, before)
        return self.dropout(x), Memory(tuple(hidden), _last(kept, memory.document, document))

    def step(
        self, tokens: Int[Tensor, " R"], memory: Memory, memory_length: int | None = None
    ) -> tuple[Float[Tensor, "R V"], Memory]:
        """Read one token in each row; return the logits of the next one, and the new memory."""
        hidden, memory = self(tokens[:, None], memory, memory_length=memory_length)
        return self.output(hidden[:, 0]), memory


def _last(n: int, before: Tensor, now: Tensor) -> Tensor:
    """Return the last n positions of both together, in a new tensor: a view would keep all of them in memory."""
    from_now = min(n, now.size(1))
    from_before = min(n - from_now, before.size(1))
    return torch.cat([before[:, before.size(1) - from_before :], now[:, now.size(1) - from_now :]], dim=1)
