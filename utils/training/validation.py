"""Result of a validation: loss on held-out text, scores, and sample translations."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# names in logs and settings, and names to show
SCORES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy": "accuracy",
    "next_sentence": "next sentence",
    "word_ppl": "PPL by word",
}


def perplexity(loss: float) -> float:
    """exp(loss), with the loss in nats per token; finite however bad the network is."""
    return math.exp(min(loss, 700.0))


class Sample(NamedTuple):
    """A sentence, its reference, and the network's translation."""

    source: str
    reference: str
    translation: str

    def lines(self) -> list[str]:
        """Return the three as labelled lines."""
        return [f"source     {self.source}", f"reference  {self.reference}", f"ours       {self.translation}"]


class Validation(NamedTuple):
    """How good the network is on text that it is not trained on."""

    loss: float  # nats per predicted token, no label smoothing
    scores: Mapping[str, float] = {}  # by their names in SCORES; 0 to 100 except for perplexities
    signatures: Mapping[str, str] = {}  # how a score was computed
    samples: Sequence[Sample] = ()

    @property
    def perplexity(self) -> float:
        """Per token of this vocabulary, not per word."""
        return perplexity(self.loss)

    def score(self, name: str) -> float:
        """Return a score by its name, or the negative loss: the higher the better."""
        return -self.loss if name == "loss" else self.scores[name]

    def __str__(self) -> str:
        """Return perplexity and scores on one line."""
        scores = (f"{SCORES.get(name, name)} {value:.2f}" for name, value in self.scores.items())
        return "  ".join([f"PPL {self.perplexity:.2f}", *scores])


Judge = Callable[[float], Validation]  # gives the scores of the network as it is now, told its loss
