"""Which sentences of a batch are gone on with when some of them are done."""

from jaxtyping import Bool, Int
from torch import Tensor


def who_stays(over: Bool[Tensor, " N"]) -> Int[Tensor, " M"] | None:
    """The sentences to go on with, in their order; None: all of them stay.

    A CPU's kernels are compiled for each height of a batch that they meet, which takes as long as a step. So a
    batch shrinks through few heights, and until the next one is reached, some that are over stay in it.
    """
    n_alive = int((~over).sum())
    height = batch_height(n_alive)
    if height >= len(over):
        return None
    return over.int().argsort(stable=True)[:height].sort().values


def batch_height(n: int) -> int:
    """The least of few numbers that is not below n: 1 to 8, 10, 12, 14, 16, 20, ... with at most a quarter between."""
    step = 2 ** max(0, n.bit_length() - 3)
    return -(-n // step) * step
