"""softmax(vᵀ tanh(W q + U k)) mixes what is attended to: additive attention, Bahdanau et al. 2015, 3.1 and A.1.2."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """Compares a query and a key by a small feed-forward layer, where later attention takes their dot product.

    Args:
        d_query: width of the queries, Q.
        d_memory: width of what is attended to, E.
        d_attention: width in which both are added, A.
    """

    def __init__(self, d_query: int, d_memory: int, d_attention: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_query, d_attention)  # W; U needs no bias of its own, since both are added
        self.key = nn.Linear(d_memory, d_attention, bias=False)  # U
        self.score = nn.Linear(d_attention, 1, bias=False)  # vᵀ

    def project(self, memory: Float[Tensor, "B S E"]) -> Float[Tensor, "B S A"]:
        """Project the keys of what is attended to, once for all queries."""
        return self.key(memory)

    def attend(
        self,
        query: Float[Tensor, "B T Q"],
        key: Float[Tensor, "B S A"],
        memory: Float[Tensor, "B S E"],
        mask: Bool[Tensor, "B 1 S"],
    ) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T S"]]:
        """Return a mix of the memory for each query, and its weights, softmax of vᵀ tanh(W qₜ + U kₛ) over S."""
        both = (self.query(query)[:, :, None] + key[:, None]).tanh()  # (B, T, S, A): each pair has a vector of its own
        scores = self.score(both)[..., 0].masked_fill(~mask, float("-inf"))
        dtype = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(-1, dtype=dtype).to(memory.dtype)
        return weights @ memory, weights
