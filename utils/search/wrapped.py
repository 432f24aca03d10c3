"""Several models searched as one: ensembles."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from utils.search.constraint import Searchable


class EnsembleState(NamedTuple):
    """The decoding state of each model."""

    parts: tuple[Any, ...]

    def select(self, rows: Int[Tensor, "N W"]) -> "EnsembleState":
        """Keep these rows in all of them."""
        return EnsembleState(tuple(part.select(rows) for part in self.parts))


class Ensemble:
    """A searchable model: the mean of the probabilities of models that share one vocabulary."""

    def __init__(self, models: Sequence[Searchable[Any]]) -> None:
        self.models = models

    def start(self, src: Int[Tensor, "N S"]) -> EnsembleState:
        """Encode the sources with each model."""
        return EnsembleState(tuple(model.start(src) for model in self.models))

    def step(self, tokens: Int[Tensor, " R"], state: EnsembleState) -> tuple[Float[Tensor, "R V"], EnsembleState]:
        """Append a token to each row, for every model; return log Σ p: the log of the mean, up to a constant."""
        steps = [model.step(tokens, part) for model, part in zip(self.models, state.parts, strict=True)]
        log_probs = torch.stack([logits.float().log_softmax(-1) for logits, _ in steps])
        # search normalises what it is given, which takes care of 1 / M
        return log_probs.logsumexp(0), EnsembleState(tuple(part for _, part in steps))
