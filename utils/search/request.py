"""What a search is asked for."""

from collections.abc import Sequence
from typing import NamedTuple

from config.search import Bounds
from utils.search.glossary import Wanted

Ids = Sequence[Sequence[int]]  # of several texts, without <s> and </s>


class Request(NamedTuple):
    """A source to be searched a translation for, and what the translation must be like."""

    source: Sequence[int]  # ids without </s>
    bounds: Bounds  # a prefix that is longer extends them
    prefix: Sequence[int] = ()  # tokens that it begins with
    number: int = 0  # of the source in the whole input, by which samples differ
    wanted: Wanted | None = None  # terms that it has

    @property
    def most(self) -> int:
        """Most tokens of the translation, </s> included."""
        return max(self.bounds.max_length, len(self.prefix) + 1)
