"""uᵀ k_j + (q_i + v)ᵀ W_{k,R} R_{i-j}: what Transformer-XL adds to q_iᵀ k_j, Dai et al. 2019, 3.3."""

from jaxtyping import Float
from torch import Tensor, nn

from layers.positional_encoding import sinusoid


class RelativePositionBias(nn.Module):
    """The bias of a key by itself (uᵀ k_j) and by its distance to the query, R being the sinusoid of distances.

    Used as the `score_bias` of `MultiHeadAttention`. The last query is at the last key, as in
    `layers.mask.causal_mask`; a key after its query gets some finite number, which a mask must hide.
    u is added to every query that is compared with a key, v where it is with a distance; layers may share both.
    """

    table: Tensor

    def __init__(
        self, d_model: int, n_heads: int, u: Float[nn.Parameter, "H K"], v: Float[nn.Parameter, "H K"]
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.distance_key = nn.Linear(d_model, d_model, bias=False)  # W_{k,R}
        self.u = u
        self.v = v
        self.register_buffer("table", sinusoid(0, d_model), persistent=False)

    def forward(self, query: Float[Tensor, "B H T K"], key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H T S"]:
        """Return the bias of every query and key, before scaling."""
        t_len, s_len = query.size(2), key.size(2)
        by_key = self.u.to(key.dtype)[:, None] @ key.transpose(-2, -1)
        # heads first: every row of the batch has the same distances, so one product per head is enough
        asking = (query + self.v.to(query.dtype)[:, None]).transpose(0, 1)
        fit = asking.flatten(1, 2) @ self._distance_keys(s_len)
        # Row t of (T, S + 1) holds the distances S ... 0 and should begin with S - T + t, the distance to the first
        # key: T - t places further on. The same memory without its first T numbers, read in rows of S, does just that:
        # each row begins one place earlier than the one before. What a row reads past its own end belongs to the next
        # row and falls on future keys.
        fit = fit.unflatten(1, (-1, t_len)).flatten(2)[..., t_len:].unflatten(-1, (t_len, s_len))
        return by_key + fit.transpose(0, 1)

    def _distance_keys(self, s_len: int) -> Float[Tensor, "H K L"]:
        """Return W_{k,R} R for the distances S ... 0, split into heads."""
        if s_len >= len(self.table):
            self.table = sinusoid(2 ** s_len.bit_length(), self.table.size(1)).to(self.table)
        # `flip` copies, so this is not an inference tensor even if the table was extended in inference mode
        keys = self.distance_key(self.table[: s_len + 1].flip(0))
        return keys.unflatten(-1, (self.n_heads, -1)).permute(1, 2, 0)
