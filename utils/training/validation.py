"""What a validation finds: the loss of text that is not learned from, scores, and translations to look at."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# names in logs and settings, and what people call them
SCORES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "accuracy": "accuracy",
    "next_sentence": "next sentence",
    "word_ppl": "PPL by word",
}


def perplexity(loss: float) -> float:
    """exp(loss), loss in nats per token; finite for the most hopeless network."""
    return math.exp(min(loss, 700.0))


class Sample(NamedTuple):
    """A sentence, its reference, and what the network makes of it."""

    source: str
    reference: str
    translation: str

    def lines(self) -> list[str]:
        """Three lines, one below the other."""
        return [f"source     {self.source}", f"reference  {self.reference}", f"ours       {self.translation}"]


class Validation(NamedTuple):
    """How good the network is on text that it does not learn from."""

    loss: float  # nats per predicted token, no label smoothing
    scores: Mapping[str, float] = {}  # by their names in SCORES; 0 to 100 but for perplexities
    signatures: Mapping[str, str] = {}  # how a score was counted
    samples: Sequence[Sample] = ()

    @property
    def perplexity(self) -> float:
        """Per token of this vocabulary, not per word."""
        return perplexity(self.loss)

    def score(self, name: str) -> float:
        """What says how good this is: the higher the better."""
        return -self.loss if name == "loss" else self.scores[name]

    def __str__(self) -> str:
        """Perplexity and scores in a line."""
        scores = (f"{SCORES.get(name, name)} {value:.2f}" for name, value in self.scores.items())
        return "  ".join([f"PPL {self.perplexity:.2f}", *scores])
