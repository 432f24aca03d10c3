"""The k largest of many numbers, when k is small."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

_CHUNK = 64
_FEW = 2**17  # numbers that topk deals with in less time than it takes to look for a shorter way


def largest(values: Float[Tensor, "N C"], k: int) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """The k largest values of each row and their places, largest first, as `values.topk(k)` gives them.

    torch's topk sorts its way through all of them, on a CPU for as long as the layers of a small decoder take.
    The k largest stand in the k chunks with the largest maxima, and maxima are quickly found.
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
    # what the last, broken chunk holds comes behind
    rest, rest_places = values[:, whole:].topk(min(k, width - whole))
    best, order = torch.cat([best, rest], 1).topk(k)
    return best, torch.cat([found, rest_places + whole], 1).gather(1, order)
