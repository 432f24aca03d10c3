"""Concat(head₁ … head_H) W_O with head_i = Attention(Q W_Qⁱ, K W_Kⁱ, V W_Vⁱ), Vaswani et al. 2017, 3.2.2."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from layers.scaled_dot_product_attention import ScaledDotProductAttention


class KeyValue(NamedTuple):
    """Projected keys and values: all that an attention needs of what it attends to."""

    key: Float[Tensor, "B H S K"]
    value: Float[Tensor, "B H S K"]

    def append(self, new: "KeyValue") -> "KeyValue":
        """Append `new`: this is how a decoder's self-attention cache grows by a token."""
        return KeyValue(torch.cat([self.key, new.key], dim=2), torch.cat([self.value, new.value], dim=2))

    def select(self, rows: Int[Tensor, " R"]) -> "KeyValue":
        """Return these rows of the batch, in this order; a row may be taken more than once."""
        return KeyValue(self.key.index_select(0, rows), self.value.index_select(0, rows))


class MultiHeadAttention(nn.Module):
    """H attentions in parallel, each in a subspace of width K = D / H.

    Args:
        d_model: width of the input and the output.
        n_heads: divides d_model.
        attention: the attention itself, explicit or fused; explicit and without dropout when not given.
        score_bias: a module (query, key) -> (B, H, T, S) whose result is added to QKᵀ.
        rotary: turns queries and keys by their positions; for self-attention, whose last query is at its last key.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        attention: nn.Module | None = None,
        score_bias: nn.Module | None = None,
        rotary: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if n_heads < 1 or d_model % n_heads:
            raise ValueError(f"d_model={d_model} does not split into n_heads={n_heads}: choose a multiple of n_heads")
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)  # W_K above W_V: one product instead of two
        self.output = nn.Linear(d_model, d_model)
        self.attention = attention if attention is not None else ScaledDotProductAttention()
        self.score_bias = score_bias
        self.rotary = rotary

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from x to memory; where memory is x, this is self-attention."""
        return self.attend(x, self.project(memory), mask)

    def project(self, memory: Float[Tensor, "B S D"], past: KeyValue | None = None) -> KeyValue:
        """Project the keys and values of memory once, behind those of `past`; they may be attended to many times."""
        key, value = map(self._split, self.key_value(memory).chunk(2, dim=-1))
        if self.rotary is not None:
            key = self.rotary(key, 0 if past is None else past.key.size(2))
        return KeyValue(key, value) if past is None else past.append(KeyValue(key, value))

    def attend(
        self, x: Float[Tensor, "B T D"], kv: KeyValue, mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Attend from x to keys and values that are already projected."""
        query = self._split(self.query(x))
        if self.rotary is not None:
            query = self.rotary(query, kv.key.size(2) - query.size(2))
        return self.mix(query, kv, mask)

    def mix(
        self, query: Float[Tensor, "B H T K"], kv: KeyValue, mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Attend from projected queries to keys and values that are already projected."""
        bias = self.score_bias(query, kv.key) if self.score_bias is not None else None
        mixed, _ = self.attention(query, kv.key, kv.value, mask, bias)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B H L K"]:
        """Reshape (B, L, D) to (B, H, L, K), for any length, since T and S may differ."""
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
