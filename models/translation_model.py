"""What all translators have in common, whatever reads the source: how they are trained, and how they take a step."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from config.model import Tie
from models.weight import tie


class TranslationModel(nn.Module):
    """Source ids in, logits of the next target token out.

    A network below it has `start`, which reads sources, and `decode`, which reads on in their targets; what lies
    between is an immutable state, whose `select` keeps rows of it.
    """

    config: Any
    src_embedding: nn.Embedding
    tgt_embedding: nn.Embedding
    output: nn.Linear

    def forward(self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of the token after each target position; tgt begins with <s>, src ends with </s>.

        A training calls `hidden` instead, and its loss (utils/training/loss.py) applies `output`, slice by slice.
        """
        return self.output(self.hidden(src, tgt))

    def hidden(self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the decoder's output, from which `output` makes logits."""
        return self.decode(tgt, self.start(src))[0]

    def start(self, src: Int[Tensor, "N S"]) -> Any:
        """Read N sources; return the state before the first step, with one row each."""
        raise NotImplementedError

    def decode(self, tgt: Int[Tensor, "R T"], state: Any) -> tuple[Float[Tensor, "R T D"], Any]:
        """Decode T more positions: all of them in training, one in a step of a search."""
        raise NotImplementedError

    def step(self, tokens: Int[Tensor, " R"], state: Any) -> tuple[Float[Tensor, "R V"], Any]:
        """Append one token to each row; return the logits of the next one, and the new state."""
        x, state = self.decode(tokens[:, None], state)
        return self.output(x[:, 0]), state

    def tie(self, what: Tie) -> None:
        """Have nothing, the target embedding and the output, or all three share one matrix."""
        if what != "none":
            tie(self.tgt_embedding, self.output)
        if what == "all":
            tie(self.tgt_embedding, self.src_embedding)
