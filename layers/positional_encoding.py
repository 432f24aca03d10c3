"""Positional encodings: the sinusoid of the paper, a learned table, or none, with the same interface."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from layers.dropout import Dropout


def sinusoid(length: int, d_model: int) -> Float[Tensor, "L D"]:
    """Return PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(p / 10000^(2i/D)), Vaswani et al. 2017, 3.5.

    An odd width ends with a sine.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position / 10000.0 ** (even / d_model)
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]
    return table.float()


class SinusoidalPositionalEncoding(nn.Module):
    """Sinusoidal positions: dropout(x + PE).

    `max_length` positions are precomputed; for a longer input the table is recomputed at each call.
    """

    table: Tensor

    def __init__(self, d_model: int, max_length: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("table", sinusoid(max_length, d_model), persistent=False)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L D"], start: int = 0) -> Float[Tensor, "B L D"]:
        """Add the positions start .. start + L - 1."""
        end = start + x.size(1)
        table = self.table if end <= len(self.table) else sinusoid(end, x.size(2)).to(self.table)
        return self.dropout(x + table[start:end])


class LearnedPositionalEncoding(nn.Module):
    """Learned positions: dropout(x + P) with a trained table P, as in BERT (Devlin et al. 2019)."""

    def __init__(self, d_model: int, max_length: int, dropout: float = 0.0) -> None:
        super().__init__()
        # no padding_idx: position 0 is a position like any other, not padding
        self.table = nn.Embedding(max_length, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L D"], start: int = 0) -> Float[Tensor, "B L D"]:
        """Add the positions start .. start + L - 1, which the table must have."""
        end = start + x.size(1)
        if end > self.table.num_embeddings:
            raise ValueError(
                f"{end} positions exceed the learned table of {self.table.num_embeddings}: "
                "shorten the input, or train with a larger max_length"
            )
        return self.dropout(x + self.table.weight[start:end])


class NoPositionalEncoding(nn.Module):
    """Nothing is added: dropout(x), where the attention itself knows the positions, or nothing does."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L D"], start: int = 0) -> Float[Tensor, "B L D"]:  # noqa: ARG002 (as the others)
        """Apply the dropout; positions do not matter."""
        return self.dropout(x)
