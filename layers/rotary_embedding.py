"""Rotary positions: each pair of components is turned by an angle that grows with the position, Su et al. 2021, eq. 34.

The product of a query at m and a key at n, turned by mθ and nθ, depends on their distance m - n alone.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn


def rotations(length: int, width: int) -> Complex[Tensor, "L P"]:
    """Return e^{i p θ_j} for the positions p and the P = K / 2 angles θ_j = 10000^(-2j/K)."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    angle = position * 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


class RotaryEmbedding(nn.Module):
    """Turns queries or keys by their positions: components 2j and 2j + 1 are one complex number, times e^{i p θ_j}.

    `width` is K, that of a head. `max_length` positions are precomputed, as for the sinusoid.
    """

    table: Tensor

    def __init__(self, width: int, max_length: int) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"positions=rotary turns pairs, but a head has {width} components: give an even number")
        self.register_buffer("table", rotations(max_length, width), persistent=False)

    def forward(self, x: Float[Tensor, "B H L K"], start: int = 0) -> Float[Tensor, "B H L K"]:
        """Turn the positions start .. start + L - 1."""
        end = start + x.size(2)
        table = self.table if end <= len(self.table) else rotations(end, x.size(3)).to(self.table)
        pairs = torch.view_as_complex(x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * table[start:end]).flatten(-2).to(x.dtype)
