"""Sentence patterns in both languages, and the combinations of items in their sentences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from math import prod

from utils.dataset.embedded.entry import Entry
from utils.dataset.embedded.kyoto import MEMORISED


def always(*_: Entry) -> bool:
    """Allow any fillers together."""
    return True


@dataclass(frozen=True)
class Construction:
    """A sentence pattern in both languages; `allows` rejects fillers whose sentence would make no sense or be false."""

    name: str
    ja: str
    en: str
    slots: dict[str, Sequence[Entry]]
    allows: Callable[..., bool] = field(default=always)

    @property
    def capacity(self) -> int:
        """Number of tuples of fillers, before `allows` rejects any."""
        return prod(len(entries) for entries in self.slots.values())

    def fillers(self, index: int) -> tuple[Entry, ...]:
        """Return the tuple of fillers with this number, 0 <= index < capacity."""
        chosen = []
        for entries in self.slots.values():
            index, place = divmod(index, len(entries))
            chosen.append(entries[place])
        return tuple(chosen)

    def sensible(self, fillers: tuple[Entry, ...]) -> bool:
        """Return whether no item occurs twice in the sentence and `allows` accepts it."""
        items = [item for entry in fillers for item in entry.items]
        return len(set(items)) == len(items) and self.allows(*fillers)

    def render(self, fillers: tuple[Entry, ...]) -> tuple[str, str]:
        """Return the Japanese and the English sentence."""
        names = dict(zip(self.slots, fillers, strict=True))
        en = self.en.format(**names)
        return self.ja.format(**names), en[0].upper() + en[1:]


def item_pairs(fillers: tuple[Entry, ...]) -> Iterator[tuple[str, str]]:
    """Yield all pairs of items from two different slots, except those joined by a fact, which are never new."""
    for one, other in combinations(fillers, 2):
        for pair in product(one.items, other.items):
            if frozenset(pair) not in MEMORISED:
                yield pair
