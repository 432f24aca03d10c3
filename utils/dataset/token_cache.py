"""Token ids of a corpus, encoded once and memory-mapped ever after."""

import hashlib
import json
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from const.path import CORPUS
from utils.dataset.cleaning import clean
from utils.dataset.corpus import Corpus, DataConfig
from utils.dataset.parallel_text import ParallelFiles, ParallelText, read_parallel
from utils.dataset.token_array import TokenArray, TokenPairs
from utils.file import atomic_folder
from utils.text.pair import TokenizerConfig, TokenizerPair, load_tokenizers, train_tokenizers

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
_FORMAT = 1  # counts up when what lies in the cache changes


def _key(*parts: object) -> str:
    text = json.dumps([_FORMAT, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _written(tokenizers: TokenizerPair) -> dict[str, str]:
    """All that tokenizers are: the hashes of what they save. Equal pieces can still cut a text differently."""
    with TemporaryDirectory() as folder:
        tokenizers.save(Path(folder))
        return {file.name: hashlib.blake2b(file.read_bytes()).hexdigest() for file in Path(folder).iterdir()}


def cached_tokenizers(
    corpus: Corpus, data: DataConfig, config: TokenizerConfig, say: Callable[[str], None], root: Path = CORPUS
) -> TokenizerPair:
    """The tokenizers of a corpus, learned from its cleaned training text at the first call.

    Args:
        corpus: what to learn from.
        data: how it is cleaned.
        config: what to learn.
        say: is told what takes time.
        root: where caches are kept.

    Raises:
        ValueError: the text cannot give the vocabulary that is asked for.
    """
    key = _key(corpus.fingerprint(), asdict(data.clean), asdict(config))
    folder = root / "cache" / f"{corpus.name}-tokenizer-{key}"
    if not folder.exists():
        text, _ = clean(read_parallel(corpus.train), data.clean)
        say(f"Learning the vocabulary ({config.kind}) from {len(text):,} pairs: once, a minute for a large corpus")
        with atomic_folder(folder) as draft:
            train_tokenizers(config, text.src, text.tgt).save(draft)
    return load_tokenizers(folder)


def _text(corpus: Corpus, split: Split, data: DataConfig, say: Callable[[str], None]) -> ParallelText:
    files: ParallelFiles = getattr(corpus, split)
    if split != "train":
        return read_parallel(files)
    text, report = clean(read_parallel(files), data.clean)
    say(f"Cleaning the training text of {corpus.name}:\n{textwrap.indent(str(report), '  ')}")
    return text


def cached_tokens(
    corpus: Corpus,
    split: Split,
    data: DataConfig,
    tokenizers: TokenizerPair,
    say: Callable[[str], None],
    root: Path = CORPUS,
) -> TokenPairs:
    """The ids of a split, encoded at the first call; training text is cleaned, the others never.

    Args:
        corpus: what to encode.
        split: which part of it.
        data: how training text is cleaned.
        tokenizers: how to encode.
        say: is told what takes time.
        root: where caches are kept.
    """
    cleaning = asdict(data.clean) if split == "train" else None
    key = _key(corpus.fingerprint(), split, cleaning, _written(tokenizers))
    folder = root / "cache" / f"{corpus.name}-{split}-{key}"
    if not folder.exists():
        text = _text(corpus, split, data, say)
        say(f"Encoding {len(text):,} pairs of {corpus.name} {split}: once")
        with atomic_folder(folder) as draft:
            for tokenizer, lines, side in zip(tokenizers, (text.src, text.tgt), ("src", "tgt"), strict=True):
                TokenArray.of(tokenizer.encode(lines), len(tokenizer)).save(draft / side)
    return TokenPairs(TokenArray.load(folder / "src"), TokenArray.load(folder / "tgt"))
