"""What a search takes steps with: a network's fastest form whose steps are the network's own forward pass.

A layer may be edited without its packed copy, or so that a position can no longer be decoded after the others. So both
are compared on the user's own network, and what differs is not used.
"""

import copy
import warnings
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from const.token import BOS_ID, PAD_ID
from layers.mask import padding_mask
from layers.packed import packed
from models.transformer import Transformer
from models.translation_model import TranslationModel

NetworkT = TypeVar("NetworkT", bound=TranslationModel)

_POSITIONS = 48  # compared of two sentences: more than an attention may see, if somebody has made it see fewer
_FEW_STEPS = 3  # that follow them where it must not take long, and the others are decoded at once
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

    def step(self, tokens: Int[Tensor, " R"], state: RecomputingState) -> tuple[Float[Tensor, "R V"], RecomputingState]:
        """Decode everything up to the new token again."""
        state = state._replace(tokens=torch.cat([state.tokens, tokens[:, None]], 1))
        x, _ = self.decode(state.tokens, self.before(state.memory, state.mask))
        return self.output(x[:, -1]), state


def stepwise(model: NetworkT, dtype: torch.dtype, int8: bool = False, thorough: bool = False) -> NetworkT:
    """Return a copy of a network to search with: packed, as it is, or recomputing, the first whose steps are right.

    Args:
        dtype: as `int8`, that of layers/packed.py.
        thorough: compare more steps, and in single precision; for trainings and evaluations, which take long.
    """
    own = copy.deepcopy(model).eval() if model.training else model
    rounded = int8 or dtype != torch.float32
    n_steps = _POSITIONS if thorough else _FEW_STEPS
    tolerance = _EXACT if thorough or not rounded else _ROUNDED
    try:
        twin = packed(model, dtype, int8)
        reason = _difference(own, packed(model, torch.float32) if thorough and rounded else twin, n_steps, tolerance)
    except Exception as error:  # whatever edited layers raise that their packed copy does not know
        reason = f"{type(error).__name__}: {error}"
    if not reason:
        return twin
    plain = copy.deepcopy(own)
    if not (of_steps := _difference(own, plain, _POSITIONS, _EXACT)):
        said = f"layers/packed.py computes something else than the layers ({reason}), and is not used: that is slower"
        warnings.warn(said, stacklevel=3)
        return plain
    said = f"the steps of this network are not its forward pass ({of_steps})"
    if not isinstance(own, Transformer):
        raise ValueError(f"{said}: have `decode` of {type(own).__name__} compute the same when called for each token")
    warnings.warn(f"{said}: each step computes all again, which is slow", stacklevel=3)
    return cast(NetworkT, Recomputing.of(own))


def _ids(n: int, vocab: int) -> Int[Tensor, "2 L"]:
    """Return two rows of n ids, none of which is that of padding."""
    return torch.arange(2 * n).view(2, n) % (vocab - 1) + 1


@torch.no_grad()
def _difference(own: TranslationModel, other: TranslationModel, n_steps: int, tolerance: float) -> str:
    """Return how the last steps of `other` differ from the forward pass of `own`: nothing, if only by rounding."""
    bert = own.bert if isinstance(own, Transformer) else None
    table = own.src_embedding if bert is None else bert.embedding
    longest = min(own.config.max_length, *([] if bert is None else [bert.config.max_length]), _POSITIONS)
    device = own.output.weight.device
    n_before = max(0, longest - n_steps)
    src, tgt = _ids(longest - n_before, len(table.weight)).to(device), _ids(longest, len(own.output.weight)).to(device)
    src[1, 2:], tgt[:, 0] = PAD_ID, BOS_ID
    expected, logits = own.output(own.hidden(src, tgt)[:, n_before:]), list[Tensor]()
    try:
        state: Any = other.start(src)
        if n_before:
            _, state = other.decode(tgt[:, :n_before], state)
        for tokens in tgt[:, n_before:].t():
            row, state = other.step(tokens, state)
            logits.append(row)
    except Exception as error:  # the same: the network itself has computed
        return f"{type(error).__name__}: {error}"
    apart, size = (torch.stack(logits, 1) - expected).norm(), expected.norm()
    if apart <= tolerance * size or not size.isfinite():  # of a training that has diverged, nothing can be said
        return ""
    return f"logits differ by {(apart / size).item():.1%}"
