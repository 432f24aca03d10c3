"""Token embedding: E[ids] · √D, Vaswani et al. 2017, 3.4."""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn


class TokenEmbedding(nn.Embedding):
    """A table of vectors, one per token, scaled so that the positions added to them do not dominate."""

    def forward(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        """Look up and scale."""
        return super().forward(ids) * math.sqrt(self.embedding_dim)
