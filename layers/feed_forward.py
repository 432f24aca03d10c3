"""FFN(x) = f(xW₁ + b₁)W₂ + b₂, Vaswani et al. 2017, 3.3, with a choice of f."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from config.model import Activation
from layers.dropout import Dropout

ACTIVATION: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # max(0, x)
    "gelu": F.gelu,  # x Φ(x) with the exact erf, Hendrycks & Gimpel 2016
    "mish": F.mish,  # x tanh(softplus(x)), Misra 2019
    "swish": F.silu,  # x σ(x), Ramachandran et al. 2017
}


class FeedForward(nn.Module):
    """Two linear layers, applied to each position separately; `dropout` is that of f's output."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.widen = nn.Linear(d_model, d_ff)
        self.narrow = nn.Linear(d_ff, d_model)
        self.activation = ACTIVATION[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Widen, apply f, narrow."""
        return self.narrow(self.dropout(self.activation(self.widen(x))))
