"""Who may attend to whom. Boolean, True = may attend, broadcastable to (B, H, T, S), joined with `&`."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def padding_mask(ids: Int[Tensor, "B S"], pad_id: int) -> Bool[Tensor, "B 1 1 S"]:
    """Let every query attend to every key that is a real token."""
    return (ids != pad_id)[:, None, None, :]


def causal_mask(t_len: int, s_len: int, device: torch.device | None = None) -> Bool[Tensor, "T S"]:
    """Let query t attend to the keys up to its own position, the last query being at the last key.

    One function serves training (T = S), a cached step (T = 1) and a memory in front of the keys (S = M + T).
    """
    return torch.ones(t_len, s_len, dtype=torch.bool, device=device).tril(s_len - t_len)
