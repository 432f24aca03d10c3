"""Monolingual texts in document order: which one a run uses, how it is prepared, its token ids, and their segments."""

import hashlib
import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from config.data import DataConfig, MonolingualConfig, StreamConfig, TokenizerConfig
from const.corpora import CORPORA
from const.path import CORPUS
from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.command import Log
from utils.dataset.batch import AnyBatch, Epoch, Sampler
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
        if match := re.fullmatch(r"\s*(\S.*?)\s+([0-9]+)\s*", line):
            documents.append(Document(match[1], int(match[2])))
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
    documents, is_tokenized = _documents(config, train), pairs.data.is_tokenized
    return MonolingualCorpus(
        pairs.name, config.language, train, dev, test, documents, is_tokenized, root=root, rebuilt=pairs.rebuilt
    )


def _own_text(config: MonolingualConfig, root: Path) -> MonolingualCorpus:
    if config.archive:
        raise ValueError(f"archive={config.archive} is for published corpora ({', '.join(CORPORA)}): leave it out")
    train, dev, test = config.text, config.dev_text, config.test_text
    if not train:
        raise ValueError("corpus=files needs a training text: give text=FILE")
    for name, path in (("text", train), ("dev_text", dev), ("test_text", test)):
        if path:
            require_text(path, name)
    documents = _documents(config, train)
    if not (dev and test):
        lacking = [split for split, path in (("dev", dev), ("test", test)) if not path]
        documents, parts = _hold_out(documents, lacking, config.held_out)
        folder = root / f"text-{_fingerprint([train], parts)}"
        if not folder.is_dir():
            lines = lines_of(train)
            with atomic_folder(folder) as draft:
                for part in parts:
                    with (draft / part.name).open("w", encoding="utf-8", newline="\n") as file:
                        file.writelines(f"{line}\n" for line in islice(lines, part.n_lines))
        train, dev, test = folder / "train", dev or folder / "dev", test or folder / "test"
    return MonolingualCorpus("files", config.language, train, dev, test, documents, pre_tokenized=False, root=root)


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
    documents: tuple[Document, ...], splits: Sequence[str], held_out: int
) -> tuple[tuple[Document, ...], list[Document]]:
    """Hold out the end of a text; return the documents that are left, and name and number of lines of each part."""
    if held_out < 1:
        raise ValueError(f"held_out={held_out} leaves no {' and no '.join(splits)} text: give at least 1")
    # a text may be split where documents end, or anywhere if it is a single one
    ends = np.cumsum([document.n_lines for document in documents])
    places = ends if len(documents) > 1 else np.arange(ends[-1] + 1)
    bounds = [int(ends[-1])]
    for _ in splits:
        bounds.insert(0, int(places[places <= bounds[0] - held_out].max(initial=0)))
    if 2 * bounds[0] < ends[-1]:
        raise ValueError(
            f"held_out={held_out} is too many of {ends[-1]:,} lines in {len(documents):,} documents, most of which are "
            "needed for training: lower held_out or give dev_text and test_text"
        )
    left = documents[: np.count_nonzero(ends <= bounds[0])] or (Document(documents[0].name, bounds[0]),)
    return left, [Document(*part) for part in zip(["train", *splits], np.diff([0, *bounds]).tolist(), strict=True)]


def _fingerprint(files: Sequence[Path], documents: Sequence[Document]) -> str:
    hashes = [file_hash(path) for path in files]
    return hashlib.sha256(repr((hashes, [tuple(document) for document in documents])).encode()).hexdigest()[:16]


# Documents as parallel streams, read segment by segment, for recurrent language models (Dai et al. 2019).

NO_DOCUMENT = -1  # the document of padding


@dataclass(frozen=True, eq=False)
class SegmentBatch(AnyBatch):
    """A segment of each of B streams: `<s> s1 </s> s2 </s> ...` of one document after another, padded at the end.

    The last </s> of a document is predicted but not read: the next document begins in its place.
    """

    ids: Int[Tensor, "B T"]
    target: Int[Tensor, "B T"]  # the next token
    document: Int[Tensor, "B T"]  # a number unique to the document in this epoch; -1 for padding

    @property
    def target_tokens(self) -> int:
        """Number of tokens to predict; read it before the batch goes to a device."""
        return int((self.target != PAD_ID).sum())


