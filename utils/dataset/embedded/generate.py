"""Generation of the corpus from the grammar: seeded, without duplicates, split so that the test set is compositional.

An *item* is what a slot contributes: 父, 昨日, 祇園, 2; a fact contributes its topic and its detail, a verb nothing. A
hash with the seed assigns every unordered pair of items to one split: 4 % to dev, 4 % to test, the rest to train. Only
the pairs joined by a fact (金閣寺 and 足利義満) are memorised and do not count. A sentence whose pairs across slots all
belong to train is a train sentence. One with a test pair and no dev pair is a test sentence, and vice versa for dev;
one with both is dropped. So the two items of a test pair never meet in a train or dev sentence of any construction,
while each of them meets many other items there.
"""

import random
from collections.abc import Iterator
from hashlib import blake2b, sha256
from itertools import islice
from pathlib import Path

from utils.dataset.embedded.construction import Construction, item_pairs
from utils.dataset.embedded.entry import Entry
from utils.dataset.embedded.grammar import CONSTRUCTIONS
from utils.file import write_lines

Pair = tuple[str, str]

SIZES = {"train": 20_000, "dev": 500, "test": 500}
HELD_OUT_PERCENT = 4  # of the pairs of items, for dev and for test each
DRAWS = 5_000  # fillers drawn for each construction: enough for its share of every split


def pair_split(one: str, other: str, seed: int) -> str:
    """Return the split that a pair of items belongs to, in either order."""
    key = "\t".join([str(seed), *sorted((one, other))]).encode()
    percent = int.from_bytes(blake2b(key, digest_size=8).digest()) % 100
    if percent < HELD_OUT_PERCENT:
        return "dev"
    return "test" if percent < 2 * HELD_OUT_PERCENT else "train"


def sentence_split(fillers: tuple[Entry, ...], seed: int) -> str | None:
    """Return the split that a sentence belongs to; None when it has pairs of both dev and test."""
    held_out = {pair_split(one, other, seed) for one, other in item_pairs(fillers)} - {"train"}
    if len(held_out) == 2:
        return None
    return held_out.pop() if held_out else "train"


def draw(construction: Construction, rng: random.Random, seed: int) -> dict[str, Iterator[Pair]]:
    """Draw sentences of one construction in random order, separately for each split."""
    drawn: dict[str, list[Pair]] = {name: [] for name in SIZES}
    for index in rng.sample(range(construction.capacity), min(DRAWS, construction.capacity)):
        fillers = construction.fillers(index)
        if construction.sensible(fillers) and (split := sentence_split(fillers, seed)):
            drawn[split].append(construction.render(fillers))
    return {split: iter(pairs) for split, pairs in drawn.items()}


def take_turns(streams: list[Iterator[Pair]]) -> Iterator[Pair]:
    """Yield one from each stream in turn, until the last is empty."""
    while streams:
        alive = []
        for stream in streams:
            if (pair := next(stream, None)) is not None:
                alive.append(stream)
                yield pair
        streams = alive


def generate(seed: int = 0) -> dict[str, list[Pair]]:
    """Generate the corpus as (Japanese, English) pairs, the constructions in equal shares as far as they suffice.

    No sentence occurs twice: fillers are drawn without replacement, and no two constructions overlap.

    Raises:
        ValueError: the grammar has too few sentences for the required sizes.
    """
    rng = random.Random(seed)
    drawn = [draw(construction, rng, seed) for construction in CONSTRUCTIONS]
    corpus: dict[str, list[Pair]] = {}
    for split, size in SIZES.items():
        pairs = corpus[split] = list(islice(take_turns([streams[split] for streams in drawn]), size))
        if len(pairs) < size:
            raise ValueError(f"the grammar yields {len(pairs)} {split} pairs, not {size}: raise DRAWS={DRAWS}")
        rng.shuffle(pairs)
    return corpus


def write_embedded(folder: Path) -> None:
    """Write kyoto-{train,dev,test}.{ja,en} into the folder, unless all six are there and from exactly this grammar.

    Each file is complete or absent, the grammar always generates the same ones, and the file with its hash is written
    last: so the next call repairs an interrupted one.
    """
    files = {(split, language): folder / f"kyoto-{split}.{language}" for split in SIZES for language in ("ja", "en")}
    written_by, grammar = folder / "kyoto.grammar", _grammar_hash()
    if all(path.is_file() for path in (*files.values(), written_by)) and written_by.read_text().strip() == grammar:
        return
    for split, pairs in generate().items():
        for language, lines in zip(("ja", "en"), zip(*pairs, strict=True), strict=True):
            write_lines(files[split, language], lines)
    write_lines(written_by, [grammar])


def _grammar_hash() -> str:
    """Return the hash of this package's modules, which changes with any word, fact, construction or draw."""
    modules = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(module.read_bytes() for module in modules)).hexdigest()
