"""Coverage penalty cp(X, Y) = Σᵢ log min(Σⱼ pᵢⱼ, 1): how much of the source was attended to, Wu et al. 2016, eq. 14."""

from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from layers.decoder_block import DecoderBlock
from layers.recorded_weights import recorded_weights
from models.transformer import Transformer, TransformerState
from utils.search.hypothesis import State

_LEAST = torch.finfo(torch.float32).tiny  # a weight may vanish, but its logarithm must stay finite


class CoveredState(NamedTuple):
    """The state of decoding, and how much each row has attended to each source position so far (Σⱼ pᵢⱼ)."""

    known: TransformerState
    attended: Float[Tensor, "R S"]

    def select(self, rows: Int[Tensor, "N W"]) -> "CoveredState":
        """Keep these rows."""
        return CoveredState(self.known.select(rows), self.attended.index_select(0, rows.flatten()))

    def coverage(self) -> Float[Tensor, " R"]:
        """Return cp of each row: 0 where it has attended to everything, negative where it has left something out."""
        real = self.known.source_mask[:, 0]
        by_sentence = self.attended.clamp(_LEAST, 1).log().unflatten(0, (len(real), -1))
        return by_sentence.masked_fill(~real, 0).sum(-1).flatten()


class Covered:
    """A searchable Transformer that keeps track of what it attends to while it translates.

    pᵢⱼ is the weight of source token i (</s> included) when target token j is predicted: the mean over the heads of
    the last decoder block's cross-attention.

    Args:
        model: a model in eval mode, packed or not.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self._attention = cast(DecoderBlock, model.decoder[-1]).cross_attention

    def start(self, src: Int[Tensor, "N S"]) -> CoveredState:
        """Encode the sources; nothing has been attended to yet."""
        return CoveredState(self.model.start(src), torch.zeros(src.shape, device=src.device))

    def step(self, tokens: Int[Tensor, " R"], state: CoveredState) -> tuple[Float[Tensor, "R V"], CoveredState]:
        """Append a token to each row, and add up what is attended to in predicting the next one."""
        with recorded_weights([self._attention]) as weights:
            logits, known = self.model.step(tokens, state.known)
        looked = weights[0].float().mean(1).flatten(0, 1)
        return logits, CoveredState(known, state.attended + looked)


def coverage(state: State) -> Float[Tensor, " R"]:
    """Return cp of each row.

    Raises:
        ValueError: the model that is searched does not record its attention.
    """
    if not isinstance(state, CoveredState):
        raise ValueError("coverage_penalty needs a model that records its attention: wrap it in Covered, or give 0")
    return state.coverage()
