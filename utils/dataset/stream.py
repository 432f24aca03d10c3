"""Documents as parallel streams, read segment by segment, for recurrent language models (Dai et al. 2019)."""

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from config.data import StreamConfig
from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.batch import AnyBatch, Epoch, Sampler
from utils.dataset.monolingual import DocumentTokens

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


class _Streams:
    """A text dealt to streams, all of which are concatenated as places 0, 1, ...

    With n = `config.accumulate`, batch i is segment `i // n` of the streams of group `i % n`: a row continues from
    where batch `i - n` left it. Documents are dealt to the streams so that all are about equally long, and documents
    that are longer than a stream are split at sentence ends into documents of their own.
    Without a generator, documents keep their order.
    """

    def __init__(self, text: DocumentTokens, config: StreamConfig, random: np.random.Generator | None) -> None:
        self._text, self._config = text, config
        n_rows = config.n_streams * config.accumulate
        ends = (text.lengths + 1).cumsum(dtype=np.int64)  # with </s>
        bounds = _pieces(text.bounds, ends, int(ends[-1]) / n_rows)
        lengths = np.diff(np.concatenate([[0], ends])[bounds])
        streams = _dealt(lengths, n_rows, random)
        pieces = np.concatenate(streams)
        n_sentences = np.diff(bounds)[pieces]
        begins = n_sentences.cumsum() - n_sentences  # where each piece's sentences begin in this order
        self._sentences = np.arange(text.n_sentences) + np.repeat(bounds[:-1][pieces] - begins, n_sentences)
        self._document = np.repeat(np.arange(len(pieces)), n_sentences)
        self._is_first = np.zeros(text.n_sentences, bool)
        self._is_first[begins] = True
        self._ends = (text.lengths[self._sentences] + 1).cumsum(dtype=np.int64)  # of each sentence, in places
        self._lengths = np.array([lengths[stream].sum() for stream in streams])
        self._begins = self._lengths.cumsum() - self._lengths

    def epoch(self) -> Epoch:
        """Return the batches: segments times groups; at the end of an epoch some may be only padding."""
        config = self._config
        n_segments = -(-int(self._lengths.max()) // config.segment_length)
        positions = np.full(n_segments * config.accumulate, config.n_streams * config.segment_length)
        return Epoch(positions, int(self._lengths.sum()), self._batch, self._target_tokens)

    def _target_tokens(self, i: int) -> int:
        begin, end = self._window(i)
        return int((end - begin).sum())

    def _window(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places where each row of batch i begins and ends."""
        segment, group = divmod(i, self._config.accumulate)
        rows = slice(group * self._config.n_streams, (group + 1) * self._config.n_streams)
        read = segment * self._config.segment_length
        begin, end = (
            self._begins[rows] + np.minimum(self._lengths[rows], n) for n in (read, read + self._config.segment_length)
        )
        return begin, end

    def _batch(self, i: int) -> SegmentBatch:
        begin, end = self._window(i)
        place = begin[:, None] + np.arange(self._config.segment_length)
        is_text = place < end[:, None]
        ids, target = (np.full(place.shape, PAD_ID, np.int64) for _ in range(2))
        document = np.full(place.shape, NO_DOCUMENT, np.int64)
        if is_text.any():
            ids[is_text], target[is_text], document[is_text] = self._read(place[is_text])
        return SegmentBatch(torch.from_numpy(ids), torch.from_numpy(target), torch.from_numpy(document))

    def _read(self, place: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return token, next token and document of some places."""
        number = np.searchsorted(self._ends, place, "right")
        wanted, of = np.unique(number, return_inverse=True)
        ids, lengths = self._text.gather(self._sentences[wanted])
        within = place - (self._ends[wanted] - lengths - 1)[of]
        begins = (lengths.cumsum() - lengths)[of]
        # where </s> is due, the index is only kept in range
        target = np.where(within < lengths[of], ids[np.minimum(begins + within, len(ids) - 1)], EOS_ID)
        before = np.where(self._is_first[number], BOS_ID, EOS_ID)
        token = np.where(within > 0, ids[np.maximum(begins + within - 1, 0)], before)
        return token, target, self._document[number]


def _pieces(bounds: NDArray[np.int64], ends: NDArray[np.int64], most: float) -> NDArray[np.int64]:
    """Return the bounds of documents, those of more than `most` tokens being split into parts of similar length."""
    tokens = np.concatenate([np.zeros(1, np.int64), ends])
    begin, lengths = tokens[bounds[:-1]], np.diff(tokens[bounds])
    n_parts = np.ceil(lengths / most).astype(np.int64)
    cuts = [
        np.searchsorted(tokens, begin[i] + lengths[i] * np.arange(1, n_parts[i]) / n_parts[i])
        for i in np.flatnonzero(n_parts > 1)
    ]
    return np.unique(np.concatenate([bounds, *cuts]))  # a part without sentences is dropped


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
        super().__init__(lambda n: _Streams(text, config, np.random.default_rng((seed, n))).epoch())
        self._text, self._config = text, config

    def all(self) -> list[SegmentBatch]:
        """Return the whole text as one stream, in order, for validation and testing."""
        return list(_Streams(self._text, StreamConfig(1, self._config.segment_length), None).epoch())
