"""What an entry of the lexicon is: every form, Japanese and English, that a construction may ask of it.

Nothing in an English form may be a guess: the article, the number, the gender and the preposition are fixed here, once
for each entry, so that the Japanese sentence determines the English one (and the other way round).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A word or phrase in both languages; `ja` is visible in every sentence that uses the entry."""

    ja: str
    en: str

    @property
    def items(self) -> tuple[str, ...]:
        """What the compositional split counts as one item: `generate.py`."""
        return (self.ja,)


@dataclass(frozen=True)
class Person(Entry):
    """A subject; its pronoun is "" when the Japanese does not tell it."""

    pronoun: str = ""
    be: str = "is"
    have: str = "has"
    s: str = "s"


@dataclass(frozen=True)
class Place(Entry):
    """Where one goes; `at` is the preposition of being there, `a` the indefinite form, if it has one."""

    at: str = "at"
    a: str = ""

    @property
    def where(self) -> str:
        """In Gion, at Kyoto Station."""
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
        """None: there are so few verbs that each meets everything."""
        return ()


@dataclass(frozen=True)
class Deed(Entry):
    """An object with its verb: `ja` and `en` are the object as a noun phrase."""

    verb: Verb

    @property
    def stem(self) -> str:
        """そばを食べ."""
        return f"{self.ja}を{self.verb.ja}"

    @property
    def te(self) -> str:
        """そばを食べて."""
        return f"{self.ja}を{self.verb.te}"

    @property
    def ta(self) -> str:
        """そばを食べた."""
        return f"{self.ja}を{self.verb.ta}"


@dataclass(frozen=True)
class Weather(Entry):
    """A state of the day: `ja` is what its forms share, `en` follows "if"."""

    was: str  # plain past, before ので
    was_polite: str
    tara: str
    was_en: str


@dataclass(frozen=True)
class Adjective(Entry):
    """An adjective that ends in い."""

    more: str
