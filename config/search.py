"""How translations are searched for, or drawn; what is found; and the limits of a server of them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from config.bound import Config, bounded

SPARE_TOKENS = 10  # a short source may need a translation much longer than itself


class Bounds(NamedTuple):
    """The length limits of a translation, in tokens."""

    min_length: int  # without </s>
    max_length: int  # with </s>


class Hypothesis(NamedTuple):
    """A translation: ids without <s> and </s>, and its score, higher is better."""

    ids: list[int]
    score: float


@dataclass(frozen=True)
class SearchConfig(Config):
    """The settings of a search.

    Args:
        beam_size: hypotheses kept per sentence; 1 is greedy search.
        length_penalty: α; log-probabilities are divided by the length to the power of α: larger values prefer longer
            translations.
        normalization: gnmt divides by ((5 + length) / 6)^α (Wu et al. 2016, eq. 14), length by length^α.
        min_length: fewest tokens of a translation, as far as `max_length`, `max_ratio` and the model allow.
        min_ratio: fewest tokens for each token of the source.
        max_length: most tokens of a translation.
        max_ratio: most tokens for each token of the source, plus ten.
        no_repeat_ngram: no n-gram of this many tokens occurs twice in a translation; 0 allows all.
        by_sentence: translate the sentences of a text one by one; false: a text as a whole where the model can hold it,
            for models that learned from such texts.
        max_perplexity: a translation of a higher perplexity by the model's own probabilities gets a notice that its
            source is far from what the model has learned from; 0: none does. A training ends by setting it to what 99
            of 100 dev translations stay below.
    """

    # more hypotheses help nobody, and a typing error could take up all memory
    beam_size: int = bounded(4, ge=1, le=1000, hint="1 is greedy")
    length_penalty: float = bounded(0.6, ge=-10, le=10)
    normalization: Literal["gnmt", "length"] = "gnmt"
    min_length: int = bounded(0, ge=0)
    min_ratio: float = bounded(0.0, ge=0)
    max_length: int = bounded(1024, ge=0)
    max_ratio: float = bounded(2.0, ge=0)
    no_repeat_ngram: int = bounded(0, ge=0, hint="0: repeat freely")
    by_sentence: bool = True
    max_perplexity: float = bounded(0.0, ge=0, hint="0: no notice")

    def check(self) -> None:
        """Refuse a minimum above its maximum."""
        for low, high in (("min_length", "max_length"), ("min_ratio", "max_ratio")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low}={getattr(self, low)}: give 0 to {high}={getattr(self, high)}")

    def bounds(self, src_length: int, window: int) -> Bounds:
        """Return the limits for a source of `src_length` tokens (with </s>) and a model that holds `window` tokens."""
        max_length = min(self.max_ratio * src_length + SPARE_TOKENS, self.max_length + 1, window)
        min_length = max(self.min_ratio * src_length, self.min_length)
        return Bounds(int(min(min_length, max_length - 1)), int(max_length))

    def log_prob(self, score: float, length: int) -> float:
        """Return the log-probability of a translation of `length` tokens (</s> included) that has this score."""
        return score * self.penalty(length)

    def penalty(self, length: int) -> float:
        """Return what the log-probability of a translation of `length` tokens (</s> included) is divided by."""
        base = (5 + length) / 6 if self.normalization == "gnmt" else length
        return base**self.length_penalty


@dataclass(frozen=True)
class SamplingConfig(Config):
    """How translations are drawn.

    Args:
        n_samples: translations per source.
        temperature: log-probabilities are divided by it: below 1 favours likely tokens.
        top_k: draw among this many likeliest tokens (Fan et al. 2018); 0: among all.
        top_p: nucleus sampling: draw among the likeliest tokens that together have this probability (Holtzman et al.
            2020), after temperature and top_k.
        seed: the same seed draws the same translations, whatever else a sentence is batched with.
    """

    n_samples: int = bounded(1, ge=1, le=10_000)
    # 1e-5 draws the likeliest token; much less, and the divided log-probabilities overflow
    temperature: float = bounded(1.0, ge=1e-5, lt=float("inf"), hint="or use greedy search, beam_size=1")
    top_k: int = bounded(0, ge=0, hint="0: all tokens")
    top_p: float = bounded(1.0, gt=0, le=1, hint="1: all tokens")
    seed: int = bounded(1, ge=0, le=2**32 - 1)


_BYTES_PER_CHARACTER = 12  # JSON may write one as two escapes, \ud83d\ude00
_MARKUP = 4  # characters of HTML for each of its text
_SPARE_BYTES = 16384  # for everything in a request besides text


@dataclass(frozen=True)
class Limits(Config):
    """Limits of a server.

    Args:
        max_chars: most characters in a request
        max_texts: most texts in a request; each line counts as one
        batch_texts: most texts translated together; 1: one by one
        collect_ms: milliseconds that a text may wait for others to share its batch
        queue_texts: most texts waiting for a run
        timeout_s: seconds until a request times out
        batch_chars: most characters translated together; a longer line is translated alone
        req_limit: most requests a minute of one address; 0: as many as it likes
    """

    max_chars: int = bounded(5000, ge=1)
    max_texts: int = bounded(100, ge=1)
    batch_texts: int = bounded(64, ge=1)
    collect_ms: float = bounded(5.0, ge=0)
    queue_texts: int = bounded(512, ge=1)
    timeout_s: float = bounded(30.0, gt=0)
    batch_chars: int = bounded(2000, ge=1)
    req_limit: int = bounded(0, ge=0, hint="0: as many as they like")

    def check(self) -> None:
        """Refuse a queue in which the largest request has no room."""
        if self.queue_texts < self.max_texts:
            raise ValueError(
                f"queue_texts={self.queue_texts} has no room for the max_texts={self.max_texts} of one request: "
                "raise the first, or lower the second"
            )

    @property
    def max_html(self) -> int:
        """Most characters in a request of HTML, tags included."""
        return _MARKUP * self.max_chars

    @property
    def max_bytes(self) -> int:
        """Most bytes in the body of a request."""
        return _SPARE_BYTES + _BYTES_PER_CHARACTER * self.max_chars
