"""Token ids of a corpus, encoded once and memory-mapped from then on; with sub-word sampling, once per epoch."""

import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from const.path import CORPUS
from utils.dataset.cache_folder import cached_folder, remove_cached
from utils.dataset.cache_key import cache_key, saved_hashes
from utils.dataset.cleaning import clean
from utils.dataset.corpus import Corpus, DataConfig, Split
from utils.dataset.encoding import Sampling, encoded_blocks
from utils.dataset.held_out import count_shared
from utils.dataset.text_blocks import TextBlocks
from utils.dataset.token_array import TokenPairs, TokenWriter
from utils.text.pair import TokenizerConfig, TokenizerPair, load_tokenizers, train_tokenizers


def cached_tokenizers(
    corpus: Corpus, data: DataConfig, config: TokenizerConfig, say: Callable[[str], None], root: Path = CORPUS
) -> TokenizerPair:
    """Return the tokenizers of a corpus, learned from its cleaned training text at the first call.

    Args:
        corpus: what to learn from.
        data: how it is cleaned.
        config: what to learn.
        say: called with a message about what takes time.
        root: where caches are kept.

    Raises:
        ValueError: the text does not support the requested vocabulary.
    """
    learned = {name: value for name, value in asdict(config).items() if name != "sampling"}
    key = cache_key(corpus.fingerprint(root), asdict(data.clean), learned)

    def make(folder: Path) -> None:
        text = _cleaned(corpus, data, say, root)
        say(f"Learning the vocabulary ({config.kind}) from {len(text):,} pairs (once; a minute for a large corpus)")
        train_tokenizers(config, text.src, text.tgt, (corpus.src_lang, corpus.tgt_lang)).save(folder)

    return load_tokenizers(cached_folder(root / "cache" / f"{corpus.name}-tokenizer-{key}", make, say))


def cached_tokens(
    corpus: Corpus,
    split: Split,
    data: DataConfig,
    tokenizers: TokenizerPair,
    say: Callable[[str], None],
    root: Path = CORPUS,
) -> TokenPairs:
    """Return the ids of a split, encoded at the first call; only training text is cleaned.

    Args:
        corpus: what to encode.
        split: which part of it.
        data: how training text is cleaned.
        tokenizers: what encodes the text.
        say: called with a message about what takes time.
        root: where caches are kept.
    """
    cleaning = asdict(data.clean) if split == "train" else None
    # a key of all that tokenizers save: with equal pieces they can still segment a text differently
    key = cache_key(corpus.fingerprint(root), split, cleaning, saved_hashes(tokenizers.save))

    def make(folder: Path) -> None:
        text = _cleaned(corpus, data, say, root) if split == "train" else TextBlocks.whole(getattr(corpus, split))
        say(f"Encoding {len(text):,} pairs of {corpus.name} {split} (once)")
        _encode(text, tokenizers, None, folder)

    return TokenPairs.load(cached_folder(root / "cache" / f"{corpus.name}-{split}-{key}", make, say))


def training_tokens(
    corpus: Corpus,
    data: DataConfig,
    tokenizers: TokenizerPair,
    sampling: float,
    seed: int,
    say: Callable[[str], None],
    root: Path = CORPUS,
) -> Callable[[int], TokenPairs]:
    """Return a function that gives the ids of the training text for each epoch: always the same, or sampled again.

    How a line is segmented depends only on the seed, the epoch and the block of lines that it is in. The ids of an
    epoch are kept until a later epoch is requested, so that an interrupted training finds them again.

    Args:
        corpus: what to encode.
        data: how it is cleaned.
        tokenizers: what encodes the text.
        sampling: see `TokenizerConfig.sampling`; 0 gives each line its likeliest segmentation.
        seed: seed of the sampling.
        say: called with a message about what takes time.
        root: where caches are kept.
    """
    if not sampling:
        pairs = cached_tokens(corpus, "train", data, tokenizers, say, root)
        return lambda _: pairs
    text = _cleaned(corpus, data, say, root)
    key = cache_key(corpus.fingerprint(root), asdict(data.clean), saved_hashes(tokenizers.save), sampling, seed)
    stem = f"{corpus.name}-sampled-{key}-"

    def tokens(epoch: int) -> TokenPairs:
        def make(folder: Path) -> None:
            say(f"Sampling sub-words of {len(text):,} pairs of {corpus.name} for epoch {epoch + 1}")
            _encode(text, tokenizers, Sampling(sampling, seed, epoch), folder)

        while True:
            folder = cached_folder(root / "cache" / f"{stem}{epoch}", make, say)
            try:
                pairs = TokenPairs.load(folder)
                break
            except FileNotFoundError:
                if folder.exists():
                    raise
                # another training, epochs ahead, has just removed it: make it again
        for older in (root / "cache").glob(f"{stem}*"):
            if int(older.name.removeprefix(stem)) < epoch:
                remove_cached(older)  # a process that has mapped its files keeps them
        return pairs

    return tokens


def _cleaned(corpus: Corpus, data: DataConfig, say: Callable[[str], None], root: Path) -> TextBlocks:
    """Return the training text, cleaned at the first call."""

    def make(folder: Path) -> None:
        text, report = clean(corpus.train, data.clean, corpus.more.n_pairs)
        say(f"Cleaning the training text of {corpus.name}:\n{textwrap.indent(str(report), '  ')}")
        if any(corpus.more):
            n_pairs, n_left_out = corpus.more
            say(f"  with {n_pairs:,} further pairs; {n_left_out:,} were left out: the dev or test text has their lines")
        for split, held in (("dev", corpus.dev), ("test", corpus.test)):
            if n_shared := count_shared(corpus.train, held):
                say(f"  {n_shared:,} pairs of the {split} text are in it, too: their scores flatter the model")
        text.save(folder)

    key = cache_key(corpus.fingerprint(root), asdict(data.clean))
    return TextBlocks.load(corpus.train, cached_folder(root / "cache" / f"{corpus.name}-clean-{key}", make, say))


def _encode(text: TextBlocks, tokenizers: TokenizerPair, sampling: Sampling | None, folder: Path) -> None:
    """Write both sides, with a progress bar on a terminal."""
    bar = tqdm(total=len(text), unit=" pairs", leave=False, disable=not sys.stderr.isatty())
    with (
        bar,
        TokenWriter(folder / "src", len(tokenizers.src)) as src,
        TokenWriter(folder / "tgt", len(tokenizers.tgt)) as tgt,
    ):
        for src_block, tgt_block in encoded_blocks(text, tokenizers, sampling):
            src.write(*src_block)
            tgt.write(*tgt_block)
            bar.update(len(src_block.lengths))
