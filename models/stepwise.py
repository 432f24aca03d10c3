"""What a search takes steps with: a network's fastest form whose steps are the network's own forward pass.

A layer may be edited without its packed copy, or so that a position can no longer be decoded after the others. So both
are compared on the user's own network, and what differs is not used.
"""

import copy
import warnings
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from const.token import BOS_ID, PAD_ID
from layers.mask import padding_mask
from layers.packed import packed
from models.transformer import Transformer

_POSITIONS, _FEW_POSITIONS = 12, 3  # compared of two sentences; few, where it must not take long
_EXACT, _ROUNDED = 1e-3, 0.1  # parts of the logits' norm that a difference may have, in single and in lower precision


class RecomputingState(NamedTuple):
    """All tokens so far, and the whole source in every row."""

    memory: Float[Tensor, "R S D"]
    mask: Bool[Tensor, "R 1 1 S"]
    tokens: Int[Tensor, "R t"]

    def select(self, rows: Int[Tensor, "N W"]) -> "RecomputingState":
        """Copy the rows."""
        return RecomputingState(*(tensor.index_select(0, rows.flatten()) for tensor in self))


class Recomputing(Transformer):
    """Computes the whole prefix again at each step, as a loop over a model's `forward` does: right, and slow."""

    @classmethod
    def of(cls, model: Transformer) -> "Recomputing":
        """Return a copy of a network that takes its steps so."""
        twin = copy.deepcopy(model)
        twin.__class__ = cls
        return cast(Recomputing, twin)

    def start(self, src: Int[Tensor, "N S"]) -> RecomputingState:  # type: ignore[override]  # a state of its own
        """Read the sources."""
        return RecomputingState(self.encode(src), padding_mask(src, PAD_ID), src[:, :0])

    def step(  # type: ignore[override]
        self, tokens: Int[Tensor, " R"], state: RecomputingState
    ) -> tuple[Float[Tensor, "R V"], RecomputingState]:
        """Decode everything up to the new token again."""
        state = state._replace(tokens=torch.cat([state.tokens, tokens[:, None]], 1))
        x, _ = self.decode(state.tokens, self.before(state.memory, state.mask))
        return self.output(x[:, -1]), state


def stepwise(model: Transformer, dtype: torch.dtype, int8: bool = False, thorough: bool = False) -> Transformer:
    """Return a copy of a network to search with: packed, as it is, or recomputing, the first whose steps are right.

    Args:
        dtype: as `int8`, that of layers/packed.py.
        thorough: compare more positions, and in single precision; for trainings and evaluations, which take long.
    """
    own = copy.deepcopy(model).eval() if model.training else model
    rounded = int8 or dtype != torch.float32
    positions = _POSITIONS if thorough else _FEW_POSITIONS
    most = _EXACT if thorough or not rounded else _ROUNDED
    try:
        twin = packed(model, dtype, int8)
        reason = _difference(own, packed(model, torch.float32) if thorough and rounded else twin, positions, most)
    except Exception as error:  # whatever edited layers raise that their packed copy does not know
        reason = f"{type(error).__name__}: {error}"
    if not reason:
        return twin
    plain = copy.deepcopy(own)
    if not (of_steps := _difference(own, plain, _POSITIONS, _EXACT)):
        said = f"layers/packed.py computes something else than the layers ({reason}), and is not used: that is slower"
        warnings.warn(said, stacklevel=3)
        return plain
    said = (
        f"the steps of this network are not its forward pass ({of_steps}): each step computes all again, which is slow"
    )
    warnings.warn(said, stacklevel=3)
    return Recomputing.of(own)


def _ids(n: int, vocab: int) -> Int[Tensor, "2 L"]:
    """Return two rows of n ids, none of which is that of padding."""
    return torch.arange(2 * n).view(2, n) % (vocab - 1) + 1


@torch.no_grad()
def _difference(own: Transformer, other: Transformer, positions: int, most: float) -> str:
    """Return how the steps of `other` differ from the forward pass of `own`: nothing, if only by rounding."""
    table = own.src_embedding if own.bert is None else own.bert.embedding
    n, device = min(positions, own.config.max_length), own.output.weight.device
    src, tgt = (_ids(n, len(part.weight)).to(device) for part in (table, own.output))
    src[1, 2:], tgt[:, 0] = PAD_ID, BOS_ID
    expected, found = own(src, tgt), []
    try:
        state = other.start(src)
        for tokens in tgt.t():
            logits, state = other.step(tokens, state)
            found.append(logits)
    except Exception as error:  # the same: the network itself has computed
        return f"{type(error).__name__}: {error}"
    apart, size = (torch.stack(found, 1) - expected).norm(), expected.norm()
    if apart <= most * size or not size.isfinite():  # of a training that has diverged, nothing can be said
        return ""
    return f"logits differ by {(apart / size).item():.1%}"
