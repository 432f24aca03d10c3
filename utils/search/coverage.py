"""cp(X, Y) = Σᵢ log min(Σⱼ pᵢⱼ, 1): how much of the source was attended to, Wu et al. 2016, eq. 14."""

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
    """What decoding knows, and how much each row has looked at each source position (Σⱼ pᵢⱼ)."""

    known: TransformerState
    attended: Float[Tensor, "R S"]

    def select(self, rows: Int[Tensor, "N W"]) -> "CoveredState":
        """Go on with these rows."""
        return CoveredState(self.known.select(rows), self.attended.index_select(0, rows.flatten()))

    def coverage(self) -> Float[Tensor, " R"]:
        """cp of each row: 0 where it has looked at everything, less where it has left something out."""
        real = self.known.source_mask[:, 0]
        by_sentence = self.attended.clamp(_LEAST, 1).log().unflatten(0, (len(real), -1))
        return by_sentence.masked_fill(~real, 0).sum(-1).flatten()


class Covered:
    """Searchable: a Transformer, and where it looks while it translates.

    pᵢⱼ is the weight of source token i (</s> is one of them) in the choice of target token j, in the cross-attention
    of the last decoder block, mean over its heads.

    Args:
        model: in eval mode, perhaps packed.
    """

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self._attention = cast(DecoderBlock, model.decoder[-1]).cross_attention

    def start(self, src: Int[Tensor, "N S"]) -> CoveredState:
        """Read the sources; nothing is attended to yet."""
        return CoveredState(self.model.start(src), torch.zeros(src.shape, device=src.device))

    def step(self, tokens: Int[Tensor, " R"], state: CoveredState) -> tuple[Float[Tensor, "R V"], CoveredState]:
        """Say a token in each row, and see where that makes it look for the next."""
        with recorded_weights([self._attention]) as weights:
            logits, known = self.model.step(tokens, state.known)
        looked = weights[0].float().mean(1).flatten(0, 1)
        return logits, CoveredState(known, state.attended + looked)


def coverage(state: State) -> Float[Tensor, " R"]:
    """cp of each row.

    Raises:
        ValueError: what is searched does not say where it looks.
    """
    if not isinstance(state, CoveredState):
        raise ValueError("coverage_penalty needs a model that says where it looks: wrap it in Covered, or give 0")
    return state.coverage()
