"""Which sentences of a batch to keep when some of them are done."""

from jaxtyping import Bool, Int
from torch import Tensor


def who_stays(over: Bool[Tensor, " N"]) -> Int[Tensor, " M"] | None:
    """Return the sentences to keep, in their order; None: all of them.

    A CPU's kernels are compiled for each batch height that they meet, which takes as long as a step. So a batch
    shrinks through a few fixed heights, and some finished sentences stay in it until it can shrink to the next.
    """
    n_alive = int((~over).sum())
    height = batch_height(n_alive)
    if height >= len(over):
        return None
    return over.int().argsort(stable=True)[:height].sort().values


def batch_height(n: int) -> int:
    """Return the next of a few heights, at least n: 1 to 8, 10, 12, 14, 16, 20, ..., each at most a quarter larger."""
    step = 2 ** max(0, n.bit_length() - 3)
    return -(-n // step) * step
