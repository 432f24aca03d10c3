"""FFN(x) = f(xW₁ + b₁)W₂ + b₂, Vaswani et al. 2017, 3.3, with a choice of f, or a gate, Shazeer 2020."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from config.model import Activation, FeedForwardActivation
from layers.dropout import Dropout

ACTIVATION: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # max(0, x)
    "gelu": F.gelu,  # x Φ(x) with the exact erf, Hendrycks & Gimpel 2016
    "mish": F.mish,  # x tanh(softplus(x)), Misra 2019
    "swish": F.silu,  # x σ(x), Ramachandran et al. 2017
}


def swiglu(x: Tensor) -> Tensor:
    """Return swish(a) ⊙ b of both halves of the components."""
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


class FeedForward(nn.Module):
    """Two linear layers, applied to each position separately; `dropout` is that of f's output.

    With swiglu, (swish(xW + a) ⊙ (xV + b))W₂ + b₂, where `widen` holds W above V: three matrices, which have as many
    weights as two where d_ff is reduced by a third (Shazeer 2020, 3.1), here to a multiple of eight.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: FeedForwardActivation = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.n_wide = 2 if activation == "swiglu" else 1  # matrices in `widen`
        width = 8 * max(1, round(d_ff / 12)) if activation == "swiglu" else d_ff
        self.widen = nn.Linear(d_model, self.n_wide * width)
        self.narrow = nn.Linear(width, d_model)
        self.activation = swiglu if activation == "swiglu" else ACTIVATION[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Widen, apply f, narrow."""
        return self.narrow(self.dropout(self.activation(self.widen(x))))
