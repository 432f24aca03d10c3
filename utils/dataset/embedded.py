"""The embedded corpus: 21,000 Japanese-English sentence pairs from the words and constructions of corpus/embedded.yaml.

There is nothing to download. Each sentence has exactly one translation. The test set is compositional: all of its words
occur in train, but each sentence joins two words that never meet there. A hash assigns every unordered pair of words to
one split: 4 % to dev, 4 % to test, the rest to train. A sentence whose pairs all belong to train is a train sentence;
one with a test pair and no dev pair is a test sentence, and vice versa; one with both is dropped. So the two words of a
test pair never meet in a train or dev sentence of any construction, while each of them meets many others there.

The same files come out on every machine: of `random`, only `random()` is used, which Python promises never to change.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b, sha256
from itertools import combinations, islice, zip_longest
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import yaml

from const.path import ROOT
from utils.file import write_lines

GRAMMAR = ROOT / "corpus" / "embedded.yaml"
SIZES = {"train": 20_000, "dev": 500, "test": 500}
HELD_OUT_PERCENT = 4  # of the pairs of words, for dev and for test each
DRAWS = 2_500  # sentences drawn of each construction: enough for its share of every split
SLOT = re.compile(r"\{(\w+)((?:\.\w+)*)\}")  # {place}, {place2}, {sight.kind.of}

Pair = tuple[str, str]
PairT = TypeVar("PairT")
Word: TypeAlias = Mapping[str, "str | Word"]  # the forms of a word; a form that is a word is that of another table


class Construction(NamedTuple):
    """A sentence pattern in both languages, and the words that may fill its slots."""

    ja: str
    en: str
    slots: dict[str, tuple[Word, ...]]

    @property
    def capacity(self) -> int:
        """Number of tuples of words, before any is refused."""
        return prod(len(words) for words in self.slots.values())

    def fillers(self, index: int) -> dict[str, Word]:
        """Return the tuple of words of this number, by slot."""
        chosen = {}
        for slot, words in self.slots.items():
            index, place = divmod(index, len(words))
            chosen[slot] = words[place]
        return chosen

    def render(self, fillers: Mapping[str, Word]) -> Pair:
        """Return the Japanese and the English sentence."""
        ja, en = _fill(self.ja, fillers, "ja"), _fill(self.en, fillers, "en")
        en = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", en)
        return ja, en[0].upper() + en[1:]


def _fill(pattern: str, fillers: Mapping[str, Word], language: str) -> str:
    return SLOT.sub(lambda slot: str(_form(fillers[slot[1]], slot[2], language)), pattern)


def _form(word: Word, path: str, language: str) -> str | None:
    """Return a form of a word, or of the word that it leads to, `.kind.of`; None when the word lacks it."""
    form: str | Word | None = word
    for name in path.split(".")[1:]:
        form = form.get(name) if isinstance(form, Mapping) else None
    form = form.get(language) if isinstance(form, Mapping) else form
    return form if isinstance(form, str) else None


def read_words(grammar: dict[str, Any]) -> dict[str, tuple[Word, ...]]:
    """Return the words of each table and of each group of tables."""
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for name, rows in grammar["words"].items():
        if isinstance(rows, dict):  # Japanese: English
            rows = [("ja", "en"), *rows.items()]
        columns, *rows = rows
        forms = [dict(zip(columns, (form if form is None else str(form) for form in row), strict=True)) for row in rows]
        tables[name] = {str(word["ja"]): word for word in forms}
    for word in (word for table in tables.values() for word in table.values()):
        word |= {column: tables[column][form] for column, form in word.items() if column in tables and form is not None}
    words: dict[str, tuple[Word, ...]] = {name: tuple(table.values()) for name, table in tables.items()}
    for name, (first, last, step) in grammar["numbers"].items():
        words[name] = tuple({"ja": str(n), "en": str(n)} for n in range(first, last + 1, step))
    for group, names in grammar["groups"].items():
        words[group] = tuple(word for name in names for word in words[name])
    return words


def read_constructions() -> list[Construction]:
    """Return the constructions of the grammar; one that names a phrase becomes one for each line of the phrase."""
    grammar = yaml.safe_load(GRAMMAR.read_text(encoding="utf-8"))
    words, phrases = read_words(grammar), grammar["phrases"]

    def expand(ja: str, en: str) -> Iterator[Pair]:
        phrase = next((name for name, _ in SLOT.findall(ja) if name in phrases), None)
        if phrase is None:
            yield ja, en
        else:
            for its_ja, its_en in phrases[phrase]:
                yield from expand(ja.replace(f"{{{phrase}}}", its_ja), en.replace(f"{{{phrase}}}", its_en))

    return [
        Construction(ja, en, {slot: _fitting(words, slot, ja, en) for slot, _ in SLOT.findall(ja)})
        for _, *patterns in grammar["constructions"]
        for ja, en in expand(*patterns)
    ]


def _fitting(words: dict[str, tuple[Word, ...]], slot: str, ja: str, en: str) -> tuple[Word, ...]:
    """Return the words of a slot's table that have all forms that the two patterns ask for."""
    patterns = (("ja", ja), ("en", en))
    asked = [(path, language) for language, text in patterns for name, path in SLOT.findall(text) if name == slot]
    return tuple(word for word in words[slot.rstrip("0123456789")] if None not in [_form(word, *a) for a in asked])


