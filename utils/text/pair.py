"""The tokenizers of source and target: a joint one, or one each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from utils.file import write_text
from utils.text import sentencepiece_tokenizer, word_tokenizer
from utils.text.sentencepiece_tokenizer import SentencePieceTokenizer
from utils.text.tokenizer import Lines, Tokenizer, id_of_each
from utils.text.word_tokenizer import WordTokenizer

_TAG = "tokenizer_tag.txt"  # begins every source


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
        tag: begin each source with a token that names the language to translate into, such as <2en>, so that one
            network can learn both directions (see `DataConfig.both_directions`). A joint vocabulary of pieces only.

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
    tag: bool = False

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
        if self.tag and (self.kind == "word" or not self.joint):
            raise ValueError(
                f"tag=true is a piece of a joint vocabulary, but kind={self.kind} and joint={self.joint}: give kind "
                "unigram or bpe, and joint true"
            )


class TokenizerPair(NamedTuple):
    """Source and target tokenizer; the same object twice when joint, or the source's a `TaggedTokenizer` of it."""

    src: Tokenizer
    tgt: Tokenizer

    def into(self, language: str) -> "TokenizerPair":
        """Return a joint pair whose sources begin with the tag of the language to translate into.

        Raises:
            ValueError: the vocabulary has no such tag.
        """
        return TokenizerPair(TaggedTokenizer(self.tgt, language_tag(language)), self.tgt)

    def save(self, folder: Path) -> None:
        """Write `tokenizer.*`, or `tokenizer_src.*` and `tokenizer_tgt.*`, into a folder."""
        if isinstance(self.src, TaggedTokenizer):
            write_text(folder / _TAG, self.src.tag)
        if self.src is self.tgt or isinstance(self.src, TaggedTokenizer):
            self.tgt.save(folder / "tokenizer")
        else:
            self.src.save(folder / "tokenizer_src")
            self.tgt.save(folder / "tokenizer_tgt")


def language_tag(language: str) -> str:
    """Return the token that asks for a translation into this language."""
    return f"<2{language}>"


class TaggedTokenizer:
    """A tokenizer of sources that begin with a tag; an empty text stays empty.

    Args:
        tokenizer: encodes the text.
        tag: one of its tokens.

    Raises:
        ValueError: it is none.
    """

    def __init__(self, tokenizer: Tokenizer, tag: str) -> None:
        ids = id_of_each(tokenizer)
        if tag not in ids:
            raise ValueError(f"the vocabulary has no {tag}: train one with --tokenizer.tag true in this direction")
        self.tokenizer, self.tag, self._id = tokenizer, tag, ids[tag]

    def __len__(self) -> int:
        """Size of the vocabulary, special tokens included."""
        return len(self.tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, the tag first."""
        return self._tagged(self.tokenizer.encode(texts))

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """Return ids of each text, segmented at random, the tag first."""
        return self._tagged(self.tokenizer.sample(texts, rate, seed))

    def _tagged(self, encoded: list[list[int]]) -> list[list[int]]:
        return [[self._id, *ids] if ids else ids for ids in encoded]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence, without the tag."""
        return self.tokenizer.decode(ids)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the individual tokens, the tag included."""
        return self.tokenizer.tokens(ids)

    def save(self, path: Path) -> None:
        """Write the tokenizer; `TokenizerPair.save` adds the tag."""
        self.tokenizer.save(path)


def train_tokenizers(
    config: TokenizerConfig, src: Lines, tgt: Lines, languages: tuple[str, str] = ("", "")
) -> TokenizerPair:
    """Learn the tokenizers from the two sides of the training text.

    Args:
        config: what to learn.
        src: the source text.
        tgt: the target text.
        languages: of source and target; the vocabulary has a tag for each if `config.tag` is set.

    Raises:
        ValueError: the text does not support `vocab_size` pieces.
    """
    if config.joint:
        both = train_tokenizer(config, _Joined(src, tgt), sorted(map(language_tag, languages)) if config.tag else ())
        pair = TokenizerPair(both, both)
        return pair.into(languages[1]) if config.tag else pair
    return TokenizerPair(train_tokenizer(config, src), train_tokenizer(config, tgt))


class _Joined:
    """Lines of two texts, one after the other."""

    def __init__(self, first: Lines, second: Lines) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __iter__(self) -> Iterator[str]:
        return chain(self._first, self._second)


def train_tokenizer(config: TokenizerConfig, lines: Lines, tags: Sequence[str] = ()) -> Tokenizer:
    """Learn one tokenizer from lines of text; `joint` is ignored. Tags are tokens that no text is encoded to.

    Raises:
        ValueError: the text does not support `vocab_size` pieces.
    """
    if config.kind == "word":
        return WordTokenizer.train(lines, config.min_freq, config.lowercase)
    return SentencePieceTokenizer.train(
        lines, config.kind, config.vocab_size, config.character_coverage, config.normalization, tags
    )


def load_tokenizers(folder: Path) -> TokenizerPair:
    """Read what `TokenizerPair.save` wrote.

    Raises:
        ValueError: there is no tokenizer.
    """
    if (both := _load(folder / "tokenizer")) is not None:
        tag = folder / _TAG
        if tag.is_file():
            return TokenizerPair(TaggedTokenizer(both, tag.read_text(encoding="utf-8").strip()), both)
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
