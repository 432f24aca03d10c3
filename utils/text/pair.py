"""The tokenizers of source and target: a joint one, or one each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from utils.text import sentencepiece_tokenizer, word_tokenizer
from utils.text.sentencepiece_tokenizer import SentencePieceTokenizer
from utils.text.tokenizer import Lines, Tokenizer
from utils.text.word_tokenizer import WordTokenizer


@dataclass(frozen=True)
class TokenizerConfig:
    """How text is tokenised; always learned from training text alone.

    Args:
        kind: SentencePiece unigram or BPE, or whole words split by spaces.
        vocab_size: most pieces of each SentencePiece model, special tokens included (words: see min_freq).
        joint: one vocabulary for both languages (needed to tie source and target embeddings) or one each.
        character_coverage: share of the characters that get a piece of their own; the rest is <unk>.
        normalization: SentencePiece's rule. identity leaves the text unchanged, so that targets keep their full-width
            characters; nfkc and nmt_nfkc unify them, which changes what is generated and what BLEU compares.
        lowercase: lower-case text (words only).
        min_freq: how often a word must occur to be kept (words only).
        sampling: segment training text at random, again each epoch: for a unigram model the exponent alpha to which a
            segmentation's probability is raised before one is drawn (Kudo 2018; 0.2: far from the likeliest, 1: near
            it), for BPE the share of merges that are skipped (BPE-dropout, Provilkov et al. 2020; 0.1). 0 always
            takes the likeliest segmentation, as is always done for dev and test.

    Raises:
        ValueError: a character coverage that SentencePiece does not accept, or sampling that is out of range or of
            whole words.
    """

    kind: Literal["unigram", "bpe", "word"] = "unigram"
    vocab_size: int = 8000
    joint: bool = True
    character_coverage: float = 0.9995
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = "identity"
    lowercase: bool = False
    min_freq: int = 2
    sampling: float = 0.0

    def __post_init__(self) -> None:
        if not 0.98 <= self.character_coverage <= 1:
            raise ValueError(f"character_coverage={self.character_coverage}: SentencePiece takes 0.98 to 1")
        if not 0 <= self.sampling <= 1:
            raise ValueError(f"sampling={self.sampling} is not a share: give 0 (no sampling) to 1, such as 0.1")
        if self.lowercase and self.kind != "word":
            raise ValueError(
                f"lowercase=true needs kind=word: with kind={self.kind} give normalization nfkc_cf, or lower-cased text"
            )
        if self.sampling and self.kind == "word":
            raise ValueError(
                f"sampling={self.sampling} splits words into pieces, kind=word keeps them whole: "
                "set it to 0, or kind to unigram or bpe"
            )


class TokenizerPair(NamedTuple):
    """Source and target tokenizer; the same object twice when joint."""

    src: Tokenizer
    tgt: Tokenizer

    def save(self, folder: Path) -> None:
        """Write `tokenizer.*`, or `tokenizer_src.*` and `tokenizer_tgt.*`, into a folder."""
        if self.src is self.tgt:
            self.src.save(folder / "tokenizer")
        else:
            self.src.save(folder / "tokenizer_src")
            self.tgt.save(folder / "tokenizer_tgt")


def train_tokenizers(config: TokenizerConfig, src: Lines, tgt: Lines) -> TokenizerPair:
    """Learn the tokenizers from the two sides of the training text.

    Raises:
        ValueError: the text does not support `vocab_size` pieces.
    """
    if config.joint:
        both = train_tokenizer(config, _Joined(src, tgt))
        return TokenizerPair(both, both)
    return TokenizerPair(train_tokenizer(config, src), train_tokenizer(config, tgt))


class _Joined:
    """Lines of two texts, one after the other."""

    def __init__(self, first: Lines, second: Lines) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __iter__(self) -> Iterator[str]:
        return chain(self._first, self._second)


def train_tokenizer(config: TokenizerConfig, lines: Lines) -> Tokenizer:
    """Learn one tokenizer from lines of text; `joint` is ignored.

    Raises:
        ValueError: the text does not support `vocab_size` pieces.
    """
    if config.kind == "word":
        return WordTokenizer.train(lines, config.min_freq, config.lowercase)
    return SentencePieceTokenizer.train(
        lines, config.kind, config.vocab_size, config.character_coverage, config.normalization
    )


def load_tokenizers(folder: Path) -> TokenizerPair:
    """Read what `TokenizerPair.save` wrote.

    Raises:
        ValueError: there is no tokenizer.
    """
    if (both := _load(folder / "tokenizer")) is not None:
        return TokenizerPair(both, both)
    src, tgt = _load(folder / "tokenizer_src"), _load(folder / "tokenizer_tgt")
    if src is None or tgt is None:
        raise ValueError(f"no tokenizer in {folder}: give the folder of a training run")
    return TokenizerPair(src, tgt)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the one tokenizer of a folder: what `Tokenizer.save` wrote to `folder / "tokenizer"`.

    Raises:
        ValueError: there is no tokenizer, or there are two.
    """
    if (tokenizer := _load(folder / "tokenizer")) is None:
        raise ValueError(f"no single tokenizer in {folder}: give the folder of a run that learned from one language")
    return tokenizer


def _load(stem: Path) -> Tokenizer | None:
    pieces = stem.with_suffix(sentencepiece_tokenizer.SUFFIX)
    words = stem.with_suffix(word_tokenizer.SUFFIX)
    if pieces.exists():
        return SentencePieceTokenizer.load(pieces)
    return WordTokenizer.load(words) if words.exists() else None