@cache
def pair_split(first: str, second: str) -> str:
    """Return the split that a pair of words, given in sorted order, belongs to."""
    percent = int.from_bytes(blake2b(f"0\t{first}\t{second}".encode(), digest_size=8).digest()) % 100
    return "dev" if percent < HELD_OUT_PERCENT else "test" if percent < 2 * HELD_OUT_PERCENT else "train"


def sentence_split(fillers: Mapping[str, Word]) -> str | None:
    """Return the split that a sentence belongs to; None when it has pairs of both dev and test, or one word twice."""
    names = sorted(str(word["ja"]) for word in fillers.values())
    held_out = {pair_split(*pair) for pair in combinations(names, 2)} - {"train"}
    if len(set(names)) < len(names) or len(held_out) == 2:
        return None
    return held_out.pop() if held_out else "train"


def draw(construction: Construction, rng: random.Random) -> dict[str, list[dict[str, Word]]]:
    """Draw the words of different sentences of one construction in random order, separately for each split."""
    drawn: dict[str, list[dict[str, Word]]] = {split: [] for split in SIZES}
    capacity = construction.capacity  # computed once, not for each draw
    for index in dict.fromkeys(int(rng.random() * capacity) for _ in range(DRAWS)):
        fillers = construction.fillers(index)
        if split := sentence_split(fillers):
            drawn[split].append(fillers)
    return drawn


def generate() -> dict[str, list[Pair]]:
    """Generate the corpus as (Japanese, English) pairs, the constructions in equal shares as far as they suffice."""
    rng = random.Random(0)
    drawn = [(construction, draw(construction, rng)) for construction in read_constructions()]
    corpus: dict[str, list[Pair]] = {}
    for split, size in SIZES.items():
        rendered = [map(construction.render, fillers[split]) for construction, fillers in drawn]
        pairs = [*islice(_in_turns(rendered), size)]
        if len(pairs) < size:
            raise ValueError(f"the grammar yields {len(pairs)} {split} pairs, not {size}: raise DRAWS={DRAWS}")
        corpus[split] = sorted(pairs, key=lambda _: rng.random())
    return corpus


class MinimalPair(NamedTuple):
    """A Japanese sentence, its English translation, and English that says one thing otherwise."""

    source: str
    right: str
    wrong: str


def minimal_pairs(n: int = 200) -> dict[str, list[MinimalPair]]:
    """Return at most n minimal pairs of each phenomenon, of sentences that are not in the training text.

    Its changes have equal shares as far as they suffice, and so have the constructions that fit a change. No pair of
    words is held out from training, but for those of the right translation in "new combinations".
    """
    rng, seen = random.Random(1), {ja for ja, _ in generate()["train"]}
    drawn = [(construction, draw(construction, rng)) for construction in read_constructions()]

    def pairs(way: str, changes: list[list[str]]) -> Iterator[MinimalPair]:
        split = "test" if way == "familiar" else "train"
        streams = [
            _in_turns([_pairs(construction, fillers[split], way, change, rng) for construction, fillers in drawn])
            for change in changes
        ]
        return (pair for pair in _in_turns(streams) if pair.source not in seen)

    phenomena = yaml.safe_load(GRAMMAR.read_text(encoding="utf-8"))["phenomena"]
    return {name: [*islice(pairs(way, changes), n)] for name, way, changes in phenomena}


def _in_turns(streams: Sequence[Iterator[PairT]]) -> Iterator[PairT]:
    return (pair for turn in zip_longest(*streams) for pair in turn if pair)


def _pairs(
    construction: Construction, sentences: list[dict[str, Word]], way: str, change: list[str], rng: random.Random
) -> Iterator[MinimalPair]:
    """Yield the pairs of those sentences of a construction that can be changed in this way, and in nothing else."""
    slots, first, last = construction.slots, change[0], change[-1]
    if first not in construction.en if way == "instead" else not {*change} <= slots.keys():
        return
    wrong = construction._replace(en=construction.en.replace(first, last)) if way == "instead" else construction
    for fillers in sentences:
        others = fillers
        if way == "exchanged":
            others = {**fillers, first: fillers[last], last: fillers[first]}
        elif way != "instead":
            others = {**fillers, first: slots[first][int(rng.random() * len(slots[first]))]}
        pair = MinimalPair(*construction.render(fillers), wrong.render(others)[1])
        forms = [(fillers[slot], others[slot], path) for slot, path in SLOT.findall(wrong.en) if path]
        if (
            pair.right != pair.wrong
            and sentence_split(others) == "train"
            and all(word in slots[slot] for slot, word in others.items())
            and all(_form(word, path, "en") == _form(other, path, "en") is not None for word, other, path in forms)
        ):
            yield pair


def write_embedded(folder: Path) -> None:
    """Write kyoto-{train,dev,test}.{ja,en} into the folder, unless all six are there and from exactly this grammar.

    The grammar's hash is written last, so that the next call repairs an interrupted one.
    """
    files = {(split, language): folder / f"kyoto-{split}.{language}" for split in SIZES for language in ("ja", "en")}
    written_by = folder / "kyoto.grammar"
    grammar = sha256(GRAMMAR.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    if all(path.is_file() for path in (*files.values(), written_by)) and written_by.read_text().strip() == grammar:
        return
    for split, pairs in generate().items():
        for language, lines in zip(("ja", "en"), zip(*pairs, strict=True), strict=True):
            write_lines(files[split, language], lines)
    write_lines(written_by, [grammar])
