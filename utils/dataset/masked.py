"""Examples for masked-language models with next-sentence prediction (Devlin et al. 2019, 3.1)."""

import re
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from config.data import MaskingConfig
from const.token import BOS_ID, PAD_ID, SPECIAL_TOKENS
from utils.dataset.batch import Buckets, Sampler, fill
from utils.dataset.monolingual import DocumentTokens
from utils.text.language import HAN, KANA
from utils.text.tokenizer import Tokenizer, every_token

# Counter-based random numbers: the same whichever process draws them, and in whatever order.
#
# SplitMix64 (Steele et al. 2014) as a hash, as in Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

_GAMMA, _FIRST, _SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(key: tuple[int | str, ...], *counters: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return a number from [0, 1) for each element of the counters, which are broadcast together.

    Args:
        key: key of the draw: seed, epoch, what is drawn.
        counters: not negative, such as an example's number and a place in it.
    """
    digest = blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest()
    state = np.frombuffer(digest, np.uint64)
    for counter in counters:
        state = _mixed(state + np.asarray(counter).astype(np.uint64) * _GAMMA)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


# Which pieces make up a word, for whole-word masking (Devlin et al.'s later release).

_MARK = "▁"
# kana and kanji, their punctuation and full-width letters are written without spaces between words
_UNSPACED = re.compile(f"[{KANA}{HAN}\u3000-\u303f\uff00-\uffef]")


class WholeWords:
    """Finds words among ids: words begin at a ▁; special tokens and pieces of unspaced scripts are words by themselves.

    Where no piece of the vocabulary has a ▁, the tokens are already words.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        pieces = every_token(tokenizer)
        self._marked = np.array([piece.startswith(_MARK) for piece in pieces])
        self._alone = np.array([_UNSPACED.search(piece) is not None for piece in pieces]) | (not self._marked.any())
        self._alone[: len(SPECIAL_TOKENS)] = True

    def numbers(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of each id's word in a sequence, counted from 0."""
        alone = self._alone[ids]
        begins = self._marked[ids] | alone
        begins[1:] |= alone[:-1]
        begins[:1] = False  # the first id belongs to word 0, whatever it is
        return begins.cumsum()


MASKED, REPLACED = 0.8, 0.1  # shares of the predicted tokens; the rest is left unchanged
TRUE_SUCCESSORS = 0.5  # share of the second sentences


class MaskedBatch(NamedTuple):
    """B examples `<s> A </s> B </s>`, or `<s> A </s>`, padded at the end."""

    ids: Int[Tensor, "B L"]  # with masks
    segments: Int[Tensor, "B L"]  # 0: up to the first </s>, and padding; 1: B and its </s>
    target: Int[Tensor, "B L"]  # the original token where one is predicted, <pad> elsewhere
    follows: Int[Tensor, " B"]  # 1: B is the sentence after A; 0: it is not; empty where there is no B

    @property
    def target_tokens(self) -> int:
        """Number of tokens to predict; read it before the batch goes to a device."""
        return int((self.target != PAD_ID).sum())

    @property
    def sides(self) -> dict[str, Int[Tensor, "B L"]]:
        """The ids, the only side."""
        return {"tokens": self.ids}

    def to(self, device: torch.device) -> "MaskedBatch":
        """Copy to a device; from pinned memory without waiting."""
        return MaskedBatch(*(part.to(device, non_blocking=True) for part in self))


class _Partners(NamedTuple):
    """The sentences A and B of each example, how many tokens of each are read, and whether B follows A."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    n_first: NDArray[np.int64]
    n_second: NDArray[np.int64]
    follows: NDArray[np.bool_]

    def of(self, rows: NDArray[np.integer]) -> "_Partners":
        """Return the partners of some examples."""
        return _Partners(*(part[rows] for part in self))


class MaskedEpoch(Buckets[MaskedBatch]):
    """The batches of masked examples.

    Each sentence that has a successor in its document is an A once; without next-sentence prediction, every sentence.
    A wrong B is from another document or, where there is only one, any sentence but A and its successor.
    Which tokens are hidden, and by what, depends only on seed, epoch and A.

    Args:
        text: the sentences.
        tokenizer: the tokenizer that made their ids; its length is the id of the mask.
        config: what is hidden.
        max_tokens: longer examples, special tokens included, are truncated at the end of their longer sentence; None:
            none are.
        key: seed and number of the epoch.
    """

    def __init__(
        self,
        text: DocumentTokens,
        tokenizer: Tokenizer,
        config: MaskingConfig,
        tokens_per_batch: int,
        max_tokens: int | None,
        multiple: int,
        key: tuple[int, int],
        sentences_per_batch: int | None = None,
    ) -> None:
        self._text, self._config, self._key = text, config, key
        self._mask_id = len(tokenizer)
        self._words = WholeWords(tokenizer) if config.whole_words else None
        random = np.random.default_rng(key)
        self._n_special = 3 if config.next_sentence else 2
        if max_tokens is not None and max_tokens < (least := 2 * self._n_special - 1):
            raise ValueError(f"max_tokens={max_tokens} leaves no room for an example: give at least {least}")
        if config.next_sentence:
            first, second, follows = _next_sentences(text, random)
        else:
            first = second = np.arange(text.n_sentences)  # the second is not read
            follows = np.zeros(len(first), bool)
        lengths = text.lengths.astype(np.int64)
        n_first, n_second = lengths[first], lengths[second] * config.next_sentence
        if max_tokens is not None:
            room = max_tokens - self._n_special
            n_second = np.minimum(n_second, np.maximum(room - n_first, room // 2))
            n_first = np.minimum(n_first, room - n_second)
        self._partners = _Partners(first, second, n_first, n_second, follows)
        lengths = n_first + n_second + self._n_special
        super().__init__([lengths], tokens_per_batch, multiple, random, sentences_per_batch)

    def rows(self, i: int) -> NDArray[np.int64]:
        """Return the sentences that are the A of batch i."""
        return self._partners.first[self.bucket(i)]

    def target_tokens(self, i: int) -> int:
        """Return the number of tokens that batch i predicts; the batch is made only where whole words decide it."""
        if self._words is not None:
            return self[i].target_tokens
        partners = self._partners.of(self.bucket(i))
        return int(self._n_predicted(partners.n_first + partners.n_second).sum())

    def _n_predicted(self, n_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens are predicted in examples of `n_tokens` tokens."""
        return np.maximum(np.rint(self._config.rate * n_tokens).astype(np.int64), 1)

    def __getitem__(self, i: int) -> MaskedBatch:
        partners = self._partners.of(self.bucket(i))
        first, second, n_first, n_second, follows = partners
        ids = np.full((len(first), self.width(i)), PAD_ID, np.int64)
        column = np.arange(ids.shape[1])
        ids[:, 0] = BOS_ID
        fill(ids, 1, *self._text.gather(first), n_first)
        segments = np.zeros_like(ids)
        if self._config.next_sentence:
            fill(ids, 2 + n_first, *self._text.gather(second), n_second)
            begin, end = (2 + n_first)[:, None], (3 + n_first + n_second)[:, None]
            segments[(begin <= column) & (column < end)] = 1
        read, target = self._hidden(ids, first, n_first, n_second)
        label = torch.from_numpy(follows.astype(np.int64) if self._config.next_sentence else np.empty(0, np.int64))
        return MaskedBatch(torch.from_numpy(read), torch.from_numpy(segments), torch.from_numpy(target), label)

    def _hidden(
        self,
        ids: NDArray[np.int64],
        example: NDArray[np.int64],
        n_first: NDArray[np.int64],
        n_second: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what is read instead of the ids, and what is predicted."""
        column = np.arange(ids.shape[1])
        behind = (1 + n_first)[:, None]  # the place of the first </s>
        is_text = (column > 0) & (column < behind + 1 + n_second[:, None]) & (column != behind)
        row, place = is_text.nonzero()
        word = np.arange(ids.size) if self._words is None else self._words.numbers(ids.ravel())
        chosen = self._chosen(word.reshape(ids.shape)[is_text], row, example, place, n_first + n_second)
        row, place = row[chosen], place[chosen]
        target = np.full_like(ids, PAD_ID)
        target[row, place] = ids[row, place]
        how = uniform((*self._key, "how"), example[row], place)
        n_special = len(SPECIAL_TOKENS)
        other = n_special + uniform((*self._key, "other"), example[row], place) * (self._mask_id - n_special)
        read = ids.copy()
        read[row, place] = np.where(
            how < MASKED, self._mask_id, np.where(how < MASKED + REPLACED, other.astype(np.int64), ids[row, place])
        )
        return read, target

    def _chosen(
        self,
        word: NDArray[np.int64],
        row: NDArray[np.int64],
        example: NDArray[np.int64],
        place: NDArray[np.int64],
        n_tokens: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Choose the tokens to predict: words in random order while they fit, and at least one in each row."""
        _, begins, of_token, sizes = np.unique(word, return_index=True, return_inverse=True, return_counts=True)
        chance = uniform((*self._key, "which"), example[row[begins]], place[begins])
        order = np.lexsort((chance, row[begins]))
        taken = np.zeros(len(begins), bool)
        ordered, size = order.tolist(), sizes[order].tolist()
        end = 0
        for n_words, left in zip(np.bincount(row[begins]).tolist(), self._n_predicted(n_tokens).tolist(), strict=True):
            begin, end = end, end + n_words
            room = left
            for i in range(begin, end):
                if size[i] <= room:
                    taken[ordered[i]] = True
                    room -= size[i]
                    if not room:
                        break
            if room == left:  # no word is short enough
                taken[ordered[begin]] = True
        return taken[of_token]


def _next_sentences(
    text: DocumentTokens, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return each sentence that has a successor, the sentence to put after it, and whether that is the successor."""
    has_successor = np.ones(text.n_sentences, bool)
    has_successor[text.bounds[1:] - 1] = False
    first = np.flatnonzero(has_successor)
    if len(text.bounds) > 2:
        document = text.document[first]
        begin, end = text.bounds[document], text.bounds[document + 1]
    else:
        begin, end = first, first + 2
    elsewhere = text.n_sentences - (end - begin)
    if not len(first) or elsewhere.min() < 1:
        raise ValueError(
            f"{text.n_sentences:,} sentences in {len(text.bounds) - 1:,} documents cannot give both pairs that "
            "follow and pairs that do not: give more text, or set next_sentence to false"
        )
    follows = random.random(len(first)) < TRUE_SUCCESSORS
    other = random.integers(elsewhere)
    other += np.where(other < begin, 0, end - begin)
    return first, np.where(follows, first + 1, other), follows


class MaskedSampler(Sampler[MaskedEpoch]):
    """Makes epochs of masked examples; arguments as in `MaskedEpoch`."""

    def __init__(
        self,
        text: DocumentTokens,
        tokenizer: Tokenizer,
        config: MaskingConfig,
        tokens_per_batch: int,
        max_tokens: int | None = None,
        seed: int = 0,
        multiple: int = 1,
        sentences_per_batch: int | None = None,
    ) -> None:
        bounds = tokens_per_batch, max_tokens, multiple
        super().__init__(lambda n: MaskedEpoch(text, tokenizer, config, *bounds, (seed, n), sentences_per_batch))
