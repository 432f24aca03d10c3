from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from utils.dataset import ids
from utils.dataset.ids import TextLines, TokenArray, cached_lines, cached_tokenizer
from utils.text.tokenizer import Tokenizer, TokenizerConfig, WordTokenizer, train_tokenizer

LINES = ["京 の 都", "", "古い 都", " ", "都 の 寺 の 寺"]
WORDS = TokenizerConfig("word", min_freq=1)


def quiet(_: str) -> None: ...


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.ja"
    path.write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


def ids_of(array: TokenArray) -> list[list[int]]:
    return [array[i].tolist() for i in range(len(array))]


def words(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.tokens(range(4, len(tokenizer)))


def entries(root: Path) -> int:
    return sum(not entry.name.startswith(".") for entry in (root / "cache").iterdir())


def test_lines_are_those_of_the_file_again_and_again(text: Path) -> None:
    text.write_bytes("\ufeff一\u2028二\r\n三".encode())
    lines = TextLines(text)
    assert len(lines) == 2
    assert [list(lines), list(lines)] == [["一\u2028二", "三"]] * 2


@pytest.mark.parametrize(
    ("content", "fault"), [(None, "^no such file: "), (b"", "holds no text$"), (b" \n", "no text")]
)
def test_a_text_that_is_none_is_refused(tmp_path: Path, content: bytes | None, fault: str) -> None:
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=fault):
        TextLines(path)


def test_a_tokenizer_is_learned_from_the_text_once(text: Path, root: Path) -> None:
    said: list[str] = []
    learned = cached_tokenizer("toy", text, WORDS, said.append, root)
    assert words(learned) == words(train_tokenizer(WORDS, LINES))
    assert said == ["Learning the vocabulary (word) from 5 lines (once; a minute for a large text)"]
    for same in (WORDS, replace(WORDS, joint=False)):
        assert words(cached_tokenizer("toy", text, same, said.append, root)) == words(learned)
    assert len(said) == 1
    assert words(cached_tokenizer("toy", text, replace(WORDS, min_freq=2), said.append, root)) == ["の", "都", "寺"]
    text.write_text("橋\n", encoding="utf-8")
    assert words(cached_tokenizer("toy", text, WORDS, said.append, root)) == ["橋"]
    assert len(said) == 3


def test_a_tokenizer_that_cuts_at_random_is_refused(text: Path, root: Path) -> None:
    with pytest.raises(ValueError, match=r"^sampling=0\.1 is for pairs of texts: set tokenizer\.sampling to 0$"):
        cached_tokenizer("toy", text, TokenizerConfig("bpe", sampling=0.1), quiet, root)


@pytest.mark.parametrize("block", [1, 2, 8192])
def test_ids_are_those_of_encoding_now_and_lie_on_the_disk(
    text: Path, root: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "BLOCK", block)
    tokenizer, said = train_tokenizer(WORDS, LINES), list[str]()
    array = cached_lines("toy-train", text, tokenizer, said.append, root)
    assert ids_of(array) == tokenizer.encode(LINES)
    assert isinstance(array[0], np.memmap)
    assert ids_of(cached_lines("toy-train", text, tokenizer, said.append, root)) == ids_of(array)
    assert said == ["Encoding 5 lines of toy-train (once)"]
    assert entries(root) == 1


def other_text(text: Path, tokenizer: WordTokenizer) -> WordTokenizer:
    text.write_text("寺\n寺 都\n", encoding="utf-8")
    return tokenizer


def other_words(_: Path, tokenizer: WordTokenizer) -> WordTokenizer:
    return WordTokenizer(words(tokenizer)[::-1], lowercase=False)


@pytest.mark.parametrize("change", [other_text, other_words])
def test_ids_of_another_text_or_tokenizer_are_not_taken(
    text: Path, root: Path, change: Callable[[Path, WordTokenizer], WordTokenizer]
) -> None:
    tokenizer = WordTokenizer(["寺", "都", "の"], lowercase=False)
    cached_lines("toy", text, tokenizer, quiet, root)
    tokenizer = change(text, tokenizer)
    array = cached_lines("toy", text, tokenizer, quiet, root)
    assert ids_of(array) == tokenizer.encode(text.read_text(encoding="utf-8").split("\n")[:-1])
