"""Searchers: values that find translations of token ids, with a network by beam search or sampling, or otherwise."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from config.search import Bounds, Hypothesis, SamplingConfig, SearchConfig
from utils.search.glossary import Wanted

if TYPE_CHECKING:  # with torch, which takes seconds to import, and which CTranslate2 searches without
    import torch

    from utils.search.beam import BeamStep
    from utils.search.constraint import Searchable

Ids = Sequence[Sequence[int]]  # of several texts, without <s> and </s>
_TOKENS_PER_BATCH = 16384
_ON_A_GPU = 8  # times as many: the launches of a step take as long for a small batch


class Request(NamedTuple):
    """A source to be searched a translation for, and what the translation must be like."""

    source: Sequence[int]  # ids without </s>
    bounds: Bounds  # a prefix that is longer extends them
    prefix: Sequence[int] = ()  # tokens that it begins with
    number: int = 0  # of the source in the whole input, by which samples differ
    wanted: Wanted | None = None  # terms that it has

    @property
    def max_length(self) -> int:
        """Most tokens of the translation, </s> included."""
        return max(self.bounds.max_length, len(self.prefix) + 1)


class Searcher(Protocol):
    """Finds hypotheses for each request of a batch, best first."""

    @property
    def tokens_per_batch(self) -> int:
        """Source positions of a batch, padding included, times rows per sentence."""

    def __call__(
        self, requests: Sequence[Request], config: SearchConfig, n_best: int | None, /
    ) -> list[list[Hypothesis]]:
        """Search; `n_best` as for `beam_search`."""


@dataclass(frozen=True)
class NetworkSearch:
    """A search with a network."""

    model: "Searchable[Any]"  # ready for inference
    device: "torch.device"  # of the model

    @property
    def tokens_per_batch(self) -> int:
        """More on a GPU."""
        return _TOKENS_PER_BATCH * (_ON_A_GPU if self.device.type == "cuda" else 1)


@dataclass(frozen=True)
class BeamSearch(NetworkSearch):
    """Searches for the likeliest translations."""

    on_step: "Callable[[BeamStep], object] | None" = None  # watches each step

    def __call__(self, requests: Sequence[Request], config: SearchConfig, n_best: int | None) -> list[list[Hypothesis]]:
        """Search; a beam of one finds what greedy search does, which is faster, but knows no terms."""
        from utils.search.beam import beam_search
        from utils.search.sampling import greedy_search

        if config.beam_size == 1 and self.on_step is None and requests[0].wanted is None:
            return [[best] for best in greedy_search(self.model, requests, config, self.device)]
        return beam_search(self.model, requests, config, self.device, n_best, self.on_step)


@dataclass(frozen=True)
class Sampling(NetworkSearch):
    """Draws translations by their probability."""

    sampling: SamplingConfig

    def __call__(
        self, requests: Sequence[Request], config: SearchConfig, _n_best: int | None
    ) -> list[list[Hypothesis]]:
        """Draw as many as the settings say."""
        from utils.search.sampling import sample

        return sample(self.model, requests, config, self.sampling, self.device)


_ENOUGH, _MUCH = 128, 0.7  # sequences in a batch, and of the longest: both measured in translating on CPUs


def within_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield the places of sequences, batch by batch, longest first, so that running out of memory shows at once.

    A batch has at most `budget` positions, padding included; a longer sequence is a batch by itself. Where it has
    enough to keep a processor busy, it ends at the first that is much shorter, which would be mostly padding.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    while order:
        longest = lengths[order[0]]
        n = max(1, budget // longest)
        shorter = (place for place in range(_ENOUGH, min(n, len(order))) if lengths[order[place]] < _MUCH * longest)
        n = next(shorter, n)
        rows, order = order[:n], order[n:]
        yield rows
