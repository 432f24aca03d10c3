"""The embedded corpus keeps its promises: sizes, one translation each, copied numbers, and a compositional split."""

import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from zlib import crc32

import pytest

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


def test_the_corpus_is_as_ever(corpus: Corpus) -> None:
    assert crc32(str(corpus).encode()) == 3630494644  # in every process: the order of a set depends on its hash seed


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
    write_embedded(tmp_path)
    written = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert len(written) == 7
    for split, pairs in corpus.items():
        ja, en = (written[f"kyoto-{split}.{side}"].split("\n") for side in ("ja", "en"))
        assert list(zip(ja, en, strict=True)) == [*pairs, ("", "")]
    for name, content in ("kyoto.grammar", None), ("kyoto-test.en", None), ("kyoto.grammar", "of another grammar\n"):
        (tmp_path / "kyoto-dev.ja").write_text("as it was")
        write_embedded(tmp_path)
        assert (tmp_path / "kyoto-dev.ja").read_text() == "as it was"
        (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
        write_embedded(tmp_path)
        assert {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()} == written
