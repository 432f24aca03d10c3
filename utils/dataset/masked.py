"""Examples for masked-language models with next-sentence prediction (Devlin et al. 2019, 3.1)."""

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from config.data import MaskingConfig
from const.token import PAD_ID, SPECIAL_TOKENS
from utils.dataset.batch import AnyBatch, Examples, fill, framed
from utils.dataset.monolingual import DocumentTokens
from utils.text.language import HAN, KANA
from utils.text.tokenizer import Tokenizer, every_token

# Counter-based random numbers: the same whichever process draws them, and in whatever order.
#
# SplitMix64 (Steele et al. 2014) as a hash, as in Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

_GAMMA, _FIRST, _SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniform(key: tuple[int | str, ...], *counters: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return a number from [0, 1) for each element of the counters, which are broadcast together.

    The key says what is drawn, such as seed and epoch; counters are not negative: an example's number, a place in it.
    """
    digest = blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest()
    state = np.frombuffer(digest, np.uint64)
    for counter in counters:
        x = state + np.asarray(counter).astype(np.uint64) * _GAMMA + _GAMMA
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        state = x ^ (x >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


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


@dataclass(frozen=True, eq=False)
class MaskedBatch(AnyBatch):
    """B examples `<s> A </s> B </s>`, or `<s> A </s>`, padded at the end."""

    ids: Int[Tensor, "B L"]  # with masks
    segments: Int[Tensor, "B L"]  # 0: up to the first </s>, and padding; 1: B and its </s>
    target: Int[Tensor, "B L"]  # the original token where one is predicted, <pad> elsewhere
    follows: Int[Tensor, " B"]  # 1: B is the sentence after A; 0: it is not; empty where there is no B

    @property
    def target_tokens(self) -> int:
        """Number of tokens to predict; read it before the batch goes to a device."""
        return int((self.target != PAD_ID).sum())


class Masking:
    """What is masked in examples of an epoch: it depends only on its key, the number of A and the places in it.

    The key is seed and number of the epoch; the length of the tokenizer is the id of the mask.
    """

    def __init__(self, tokenizer: Tokenizer, config: MaskingConfig, key: tuple[int, int]) -> None:
        self._rate, self._key, self._mask_id = config.rate, key, len(tokenizer)
        self.words = WholeWords(tokenizer) if config.whole_words else None

    def n_predicted(self, n_tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens are predicted in examples of `n_tokens` tokens; whole words may be fewer or more."""
        return np.maximum(np.rint(self._rate * n_tokens).astype(np.int64), 1)

    def mask(
        self, ids: NDArray[np.int64], is_text: NDArray[np.bool_], example: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what is read instead of the ids, and what is predicted."""
        word = np.arange(ids.size) if self.words is None else self.words.numbers(ids.ravel())
        row, place = self._chosen(word.reshape(ids.shape), is_text, example)
        target = np.full_like(ids, PAD_ID)
        target[row, place] = ids[row, place]
        draw = uniform((*self._key, "how"), example[row], place)
        n_special = len(SPECIAL_TOKENS)
        other = n_special + uniform((*self._key, "other"), example[row], place) * (self._mask_id - n_special)
        choices = self._mask_id, other.astype(np.int64), ids[row, place]
        read = ids.copy()
        read[row, place] = np.select([draw < MASKED, draw < MASKED + REPLACED], choices[:2], choices[2])
        return read, target

    def _chosen(
        self, word: NDArray[np.int64], is_text: NDArray[np.bool_], example: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Choose rows and places to predict: words in random order while they fit, and at least one in each row."""
        row, place = is_text.nonzero()
        _, begins, of_token, sizes = np.unique(
            word[is_text], return_index=True, return_inverse=True, return_counts=True
        )
        chance = uniform((*self._key, "which"), example[row[begins]], place[begins])
        order = np.lexsort((chance, row[begins]))
        in_row = row[begins][order]
        shares = self.n_predicted(is_text.sum(1))
        left, taken = shares.tolist(), np.zeros(len(begins), bool)
        for i, size, its_row in zip(order.tolist(), sizes[order].tolist(), in_row.tolist(), strict=True):
            if size <= left[its_row]:
                taken[i] = True
                left[its_row] -= size
        too_long = np.flatnonzero(shares == left)  # no word of theirs fits
        taken[order[np.searchsorted(in_row, too_long)]] = True
        chosen = taken[of_token]
        return row[chosen], place[chosen]


class MaskedText(NamedTuple):
    """A text, the tokenizer that made its ids, and how it is masked."""

    text: DocumentTokens
    tokenizer: Tokenizer
    config: MaskingConfig


def masked_examples(
    masked: MaskedText, max_tokens: int | None, key: tuple[int, int], random: np.random.Generator
) -> Examples:
    """Return the examples of a text in an epoch.

    Each sentence that has a successor in its document is an A once; without next-sentence prediction, every sentence.
    A wrong B is from another document or, where there is only one, any sentence but A and its successor. Longer
    examples than `max_tokens`, special tokens included, are truncated at the end of their longer sentence.
    """
    text, tokenizer, config = masked
    masking, next_sentence = Masking(tokenizer, config, key), config.next_sentence
    n_special = 3 if next_sentence else 2
    if max_tokens is not None and max_tokens < (shortest := 2 * n_special - 1):
        raise ValueError(f"max_tokens={max_tokens} leaves no room for an example: give at least {shortest}")
    if next_sentence:
        first, second, follows = _next_sentences(text, random)
    else:
        first = second = np.arange(text.n_sentences)  # the second is not read
        follows = np.empty(0, bool)
    lengths = text.lengths.astype(np.int64)
    n_first, n_second = lengths[first], lengths[second] * next_sentence
    if max_tokens is not None:
        room = max_tokens - n_special
        n_second = np.minimum(n_second, np.maximum(room - n_first, room // 2))
        n_first = np.minimum(n_first, room - n_second)

    def make(rows: NDArray[np.integer], widths: list[int]) -> MaskedBatch:
        ids = framed(*text.gather(first[rows]), n_first[rows], True, *widths)
        column, middle = np.arange(*widths), 1 + n_first[rows]  # of the first </s>
        if next_sentence:
            fill(ids, 1 + middle, *text.gather(second[rows]), n_second[rows])
        middle = middle[:, None]
        end = middle + next_sentence * (1 + n_second[rows])[:, None]
        is_text = (column > 0) & (column < end) & (column != middle)
        read, target = masking.mask(ids, is_text, first[rows])
        segments = ((middle < column) & (column <= end)).astype(np.int64)
        label = follows[rows].astype(np.int64) if next_sentence else follows.astype(np.int64)
        return MaskedBatch(*map(torch.from_numpy, (read, segments, target, label)))

    def target_tokens(rows: NDArray[np.integer]) -> int:
        if masking.words is not None:  # they decide it
            return make(rows, [int((n_first + n_second)[rows].max()) + n_special]).target_tokens
        return int(masking.n_predicted((n_first + n_second)[rows]).sum())

    return Examples([n_first + n_second + n_special], make, target_tokens)


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
