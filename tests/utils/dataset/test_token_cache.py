from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from utils.dataset import token_cache
from utils.dataset.cleaning import CleanConfig
from utils.dataset.corpus import Corpus, DataConfig
from utils.dataset.parallel_text import ParallelFiles
from utils.dataset.token_array import TokenArray, TokenPairs
from utils.dataset.token_cache import SPLITS, cached_tokenizers, cached_tokens
from utils.text.pair import TokenizerConfig, TokenizerPair
from utils.text.word_tokenizer import WordTokenizer

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
    return sorted(entry.name for entry in (root / "cache").iterdir())


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
        "Encoding 3 pairs of toy train: once",
        "Encoding 4 pairs of toy dev: once",
        "Encoding 1 pairs of toy test: once",
    ]


def test_text_is_read_once(corpus: Corpus, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def everything() -> list[object]:
        tokenizers = cached_tokenizers(corpus, DATA, WORDS, said.append, root)
        pairs = [cached_tokens(corpus, split, DATA, tokenizers, said.append, root) for split in SPLITS]
        return [[t.tokens(range(len(t))) for t in tokenizers], [ids_of(array) for pair in pairs for array in pair]]

    first, n_said = everything(), len(said)
    monkeypatch.setattr(token_cache, "read_parallel", no_reading)
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
    assert len(before) == 2
    assert len(entries(root)) == 4


def test_another_cleaning_makes_another_training_text_and_vocabulary_and_nothing_else(
    corpus: Corpus, tokenizers: TokenizerPair, root: Path
) -> None:
    for data in DATA, replace(DATA, clean=replace(DATA.clean, drop_duplicates=False)):
        cached_tokenizers(corpus, data, WORDS, quiet, root)
        for split in SPLITS:
            cached_tokens(corpus, split, data, tokenizers, quiet, root)
    kinds = [name.rsplit("-", 1)[0] for name in entries(root)]
    assert kinds == ["toy-dev", "toy-test", "toy-tokenizer", "toy-tokenizer", "toy-train", "toy-train"]


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
    assert len(entries(root)) == 4


def test_tokenizers_of_the_same_pieces_that_read_a_text_otherwise_have_their_own_ids(
    corpus: Corpus, root: Path
) -> None:
    for lowercase in False, True:
        pair = TokenizerPair(*(WordTokenizer(["an", "old", "river"], lowercase) for _ in range(2)))
        tgt = cached_tokens(corpus, "dev", DATA, pair, quiet, root).tgt
        assert ids_of(tgt) == pair.tgt.encode(LINES["dev.tgt"])


class Breaking(WordTokenizer):
    """Breaks off in the middle, as a full disk or an impatient person does."""

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
    assert entries(root) == []
    assert len(cached_tokenizers(corpus, DATA, WORDS, quiet, root).src) == 9


def test_pairs_stand_line_by_line(corpus: Corpus, tokenizers: TokenizerPair, root: Path) -> None:
    pairs = cached_tokens(corpus, "train", DATA, tokenizers, quiet, root)
    assert isinstance(pairs, TokenPairs)
    assert len(pairs.src) == len(pairs.tgt) == 3
    assert tokenizers.tgt.decode(ids_of(pairs.tgt))[2] == "temple"
    assert tokenizers.src.decode(ids_of(pairs.src))[2] == "寺"
