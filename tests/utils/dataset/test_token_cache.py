import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from utils.dataset import ids as ids_module
from utils.dataset import text as text_module
from utils.dataset.corpus import SPLITS, Corpus, DataConfig, MoreText, cached_tokenizers, cached_tokens, training_tokens
from utils.dataset.ids import TokenArray, TokenPairs, remove_cached
from utils.dataset.text import CleanConfig, ParallelFiles
from utils.text.tokenizer import TokenizerConfig, TokenizerPair, WordTokenizer

Epochs = Callable[[int], TokenPairs]

LINES = {
    "train.src": ["古い 都", "京 の 都", "京 の 都", "寺", "", "寺 寺 寺 寺 寺 寺 寺"],
    "train.tgt": ["an old capital", "the capital Kyo", "the capital Kyo", "temple", "nothing", "x"],
    "dev.src": ["寺", "寺", "", "古い 川"],
    "dev.tgt": ["temple", "temple", "an", "an old River"],
    "test.src": ["都"],
    "test.tgt": ["capital"],
}
CLEANED = ["古い 都", "京 の 都", "寺"]
DATA = DataConfig(clean=CleanConfig(max_length_ratio=3.0))
WORDS = TokenizerConfig("word", min_freq=1, joint=False)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    for name, lines in LINES.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    train, dev, test = (ParallelFiles(tmp_path / f"{split}.src", tmp_path / f"{split}.tgt") for split in SPLITS)
    return Corpus("toy", "ja", "en", train, dev, test, pre_tokenized=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


@pytest.fixture
def tokenizers(corpus: Corpus, tmp_path: Path) -> TokenizerPair:
    return cached_tokenizers(corpus, DATA, WORDS, quiet, tmp_path / "elsewhere")


def quiet(_: str) -> None: ...


def no_reading(_: ParallelFiles) -> NoReturn:
    raise AssertionError("the text is read again")


def ids_of(array: TokenArray) -> list[list[int]]:
    return [array[i].tolist() for i in range(len(array))]


def entries(root: Path) -> list[str]:
    """What is in the cache, except for locks."""
    return sorted(entry.name for entry in (root / "cache").iterdir() if not entry.name.startswith("."))


def test_cached_ids_are_those_of_encoding_now_and_lie_on_the_disk(
    corpus: Corpus, tokenizers: TokenizerPair, root: Path
) -> None:
    pairs = cached_tokens(corpus, "test", DATA, tokenizers, quiet, root)
    for array, tokenizer, side in zip(pairs, tokenizers, ("src", "tgt"), strict=True):
        assert ids_of(array) == tokenizer.encode(LINES[f"test.{side}"])
        assert isinstance(array[0], np.memmap)
        assert not array[0].flags.writeable


def test_training_text_is_cleaned_and_no_other(corpus: Corpus, tokenizers: TokenizerPair, root: Path) -> None:
    said: list[str] = []
    for split in SPLITS:
        pairs = cached_tokens(corpus, split, DATA, tokenizers, said.append, root)
        for array, tokenizer, side in zip(pairs, tokenizers, ("src", "tgt"), strict=True):
            lines = LINES[f"{split}.{side}"]
            kept = [lines[LINES["train.src"].index(line)] for line in CLEANED] if split == "train" else lines
            assert ids_of(array) == tokenizer.encode(kept), (split, side)
    assert [line for line in said if line.startswith("Cleaning")] == [said[0]]
    assert "duplicate              1" in said[0]
    assert [line for line in said if line.startswith("Encoding")] == [
        "Encoding 3 pairs of toy train (once)",
        "Encoding 4 pairs of toy dev (once)",
        "Encoding 1 pairs of toy test (once)",
    ]


def test_further_training_text_is_reported_and_not_counted_by_max_pairs(
    corpus: Corpus, tokenizers: TokenizerPair, root: Path
) -> None:
    said: list[str] = []
    few = replace(DATA, clean=replace(DATA.clean, max_pairs=1))
    alone, joined = (
        len(cached_tokens(each, "train", few, tokenizers, said.append, root).src)
        for each in (corpus, replace(corpus, more=MoreText(len(LINES["train.src"]), 2)))
    )
    assert (alone, joined) == (1, len(CLEANED))
    further = f"  with {len(LINES['train.src'])} further pairs; 2 were left out: the dev or test text has their lines"
    assert said.count(further) == 1


def test_pairs_to_score_on_that_are_learned_are_counted(corpus: Corpus, tokenizers: TokenizerPair, root: Path) -> None:
    said: list[str] = []
    cached_tokens(corpus, "train", DATA, tokenizers, said.append, root)
    shared = "  2 pairs of the dev text are in it, too: their scores flatter the model"
    assert [line for line in said if "are in it" in line] == [shared]


def test_text_is_read_once(corpus: Corpus, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def everything() -> list[object]:
        tokenizers = cached_tokenizers(corpus, DATA, WORDS, said.append, root)
        pairs = [cached_tokens(corpus, split, DATA, tokenizers, said.append, root) for split in SPLITS]
        return [[t.tokens(range(len(t))) for t in tokenizers], [ids_of(array) for pair in pairs for array in pair]]

    first, n_said = everything(), len(said)
    for module in text_module, text_module:
        monkeypatch.setattr(module, "read_blocks", no_reading)
    assert everything() == first
    assert len(said) == n_said


def test_the_vocabulary_is_learned_from_cleaned_training_text_alone(corpus: Corpus, tmp_path: Path) -> None:
    def learned(name: str, config: TokenizerConfig) -> bytes:
        cached_tokenizers(corpus, DATA, config, quiet, tmp_path / name).save(tmp_path / name)
        return b"".join(file.read_bytes() for file in sorted((tmp_path / name).glob("tokenizer*")))

    configs = WORDS, TokenizerConfig("bpe", 26, character_coverage=1.0)
    before = [learned(f"before-{config.kind}", config) for config in configs]
    corpus.dev.src.write_text("川 川 川 川\n" * 4, encoding="utf-8")
    corpus.test.tgt.write_text("river\n", encoding="utf-8")
    assert [learned(f"after-{config.kind}", config) for config in configs] == before
    words = cached_tokenizers(corpus, DATA, WORDS, quiet, tmp_path)
    assert [tokenizer.tokens(range(4, len(tokenizer))) for tokenizer in words] == [
        ["都", "古い", "京", "の", "寺"],
        ["capital", "an", "old", "the", "Kyo", "temple"],
    ]


def append_to(side: str) -> Callable[[Corpus], Corpus]:
    def change(corpus: Corpus) -> Corpus:
        split, _, language = side.partition(".")
        path: Path = getattr(getattr(corpus, split), language)
        path.write_text(path.read_text(encoding="utf-8").replace("都", "橋").replace("capital", "bridge"))
        return corpus

    return change


def backwards(corpus: Corpus) -> Corpus:
    train, dev, test = (ParallelFiles(files.tgt, files.src) for files in (corpus.train, corpus.dev, corpus.test))
    return replace(corpus, src_lang="en", tgt_lang="ja", train=train, dev=dev, test=test)


@pytest.mark.parametrize(
    "change",
    [append_to("train.src"), append_to("train.tgt"), append_to("test.src"), append_to("test.tgt"), backwards],
    ids=["train.src", "train.tgt", "test.src", "test.tgt", "direction"],
)
def test_another_text_is_encoded_anew(
    corpus: Corpus, tokenizers: TokenizerPair, root: Path, change: Callable[[Corpus], Corpus]
) -> None:
    cached_tokens(corpus, "train", DATA, tokenizers, quiet, root)
    cached_tokenizers(corpus, DATA, WORDS, quiet, root)
    before = entries(root)
    cached_tokens(change(corpus), "train", DATA, tokenizers, quiet, root)
    cached_tokenizers(change(corpus), DATA, WORDS, quiet, root)
    assert len(before) == 3  # the cleaned text, its ids, the vocabulary
    assert len(entries(root)) == 6


def test_another_cleaning_makes_another_training_text_and_vocabulary_and_nothing_else(
    corpus: Corpus, tokenizers: TokenizerPair, root: Path
) -> None:
    for data in DATA, replace(DATA, clean=replace(DATA.clean, drop_duplicates=False)):
        cached_tokenizers(corpus, data, WORDS, quiet, root)
        for split in SPLITS:
            cached_tokens(corpus, split, data, tokenizers, quiet, root)
    kinds = [name.rsplit("-", 1)[0] for name in entries(root)]
    twice = ("toy-clean", "toy-tokenizer", "toy-train")
    assert kinds == sorted(["toy-dev", "toy-test", *twice, *twice])


@pytest.mark.parametrize(
    "other",
    [replace(WORDS, min_freq=2), replace(WORDS, lowercase=True), replace(WORDS, joint=True)],
    ids=["min_freq", "lowercase", "joint"],
)
def test_another_vocabulary_is_learned_and_encoded_with_anew(
    corpus: Corpus, root: Path, other: TokenizerConfig
) -> None:
    for config in WORDS, other:
        pair = cached_tokenizers(corpus, DATA, config, quiet, root)
        assert ids_of(cached_tokens(corpus, "dev", DATA, pair, quiet, root).tgt) == pair.tgt.encode(LINES["dev.tgt"])
    assert [name.rsplit("-", 1)[0] for name in entries(root)] == ["toy-clean", *2 * ["toy-dev"], *2 * ["toy-tokenizer"]]


def test_tokenizers_of_the_same_pieces_that_read_a_text_otherwise_have_their_own_ids(
    corpus: Corpus, root: Path
) -> None:
    for lowercase in False, True:
        pair = TokenizerPair(*(WordTokenizer(["an", "old", "river"], lowercase) for _ in range(2)))
        tgt = cached_tokens(corpus, "dev", DATA, pair, quiet, root).tgt
        assert ids_of(tgt) == pair.tgt.encode(LINES["dev.tgt"])


class Breaking(WordTokenizer):
    """Break off in the middle, as a full disk or an impatient person does."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:  # noqa: ARG002 (the protocol's signature)
        raise KeyboardInterrupt


def test_what_was_interrupted_does_not_count(corpus: Corpus, root: Path) -> None:
    words = [
        tokenizer.tokens(range(4, len(tokenizer))) for tokenizer in cached_tokenizers(corpus, DATA, WORDS, quiet, root)
    ]
    src, whole = WordTokenizer(words[0], lowercase=False), WordTokenizer(words[1], lowercase=False)
    before = entries(root)
    with pytest.raises(KeyboardInterrupt):  # the source lies in the draft by then
        cached_tokens(corpus, "dev", DATA, TokenizerPair(src, Breaking(words[1], lowercase=False)), quiet, root)
    assert entries(root) == before
    pairs = cached_tokens(corpus, "dev", DATA, TokenizerPair(src, whole), quiet, root)
    assert ids_of(pairs.tgt) == whole.encode(LINES["dev.tgt"])


def test_an_interrupted_vocabulary_does_not_count(corpus: Corpus, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> NoReturn:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(WordTokenizer, "save", no_room)
        with pytest.raises(OSError, match="disk full"):
            cached_tokenizers(corpus, DATA, WORDS, quiet, root)
    assert [name.rsplit("-", 1)[0] for name in entries(root)] == ["toy-clean"]
    assert len(cached_tokenizers(corpus, DATA, WORDS, quiet, root).src) == 9


def test_pairs_stand_line_by_line(corpus: Corpus, tokenizers: TokenizerPair, root: Path) -> None:
    pairs = cached_tokens(corpus, "train", DATA, tokenizers, quiet, root)
    assert isinstance(pairs, TokenPairs)
    assert len(pairs.src) == len(pairs.tgt) == 3
    assert tokenizers.tgt.decode(ids_of(pairs.tgt))[2] == "temple"
    assert tokenizers.src.decode(ids_of(pairs.src))[2] == "寺"


# damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [truncate, flip, empty, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "file",
    [
        *("toy-clean-*/kept.npy", "toy-clean-*/ends.npy", "toy-tokenizer-*/tokenizer_src.json"),
        *("toy-train-*/src.ids.npy", "toy-dev-*/tgt.offsets.npy", "toy-train-*/checksums.json"),
    ],
)
def test_what_was_damaged_is_made_anew_and_said_so(
    corpus: Corpus, root: Path, file: str, damage: Callable[[Path], None]
) -> None:
    said: list[str] = []

    def everything() -> list[object]:
        tokenizers = cached_tokenizers(corpus, DATA, WORDS, said.append, root)
        tokens = training_tokens(corpus, DATA, tokenizers, 0.0, 1, said.append, root)(0)
        dev = cached_tokens(corpus, "dev", DATA, tokenizers, said.append, root)
        return [[t.tokens(range(len(t))) for t in tokenizers], [ids_of(side) for side in (*tokens, *dev)]]

    first, names = everything(), entries(root)
    (damaged,) = (root / "cache").glob(file)
    # only what is rebuilt asks for the cleaned text
    after = [next((root / "cache").glob("toy-train-*/src.ids.npy"))] if "clean" in file else []
    for path in (damaged, *after):
        damage(path)
    said.clear()
    assert everything() == first
    assert entries(root) == names
    assert [line for line in said if "damaged" in line] == [
        line for line in said if re.fullmatch(rf"{root}/cache/toy-[^ ]+ is damaged \(.+\): rebuilding it", line)
    ]
    assert sum(str(damaged.parent) in line for line in said) == 1
    said.clear()
    assert everything() == first
    assert not said


# sub-word sampling

SUBWORDS = TokenizerConfig("unigram", 40, character_coverage=1.0)


@pytest.fixture
def long_corpus(tmp_path: Path) -> Corpus:
    """Pairs enough for several blocks, some of which are dropped."""
    files = ParallelFiles(tmp_path / "long.src", tmp_path / "long.tgt")
    lines = [f"the old capital of {n} and the capitals of {n * 7}" for n in range(60)]
    files.src.write_text("".join(line + "\n" for line in lines))
    files.tgt.write_text("".join("\n" if n % 9 == 4 else line[::-1] + "\n" for n, line in enumerate(lines)))
    return Corpus("toy", "en", "ne", files, files, files, pre_tokenized=False)


def sampled(corpus: Corpus, root: Path, kind: str = "unigram", seed: int = 1) -> tuple[TokenizerPair, Epochs]:
    tokenizers = cached_tokenizers(corpus, DATA, replace(SUBWORDS, kind=kind), quiet, root)  # type: ignore[arg-type]
    return tokenizers, training_tokens(corpus, DATA, tokenizers, 0.3, seed, quiet, root)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_each_epoch_is_cut_otherwise_and_says_the_same(
    long_corpus: Corpus, root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BLOCK", 16)
    tokenizers, tokens = sampled(long_corpus, root, kind)
    straight = cached_tokens(long_corpus, "train", DATA, tokenizers, quiet, root)
    epochs = [tokens(epoch) for epoch in range(2)]
    for straight_side, side, tokenizer in zip(straight, zip(*epochs, strict=True), tokenizers, strict=True):
        text = tokenizer.decode(ids_of(straight_side))
        assert [tokenizer.decode(ids_of(cut)) for cut in side] == [text, text]
        assert ids_of(side[0]) != ids_of(side[1])
        assert min(int(cut.lengths.sum()) for cut in side) > straight_side.lengths.sum()
    # nor do equal lines in different blocks, or the two sides of a pair, share their chance
    assert sampled(long_corpus, root / "b", kind)[1](0).src.lengths.tolist() != epochs[0].tgt.lengths.tolist()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_cut_is_a_function_of_seed_and_epoch_whoever_makes_it_and_when(
    long_corpus: Corpus, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "BLOCK", 16)

    def cut(name: str, epochs: list[int], seed: int = 1) -> list[list[int]]:
        _, tokens = sampled(long_corpus, tmp_path / name, kind, seed)
        return [ids_of(tokens(epoch).src) for epoch in epochs][-1]

    expected = cut("straight", [0, 1, 2])
    assert cut("resumed", [2]) == expected
    assert cut("straight", [2]) == expected  # from the disk
    assert cut("other", [2], seed=2) != expected
    monkeypatch.setattr(ids_module, "_WORTH_PROCESSES", 1)
    for n in (1, 2):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=n: set(range(n)))
        assert cut(f"processes-{n}", [2]) == expected


def test_sampling_changes_neither_vocabulary_nor_the_ids_of_dev(corpus: Corpus, root: Path) -> None:
    config = TokenizerConfig("bpe", 26, character_coverage=1.0)
    for sampling in 0.0, 0.2:
        tokenizers = cached_tokenizers(corpus, DATA, replace(config, sampling=sampling), quiet, root)
        cached_tokens(corpus, "dev", DATA, tokenizers, quiet, root)
    assert [name.rsplit("-", 1)[0] for name in entries(root)] == ["toy-clean", "toy-dev", "toy-tokenizer"]


def test_the_ids_of_an_epoch_are_kept_until_a_later_one_is_asked_for(long_corpus: Corpus, root: Path) -> None:
    _, tokens = sampled(long_corpus, root)
    _, others = sampled(long_corpus, root, seed=2)
    others(0)

    def kept() -> list[str]:
        return sorted(name.rsplit("-", 1)[1] for name in entries(root) if "sampled" in name)

    first = tokens(0)
    before = ids_of(first.src)
    assert kept() == ["0", "0"]
    tokens(1)
    assert kept() == ["0", "1"]
    assert ids_of(first.src) == before  # a process that still reads them can
    tokens(10)
    assert kept() == ["0", "10"]
    tokens(9)
    assert kept() == ["0", "10", "9"]


def test_a_damaged_epoch_is_cut_anew_and_the_same(long_corpus: Corpus, root: Path) -> None:
    _, tokens = sampled(long_corpus, root)
    expected = ids_of(tokens(3).src)
    (ids,) = (root / "cache").glob("toy-sampled-*-3/src.ids.npy")
    flip(ids)
    assert ids_of(tokens(3).src) == expected


def test_an_epoch_that_another_training_removes_meanwhile_is_cut_again(
    long_corpus: Corpus, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tokens = sampled(long_corpus, root)
    expected, load, removed = ids_of(tokens(3).src), TokenPairs.load, list[Path]()

    def removed_first(folder: Path) -> TokenPairs:
        if not removed:
            removed.append(folder)
            remove_cached(folder)
        return load(folder)

    monkeypatch.setattr(TokenPairs, "load", removed_first)
    assert ids_of(tokens(3).src) == expected
    assert len(removed) == 1


def test_a_file_that_is_not_there_is_not_looked_for_for_ever(
    long_corpus: Corpus, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: Path) -> NoReturn:
        raise FileNotFoundError("src.ids.npy")

    _, tokens = sampled(long_corpus, root)
    monkeypatch.setattr(TokenPairs, "load", missing)
    with pytest.raises(FileNotFoundError, match=r"src\.ids\.npy"):
        tokens(3)


def test_without_sampling_every_epoch_has_the_same_ids(corpus: Corpus, tokenizers: TokenizerPair, root: Path) -> None:
    tokens = training_tokens(corpus, DATA, tokenizers, 0.0, 1, quiet, root)
    straight = cached_tokens(corpus, "train", DATA, tokenizers, quiet, root)
    assert [[ids_of(side) for side in tokens(epoch)] for epoch in (0, 5)] == 2 * [[ids_of(side) for side in straight]]


def test_words_are_not_sampled(corpus: Corpus, tokenizers: TokenizerPair, root: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^tokenizer\.sampling=0\.1 splits words into pieces, kind=word keeps them whole"
    ):
        training_tokens(corpus, DATA, tokenizers, 0.1, 1, quiet, root)(0)


def test_another_rate_or_cleaning_is_cut_anew(long_corpus: Corpus, root: Path) -> None:
    tokenizers, tokens = sampled(long_corpus, root)
    first = ids_of(tokens(0).src)
    finer = training_tokens(long_corpus, DATA, tokenizers, 0.05, 1, quiet, root)
    assert ids_of(finer(0).src) != first
    few = replace(DATA, clean=replace(DATA.clean, max_pairs=5))
    assert len(training_tokens(long_corpus, few, tokenizers, 0.3, 1, quiet, root)(0).src) == 5
