"""Counter-based random numbers: the same whichever process draws them, and in whatever order.

SplitMix64 (Steele et al. 2014) as a hash, as in Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_GAMMA, _FIRST, _SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(key: tuple[int | str, ...], *counters: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return a number from [0, 1) for each element of the counters, which are broadcast together.

    Args:
        key: key of the draw: seed, epoch, what is drawn.
        counters: not negative, such as an example's number and a place in it.
    """
    digest = blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest()
    state = np.frombuffer(digest, np.uint64)
    for counter in counters:
        state = _mixed(state + np.asarray(counter).astype(np.uint64) * _GAMMA)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
