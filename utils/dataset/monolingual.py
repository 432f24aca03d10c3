"""Monolingual texts in document order: which one a run uses, how it is prepared, and its token ids."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from config.data import DataConfig, MonolingualConfig, TokenizerConfig
from const.corpora import CORPORA
from const.path import CORPUS
from utils.command import Log
from utils.dataset.cache import file_hash
from utils.dataset.corpus import SPLITS, Split, prepare_corpus
from utils.dataset.ids import TokenArray, cached_lines, cached_tokenizer
from utils.dataset.text import TextLines, lines_of, require_text
from utils.file import atomic_folder
from utils.text.tokenizer import Tokenizer


class Document(NamedTuple):
    """A run of lines of a text that belong together."""

    name: str
    n_lines: int


def read_documents(path: Path) -> tuple[Document, ...]:
    """Read the documents of a text, in order, from a file with a name and a number of lines on each line."""
    documents = []
    for number, line in enumerate(lines_of(path), start=1):
        if found := re.fullmatch(r"\s*(\S.*?)\s+([0-9]+)\s*", line):
            documents.append(Document(found[1], int(found[2])))
        elif line.strip():
            raise ValueError(
                f"{path}, line {number}: {line[:60]!r} is not the name of a document and its number of lines: "
                "write them like KFTT00001 62"
            )
    return tuple(documents)


class DocumentTokens(NamedTuple):
    """The ids of a text's sentences, numbered throughout the text; lines without a token are not sentences."""

    lines: TokenArray
    rows: NDArray[np.int32]  # the line of each sentence
    bounds: NDArray[np.int64]  # the first sentence of each document, and the number of sentences

    @classmethod
    def of(cls, lines: TokenArray, documents: Sequence[Document]) -> "DocumentTokens":
        """Find the sentences of these documents, which make up the text; documents without one are left out."""
        has_tokens = lines.lengths > 0
        ends = np.cumsum([document.n_lines for document in documents])
        # the number of sentences up to the end of each document
        sentences = np.concatenate([np.zeros(1, np.int64), has_tokens.cumsum()])[ends]
        bounds = np.unique(np.concatenate([np.zeros(1, np.int64), sentences]))
        return cls(lines, np.flatnonzero(has_tokens).astype(np.int32), bounds)

    @property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each sentence."""
        return self.lines.lengths[self.rows]

    @property
    def document(self) -> NDArray[np.int32]:
        """Number of the document of each sentence."""
        return np.repeat(np.arange(len(self.bounds) - 1, dtype=np.int32), np.diff(self.bounds))

    def gather(self, sentences: NDArray[np.integer]) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.int64]]:
        """Return the ids of these sentences concatenated, and the length of each."""
        return self.lines.gather(self.rows[sentences])


@dataclass(frozen=True)
class MonolingualCorpus:
    """A monolingual text, ready to use, in three parts, and what must be known to use it."""

    name: str  # as in `MonolingualConfig.corpus`
    language: str
    train: Path
    dev: Path  # used to choose models: one document, as the test text is
    test: Path
    documents: tuple[Document, ...]  # of the training text, in order
    pre_tokenized: bool  # words are separated by spaces
    root: Path = CORPUS  # as in `Corpus`, and so is the next
    rebuilt: bool = False

    def fingerprint(self) -> str:
        """Return a hash of the files' contents and of where documents end."""
        return _fingerprint([self.train, self.dev, self.test], self.documents)

    def tokenizer(self, config: TokenizerConfig, log: Log) -> Tokenizer:
        """Return a tokenizer, learned from the training text at the first call; see `cached_tokenizer`."""
        return cached_tokenizer(f"{self.name}-{self.language}", self.train, config, log, self.root)

    def tokens(self, split: Split, tokenizer: Tokenizer, log: Log) -> DocumentTokens:
        """Return the ids of a split, encoded at the first call."""
        name = f"{self.name}-{self.language}-{split}"
        lines = cached_lines(name, getattr(self, split), tokenizer, log, self.root)
        return DocumentTokens.of(lines, self.documents if split == "train" else [Document(split, len(lines))])


