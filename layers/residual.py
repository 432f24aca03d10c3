"""Residual connection, x + f(norm(x)) or norm(x + f(x)): the one place that decides where the norm goes."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from config.model import Norm
from layers.dropout import Dropout

NORM: dict[Norm, type[nn.LayerNorm] | type[nn.RMSNorm]] = {
    "layer": nn.LayerNorm,  # (x - mean) / √(variance + ε) · γ + β, Ba et al. 2016
    "rms": nn.RMSNorm,  # x / √(mean of x² + ε) · γ, Zhang & Sennrich 2019
}


class Residual(nn.Module):
    """A residual connection around a sub-layer f.

    Norm last is Vaswani et al. 2017, 3.1; norm first makes deep networks train more stably (Xiong et al. 2020), and
    the stack of blocks then ends with one more norm.

    Args:
        d_model: width.
        dropout: probability of dropping a component of f's output.
        norm_first: norm before the sub-layer (True) or after it (False).
        norm_eps: ε of the norm.
        norm: which one.
    """

    def __init__(
        self, d_model: int, dropout: float = 0.0, norm_first: bool = True, norm_eps: float = 1e-5, norm: Norm = "layer"
    ) -> None:
        super().__init__()
        self.norm = NORM[norm](d_model, norm_eps)
        self.dropout = Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Float[Tensor, "B L D"], f: Callable[[Tensor], Tensor]) -> Float[Tensor, "B L D"]:
        """Send x through f and around it."""
        if self.norm_first:
            return x + self.dropout(f(self.norm(x)))
        return self.norm(x + self.dropout(f(x)))
