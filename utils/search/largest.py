"""The k largest of many numbers, for small k."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_CHUNK = 64
_FEW = 2**17  # numbers; for fewer, topk is faster than any detour


def largest(values: Float[Tensor, "N C"], k: int) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """Return the k largest values of each row and their places, largest first, as `values.topk(k)` does.

    torch's topk sorts its way through all of them, which on a CPU takes as long as the layers of a small decoder.
    The k largest are in the k chunks with the largest maxima, and maxima are found quickly.
    """
    width = values.size(1)
    whole = width // _CHUNK * _CHUNK
    if values.device.type != "cpu" or values.numel() < _FEW or whole // _CHUNK <= 2 * k:
        return values.topk(k)
    chunks = values[:, :whole].unflatten(1, (-1, _CHUNK))
    places = chunks.amax(-1).topk(k).indices
    candidates = chunks.gather(1, places[..., None].expand(-1, -1, _CHUNK)).flatten(1)
    best, within = candidates.topk(k)
    found = places.gather(1, within // _CHUNK) * _CHUNK + within % _CHUNK
    if whole == width:
        return best, found
    # the last, incomplete chunk is merged in afterwards
    rest, rest_places = values[:, whole:].topk(min(k, width - whole))
    best, order = torch.cat([best, rest], 1).topk(k)
    return best, torch.cat([found, rest_places + whole], 1).gather(1, order)