def prepare_monolingual(config: MonolingualConfig, root: Path = CORPUS) -> MonolingualCorpus:
    """Prepare the text under `root`: fetch, verify and unpack it, or split it, where that is still to be done."""
    if config.corpus == "files" or config.text or config.dev_text or config.test_text:
        return _own_text(config, root)
    languages = ("ja", "en") if config.corpus == "embedded" else CORPORA[config.corpus].languages
    if config.language not in languages:
        raise ValueError(f"corpus={config.corpus} has {' and '.join(languages)}, not language={config.language}")
    other = next(language for language in languages if language != config.language)
    pairs = prepare_corpus(DataConfig(config.corpus, config.language, other, config.archive), root)
    train, dev, test = (getattr(pairs, split).src for split in SPLITS)
    about = _documents(config, train), pairs.data.is_tokenized, root, pairs.rebuilt
    return MonolingualCorpus(pairs.name, config.language, train, dev, test, *about)


def _own_text(config: MonolingualConfig, root: Path) -> MonolingualCorpus:
    if config.archive:
        raise ValueError(f"archive={config.archive} is for published corpora ({', '.join(CORPORA)}): leave it out")
    if not config.text:
        raise ValueError("corpus=files needs a training text: give text=FILE")
    for name, path in (("text", config.text), ("dev_text", config.dev_text), ("test_text", config.test_text)):
        if path:
            require_text(path, name)
    train, dev, test, documents = config.text, config.dev_text, config.test_text, _documents(config, config.text)
    if not (dev and test):
        wanted = [name for name, path in (("dev", dev), ("test", test)) if not path]
        documents, sizes = _hold_out(documents, wanted, config.held_out)
        folder = _split(train, sizes, root)
        train, dev, test = folder / "train", dev or folder / "dev", test or folder / "test"
    return MonolingualCorpus("files", config.language, train, dev, test, documents, False, root)


def _documents(config: MonolingualConfig, text: Path) -> tuple[Document, ...]:
    n_lines = len(TextLines(text))
    if not config.documents:
        return (Document("all", n_lines),)
    documents = read_documents(config.documents)
    total = sum(document.n_lines for document in documents)
    if total != n_lines:
        raise ValueError(
            f"documents={config.documents} counts {total:,} lines, but {text} has {n_lines:,}: "
            "give the file that belongs to this text, or leave it out"
        )
    return documents


def _hold_out(
    documents: tuple[Document, ...], wanted: Sequence[str], held_out: int
) -> tuple[tuple[Document, ...], list[Document]]:
    """Hold out the end of a text; return the documents that are left, and name and number of lines of each part."""
    if held_out < 1:
        raise ValueError(f"held_out={held_out} leaves no {' and no '.join(wanted)} text: give at least 1")
    # a text may be cut where documents end, or anywhere if it is a single one
    ends = np.cumsum([document.n_lines for document in documents])
    places = ends if len(documents) > 1 else np.arange(ends[-1] + 1)
    cuts = [int(ends[-1])]
    for _ in wanted:
        cuts.insert(0, int(places[places <= cuts[0] - held_out].max(initial=0)))
    if 2 * cuts[0] < ends[-1]:
        raise ValueError(
            f"held_out={held_out} is too many of {ends[-1]:,} lines in {len(documents):,} documents, most of which are "
            "needed for training: lower held_out or give dev_text and test_text"
        )
    sizes = np.diff([0, *cuts]).tolist()
    left = documents[: np.count_nonzero(ends <= cuts[0])] or (Document(documents[0].name, cuts[0]),)
    return left, [Document(*part) for part in zip(["train", *wanted], sizes, strict=True)]


def _split(text: Path, parts: Sequence[Document], root: Path) -> Path:
    """Split a text into files, once for each content; return their folder."""
    folder = root / f"text-{_fingerprint([text], parts)}"
    if not folder.is_dir():
        lines = lines_of(text)
        with atomic_folder(folder) as draft:
            for name, size in parts:
                with (draft / name).open("w", encoding="utf-8", newline="\n") as file:
                    file.writelines(f"{line}\n" for line in islice(lines, size))
    return folder


def _fingerprint(files: Sequence[Path], documents: Sequence[Document]) -> str:
    hashes = [file_hash(path) for path in files]
    return hashlib.sha256(repr((hashes, [tuple(document) for document in documents])).encode()).hexdigest()[:16]
