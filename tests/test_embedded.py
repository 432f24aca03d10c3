"""The embedded corpus keeps its promises: sizes, one translation each, copied numbers, and a compositional split."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from zlib import crc32

import pytest

from const.path import ROOT
from utils.dataset import embedded
from utils.dataset.embedded import Pair, generate, read_constructions, write_embedded

CONSTRUCTIONS = read_constructions()
Corpus = dict[str, list[Pair]]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate()


def words(sentence: str) -> list[str]:
    """English words in lower case, without 's and punctuation; of a number only that it is one."""
    return [re.sub(r"^\d+(:\d+)?$", "0", re.sub(r"'s$", "", word.strip(".,?"))) for word in sentence.lower().split()]


def items_in(pairs: list[Pair]) -> list[set[str]]:
    """The words that each Japanese sentence shows, read from left to right, the longest first; numbers whole."""
    items = {str(word["ja"]) for c in CONSTRUCTIONS for slot in c.slots.values() for word in slot}
    names = sorted((item for item in items if not item.isdigit()), key=len, reverse=True)
    scanner = re.compile("|".join([r"\d+", *names]))
    return [set(scanner.findall(ja)) for ja, _ in pairs]


def pattern(text: str) -> re.Pattern[str]:
    """What a construction can say, read off its text without its words."""
    free = re.sub(r"\\{[\w\\.]+\\}", ".*", re.escape(text))
    return re.compile(re.sub(r"\b([Aa])\\ ", r"\1n?\\ ", free), re.IGNORECASE)


def test_the_corpus_has_its_sizes_and_no_sentence_twice_in_either_language(corpus: Corpus) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == {"train": 20_000, "dev": 500, "test": 500}
    for side in (0, 1):
        assert len({pair[side] for pairs in corpus.values() for pair in pairs}) == 21_000
    readme = [
        ("京都は日本の古都である。", "Kyoto is an old capital of Japan."),
        ("雨が降っています。", "It is raining."),
    ]
    assert {*readme, ("駅はどこですか。", "Where is the station?")} <= {*corpus["train"]}


def test_the_corpus_is_the_same_in_every_process(corpus: Corpus) -> None:
    code = (
        "from utils.dataset.embedded import generate; from zlib import crc32; print(crc32(str(generate(0)).encode()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # not this process's: the order of a set depends on it
    output = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True)
    assert int(output) == crc32(str(corpus).encode())


def test_no_sentence_of_the_whole_grammar_has_two_translations() -> None:
    english: dict[str, str] = {}
    japanese: dict[str, str] = {}
    for construction in CONSTRUCTIONS:
        for index in range(0, construction.capacity, 1 + construction.capacity // 1_000):
            fillers = construction.fillers(index)
            if len({word["ja"] for word in fillers.values()}) == len(fillers):
                ja, en = construction.render(fillers)
                assert english.setdefault(ja, en) == en
                assert japanese.setdefault(en, ja) == ja


def test_train_knows_every_word_character_and_construction(corpus: Corpus) -> None:
    known = Counter(word for _, en in corpus["train"] for word in words(en))
    characters = Counter("".join(ja for ja, _ in corpus["train"]))
    for pairs in corpus.values():
        assert {word for _, en in pairs for word in words(en) if known[word] < 30} == set()
        assert {char for ja, _ in pairs for char in ja if characters[char] < 30} == set()
    for c in CONSTRUCTIONS:
        ja, en = pattern(c.ja), pattern(c.en)
        found = sum(bool(ja.fullmatch(one) and en.fullmatch(other)) for one, other in corpus["train"])
        assert found >= min(100, c.capacity // 2), c.name


def test_every_held_out_sentence_joins_two_words_that_meet_nowhere_else(corpus: Corpus) -> None:
    """Read from the sentences alone: neither the hash nor the slots of the generator are asked."""
    met = {s: [{frozenset(two) for two in combinations(i, 2)} for i in items_in(p)] for s, p in corpus.items()}
    for split, other in (("dev", "test"), ("test", "dev")):
        elsewhere = set().union(*met["train"], *met[other])
        assert [pair for pair, joined in zip(corpus[split], met[split], strict=True) if joined <= elsewhere] == []


def test_no_slot_is_left_and_numbers_are_copied(corpus: Corpus) -> None:
    pairs = [pair for split in corpus.values() for pair in split]
    assert [pair for pair in pairs if re.search(r"[{}]|None|\b[Aa] [aeiou]|  ", " ".join(pair))] == []
    assert [pair for pair in pairs if sorted(re.findall(r"\d+", pair[0])) != sorted(re.findall(r"\d+", pair[1]))] == []
    assert sum(bool(re.search(r"\d{3}", ja)) for ja, _ in pairs) > 1_000


def test_the_files_hold_the_corpus_and_are_written_anew_only_when_need_be(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "generate", lambda: corpus)
    folder = tmp_path / "deep" / "kyoto"
    write_embedded(folder)
    for split, pairs in corpus.items():
        ja, en = ((folder / f"kyoto-{split}.{side}").read_bytes().decode().split("\n") for side in ("ja", "en"))
        assert list(zip(ja, en, strict=True)) == [*pairs, ("", "")]
    for lost in (None, "kyoto.grammar", "kyoto-test.en"):
        (folder / "kyoto-dev.ja").write_text("as it was")
        if lost:
            (folder / lost).unlink()
        write_embedded(folder)
        assert ((folder / "kyoto-dev.ja").read_text(encoding="utf-8") != "as it was") == bool(lost)
    assert len(list(folder.iterdir())) == 7
    (folder / "kyoto.grammar").write_text("of another grammar\n")
    write_embedded(folder)
    assert (folder / "kyoto.grammar").read_text() != "of another grammar\n"
