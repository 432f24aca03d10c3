"""Entries of the lexicon, with every Japanese and English form that a construction may need.

Nothing in an English form may be left to guess: article, number, gender and preposition are fixed here, once for each
entry, so that the Japanese sentence determines the English one, and vice versa.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A word or phrase in both languages; `ja` is visible in every sentence that uses the entry."""

    ja: str
    en: str

    @property
    def items(self) -> tuple[str, ...]:
        """The items that the compositional split counts: see `generate.py`."""
        return (self.ja,)


@dataclass(frozen=True)
class Person(Entry):
    """A subject; its pronoun is "" when the Japanese does not determine it."""

    pronoun: str = ""
    be: str = "is"
    have: str = "has"
    s: str = "s"


@dataclass(frozen=True)
class Place(Entry):
    """A place to go; `at` is the preposition for being there, `a` the indefinite form, if there is one."""

    at: str = "at"
    a: str = ""

    @property
    def where(self) -> str:
        """The place with its preposition: in Gion, at Kyoto Station."""
        return f"{self.at} {self.en}"


@dataclass(frozen=True)
class Thing(Entry):
    """A thing that is bought and counted: `en` is the bare singular."""

    many: str
    counter: str
    article: str = "a"


@dataclass(frozen=True)
class Verb(Entry):
    """A transitive verb: `ja` is the stem before ます, `en` the base form."""

    te: str
    ta: str
    past: str
    participle: str
    gerund: str

    @property
    def items(self) -> tuple[str, ...]:
        """No items: there are so few verbs that each meets everything."""
        return ()


@dataclass(frozen=True)
class Deed(Entry):
    """An object with its verb: `ja` and `en` are the object as a noun phrase."""

    verb: Verb

    @property
    def stem(self) -> str:
        """The stem before ます: そばを食べ."""
        return f"{self.ja}を{self.verb.ja}"

    @property
    def te(self) -> str:
        """The て form: そばを食べて."""
        return f"{self.ja}を{self.verb.te}"

    @property
    def ta(self) -> str:
        """The plain past: そばを食べた."""
        return f"{self.ja}を{self.verb.ta}"


@dataclass(frozen=True)
class Weather(Entry):
    """The weather of a day: `ja` is what its forms share, `en` follows "if"."""

    was: str  # plain past, before ので
    was_polite: str
    tara: str
    was_en: str


@dataclass(frozen=True)
class Adjective(Entry):
    """An adjective that ends in い."""

    more: str
