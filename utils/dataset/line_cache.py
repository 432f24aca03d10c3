"""Tokenizer and token ids of one text, made once and reused until the text changes."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from const.path import CORPUS
from utils.dataset.cache_folder import cached_folder
from utils.dataset.cache_key import cache_key, saved_hashes
from utils.dataset.encoding import Ids
from utils.dataset.file_hash import file_hash
from utils.dataset.parallel_text import BLOCK, decoded_lines
from utils.dataset.token_array import TokenArray, TokenWriter
from utils.text.pair import TokenizerConfig, load_tokenizer, train_tokenizer
from utils.text.tokenizer import Tokenizer


class TextLines:
    """The lines of a UTF-8 file, which may be iterated over repeatedly and are not kept in memory.

    Args:
        path: the file.

    Raises:
        ValueError: no such file, invalid UTF-8, or no text in it.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError(f"no such file: {path}")
        self._path = path
        self._n_lines, has_text = 0, False
        for line in self:
            self._n_lines += 1
            has_text = has_text or bool(line.strip())
        if not has_text:
            raise ValueError(f"{path} holds no text")

    def __len__(self) -> int:
        """Number of lines."""
        return self._n_lines

    def __iter__(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            yield from decoded_lines(file, str(self._path))


def cached_tokenizer(
    name: str, text: Path, config: TokenizerConfig, say: Callable[[str], None], root: Path = CORPUS
) -> Tokenizer:
    """Return the tokenizer of a text, learned from it at the first call.

    Args:
        name: name of the text, for people who look into the cache.
        text: what to learn from.
        config: what to learn; `joint` is ignored.
        say: called with a message about what takes time.
        root: where caches are kept.

    Raises:
        ValueError: the text does not support the requested vocabulary, or sub-word sampling is requested.
    """
    if config.sampling:
        raise ValueError(f"sampling={config.sampling} is for pairs of texts: set tokenizer.sampling to 0")
    learned = {field: value for field, value in asdict(config).items() if field not in ("sampling", "joint")}
    key = cache_key("lines", file_hash(text, root), learned)

    def make(folder: Path) -> None:
        lines = TextLines(text)
        say(f"Learning the vocabulary ({config.kind}) from {len(lines):,} lines (once; a minute for a large text)")
        train_tokenizer(config, lines).save(folder / "tokenizer")

    return load_tokenizer(cached_folder(root / "cache" / f"{name}-tokenizer-{key}", make, say))


def cached_lines(
    name: str, text: Path, tokenizer: Tokenizer, say: Callable[[str], None], root: Path = CORPUS
) -> TokenArray:
    """Return the ids of a text line by line, encoded at the first call.

    Args:
        name: name of the text, for people who look into the cache.
        text: what to encode.
        tokenizer: what encodes the text.
        say: called with a message about what takes time.
        root: where caches are kept.
    """
    written = saved_hashes(lambda folder: tokenizer.save(folder / "tokenizer"))
    key = cache_key("lines", file_hash(text, root), written)

    def make(folder: Path) -> None:
        lines = TextLines(text)
        say(f"Encoding {len(lines):,} lines of {name} (once)")
        _encode(lines, tokenizer, folder / "lines")

    return TokenArray.load(cached_folder(root / "cache" / f"{name}-{key}", make, say) / "lines")


def _encode(lines: TextLines, tokenizer: Tokenizer, stem: Path) -> None:
    """Write the ids, with a progress bar on a terminal; one process encodes a million lines in seconds."""
    bar = tqdm(total=len(lines), unit=" lines", leave=False, disable=not sys.stderr.isatty())
    rest = iter(lines)
    with bar, TokenWriter(stem, len(tokenizer)) as writer:
        while block := list(islice(rest, BLOCK)):
            writer.write(*Ids.of(tokenizer.encode(block)))
            bar.update(len(block))
