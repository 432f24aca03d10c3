"""Several models as one: the mean of what they find likely."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from utils.search.hypothesis import Searchable


class EnsembleState(NamedTuple):
    """What each model knows."""

    parts: tuple[Any, ...]

    def select(self, rows: Int[Tensor, "N W"]) -> "EnsembleState":
        """In all of them."""
        return EnsembleState(tuple(part.select(rows) for part in self.parts))


class Ensemble:
    """Searchable: its probabilities are the mean of those of its models.

    Args:
        models: with one vocabulary.
    """

    def __init__(self, models: Sequence[Searchable[Any]]) -> None:
        self.models = models

    def start(self, src: Int[Tensor, "N S"]) -> EnsembleState:
        """Read the sources with each."""
        return EnsembleState(tuple(model.start(src) for model in self.models))

    def step(self, tokens: Int[Tensor, " R"], state: EnsembleState) -> tuple[Float[Tensor, "R V"], EnsembleState]:
        """Say a token in each row, to each model; log Σ p / M."""
        steps = [model.step(tokens, part) for model, part in zip(self.models, state.parts, strict=True)]
        log_probs = torch.stack([logits.float().log_softmax(-1) for logits, _ in steps])
        # search normalises what it gets, which takes care of 1 / M
        return log_probs.logsumexp(0), EnsembleState(tuple(part for _, part in steps))