def _segments(text: DocumentTokens, config: StreamConfig, random: np.random.Generator | None) -> Epoch:
    """Deal a text to streams, all of which are concatenated as places 0, 1, ..., and return their segments as batches.

    With n = `config.accumulate`, batch i is segment `i // n` of the streams of group `i % n`: a row continues from
    where batch `i - n` left it; at the end, some may be only padding. Documents are dealt to the streams so that all
    are about equally long, and documents that are longer than a stream are split at sentence ends into documents of
    their own. Without a generator, documents keep their order.
    """
    n_rows = config.n_streams * config.accumulate
    ends = (text.lengths + 1).cumsum(dtype=np.int64)  # with </s>
    bounds = _pieces(text.bounds, ends, int(ends[-1]) / n_rows)
    piece_lengths = np.diff(np.concatenate([[0], ends])[bounds])
    streams = _dealt(piece_lengths, n_rows, random)
    pieces = np.concatenate(streams)
    n_sentences = np.diff(bounds)[pieces]
    firsts = n_sentences.cumsum() - n_sentences  # where each piece's sentences begin in this order
    sentences = np.arange(text.n_sentences) + np.repeat(bounds[:-1][pieces] - firsts, n_sentences)
    ends = (text.lengths[sentences] + 1).cumsum(dtype=np.int64)  # of each sentence, in places
    document = np.repeat(np.arange(len(pieces)), n_sentences)
    before = np.full(text.n_sentences, EOS_ID)  # what is read before a sentence
    before[firsts] = BOS_ID
    lengths = np.array([piece_lengths[stream].sum() for stream in streams])
    begins = lengths.cumsum() - lengths

    def window(i: int) -> NDArray[np.int64]:
        """Return the places where each row of batch i begins and ends."""
        segment, group = divmod(i, config.accumulate)
        rows = slice(group * config.n_streams, (group + 1) * config.n_streams)
        read = np.array([segment, segment + 1]) * config.segment_length
        return begins[rows, None] + np.minimum(lengths[rows, None], read)

    def tokens(place: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return token, next token and document of some places."""
        number = np.searchsorted(ends, place, "right")
        needed, of = np.unique(number, return_inverse=True)
        ids, n_ids = text.gather(sentences[needed])
        within = place - (ends[needed] - n_ids - 1)[of]
        first = (n_ids.cumsum() - n_ids)[of]
        # where </s> is due, the index is only kept in range
        target = np.where(within < n_ids[of], ids[np.minimum(first + within, len(ids) - 1)], EOS_ID)
        token = np.where(within > 0, ids[np.maximum(first + within - 1, 0)], before[number])
        return token, target, document[number]

    def batch(i: int) -> SegmentBatch:
        begin, end = np.split(window(i), 2, axis=1)
        place = begin + np.arange(config.segment_length)
        is_text = place < end
        parts = [np.full(place.shape, padding, np.int64) for padding in (PAD_ID, PAD_ID, NO_DOCUMENT)]
        if is_text.any():
            for part, content in zip(parts, tokens(place[is_text]), strict=True):
                part[is_text] = content
        return SegmentBatch(*map(torch.from_numpy, parts))

    n_segments = -(-int(lengths.max()) // config.segment_length)
    positions = np.full(n_segments * config.accumulate, config.n_streams * config.segment_length)
    return Epoch(positions, int(lengths.sum()), batch, lambda i: int(np.diff(window(i)).sum()))


def _pieces(bounds: NDArray[np.int64], ends: NDArray[np.int64], max_tokens: float) -> NDArray[np.int64]:
    """Return the bounds of documents, those of more than `max_tokens` being split into parts of similar length."""
    tokens = np.concatenate([np.zeros(1, np.int64), ends])
    begin, lengths = tokens[bounds[:-1]], np.diff(tokens[bounds])
    n_parts = np.ceil(lengths / max_tokens).astype(np.int64)
    inner = [
        np.searchsorted(tokens, begin[i] + lengths[i] * np.arange(1, n_parts[i]) / n_parts[i])
        for i in np.flatnonzero(n_parts > 1)
    ]
    return np.unique(np.concatenate([bounds, *inner]))  # a part without sentences is dropped


def _dealt(lengths: NDArray[np.int64], n_streams: int, random: np.random.Generator | None) -> list[NDArray[np.int64]]:
    """Deal the documents to the streams: the longest first, to the shortest stream (Graham 1969), then shuffled."""
    order = np.arange(len(lengths)) if random is None else random.permutation(len(lengths))
    streams: list[list[int]] = [[] for _ in range(n_streams)]
    shortest = [(0, stream) for stream in range(n_streams)]
    for document in order[np.argsort(-lengths[order], kind="stable")].tolist():
        length, stream = heapq.heappop(shortest)
        streams[stream].append(document)
        heapq.heappush(shortest, (length + int(lengths[document]), stream))
    dealt = [np.sort(np.array(stream, np.int64)) for stream in streams]
    return dealt if random is None else [random.permutation(dealt[i]) for i in random.permutation(n_streams)]


class StreamSampler(Sampler[SegmentBatch]):
    """Makes epochs of segments, their documents in an order by `seed`."""

    def __init__(self, text: DocumentTokens, config: StreamConfig, seed: int = 0) -> None:
        super().__init__(lambda n: _segments(text, config, np.random.default_rng((seed, n))))
        self._text, self._config = text, config

    def all(self) -> list[SegmentBatch]:
        """Return the whole text as one stream, in order, for validation and testing."""
        return list(_segments(self._text, StreamConfig(1, self._config.segment_length), None))
