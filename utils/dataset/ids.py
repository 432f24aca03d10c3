"""Token ids of a text: encoded once, cached under a hash of what they were made from, memory-mapped from then on."""

import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache, partial
from itertools import chain, groupby, islice
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Thread, current_thread, main_thread
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from config.data import TokenizerConfig
from const.path import CORPUS
from utils.command import Log
from utils.dataset.cache import cache_folder, cached, file_hash, remove_cached
from utils.dataset.check import report_shared
from utils.dataset.corpus import Corpus, Split
from utils.dataset.protect import masked_pair
from utils.dataset.text import BLOCK, FURTHER, ParallelFiles, TextLines, clean, in_blocks, lines_of
from utils.file import read_json, write_json
from utils.text.protected import STAND_INS
from utils.text.tokenizer import (
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerPair,
    id_of_each,
    load_tokenizers,
    train_tokenizers,
)


class TokenArray:
    """All ids of many sequences, concatenated, and the offsets: where each sequence begins, and the total length."""

    def __init__(self, ids: NDArray[np.uint16 | np.int32], offsets: NDArray[np.int64]) -> None:
        self._ids = ids
        self._offsets = offsets

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], vocab_size: int) -> "TokenArray":
        """Pack sequences."""
        ids, lengths = _flat(sequences, vocab_size)
        return cls(ids, _offsets([lengths]))

    @classmethod
    def load(cls, stem: Path) -> "TokenArray":
        """Memory-map what `write_tokens` wrote; nothing is read until it is used."""
        ids, offsets = (np.load(stem.with_suffix(f".{part}.npy"), mmap_mode="r") for part in ("ids", "offsets"))
        return cls(ids, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> NDArray[np.uint16 | np.int32]:
        return self._ids[self._offsets[i] : self._offsets[i + 1]]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each sequence."""
        return np.diff(self._offsets).astype(np.int32)

    def gather(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.uint16 | np.int32], NDArray[np.int64]]:
        """Return these sequences concatenated, and the length of each."""
        begins = self._offsets[rows]
        lengths = self._offsets[rows + 1] - begins
        # the offset between a sequence's place in the file and its place in the result is the same for all of its ids
        places = np.repeat(begins - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum())
        return self._ids[places], lengths


def _flat(sequences: Sequence[Sequence[int]], vocab_size: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Concatenate sequences; ids take two bytes each where the vocabulary allows it."""
    lengths = np.fromiter(map(len, sequences), np.int32, len(sequences))
    dtype = np.uint16 if vocab_size <= 2**16 else np.int32
    return np.fromiter(chain.from_iterable(sequences), dtype, int(lengths.sum())), lengths


def _offsets(lengths: list[NDArray[np.int32]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int32), *lengths]).cumsum(dtype=np.int64)


def write_tokens(stem: Path, vocab_size: int, blocks: Iterable[Sequence[Sequence[int]]]) -> None:
    """Write the sequences of all blocks, one after the other, to two .npy files for `TokenArray.load`."""
    lengths: list[NDArray[np.int32]] = []
    descr = np.lib.format.dtype_to_descr(_flat([], vocab_size)[0].dtype)
    with stem.with_suffix(".ids.npy").open("wb") as file:

        def begin(n: int) -> None:  # numpy leaves room in the header for n to grow
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (n,)})

        begin(0)
        for block in blocks:
            ids, sizes = _flat(block, vocab_size)
            file.write(ids.tobytes())
            lengths.append(sizes)
        offsets = _offsets(lengths)
        begin(int(offsets[-1]))
    np.save(stem.with_suffix(".offsets.npy"), offsets)


class TokenPairs(NamedTuple):
    """Source and target ids of a split, line by line."""

    src: TokenArray
    tgt: TokenArray

    @classmethod
    def load(cls, folder: Path) -> "TokenPairs":
        """Memory-map both sides."""
        return cls(TokenArray.load(folder / "src"), TokenArray.load(folder / "tgt"))


# Encoding, block by block.

_WORTH_PROCESSES = 50_000  # lines of a text; fewer are sampled before processes would have started
_AT_ONCE = 4  # blocks for each process before the next are read

Block = tuple[int, int, list[str]]  # side of the text, number, lines
Encoded = tuple[int, list[list[int]]]  # side of the text, ids of each line


class Sampling(NamedTuple):
    """How sub-words are sampled: at the rate of `TokenizerConfig.sampling`, each epoch otherwise."""

    rate: float
    seed: int
    epoch: int

    def block_seed(self, block: int, side: int) -> int:
        """Return a seed for a side of a block, so that its segmentation depends on no other block or process."""
        numbers = f"{self.seed} {self.epoch} {block} {side}".encode()
        return int.from_bytes(hashlib.blake2b(numbers, digest_size=4).digest(), "little")


def cached_ids(
    name: str,
    files: Sequence[Path],
    tokenizers: TokenizerPair,
    log: Log,
    root: Path,
    sampling: Sampling | None = None,
    further: tuple[int, TokenizerPair] | None = None,
) -> Path:
    """Return the folder with the ids of one text, `src`, or of both sides of a parallel one, made at the first call.

    `further` is how many lines at its end have another tag, and the tokenizers that give them it.
    """

    def make(folder: Path) -> None:
        n_lines = len(TextLines(files[0]))
        when = "once" if sampling is None else f"sampling sub-words for epoch {sampling.epoch + 1}"
        log(f"Encoding {n_lines:,} lines of {name} ({when})")
        blocks = ((side, *block) for side, file in enumerate(files) for block in enumerate(in_blocks(lines_of(file))))
        if sampling is None or n_lines < _WORTH_PROCESSES:
            encoded: Iterator[Encoded] = map(partial(_encoded, tokenizers, sampling), blocks)
        else:
            encoded = _sampled_by_processes(tokenizers, sampling, blocks, folder)
        n_blocks = -(-n_lines // BLOCK) * len(files)
        is_quiet = None if current_thread() is main_thread() else True  # beside the bar of the training
        bar = tqdm(encoded, total=n_blocks, unit=" lines", unit_scale=BLOCK, leave=False, disable=is_quiet)
        for side, of_side in groupby(bar, itemgetter(0)):
            ids: Iterator[list[list[int]]] = (of_block for _, of_block in of_side)
            if further is not None and side == 0:
                known = id_of_each(tokenizers.src)
                tags = [known[tag] for tag in further[1].tags]
                ids = _retagged(ids, n_lines - further[0], len(tokenizers.tags), tags)
            write_tokens(folder / TokenPairs._fields[side], len(tokenizers[side]), ids)

    # of all that tokenizers save: with equal pieces they can still segment a text differently
    with TemporaryDirectory() as saved:
        tokenizers.save(Path(saved))
        hashes = {file.name: hashlib.blake2b(file.read_bytes()).hexdigest() for file in Path(saved).iterdir()}
    made_from = [*map(file_hash, files), hashes, *((further[0], further[1].tags) if further else ())]
    if sampling is None:
        return cached(cache_folder(root, name, *made_from), make, log)
    of_all_epochs = cache_folder(root, f"{name}-sampled", *made_from, sampling.rate, sampling.seed)
    return cached(of_all_epochs.with_name(f"{of_all_epochs.name}-{sampling.epoch}"), make, log)


def _encoded(tokenizers: TokenizerPair, sampling: Sampling | None, block: Block) -> Encoded:
    side, number, lines = block
    if sampling is None:
        return side, tokenizers[side].encode(lines)
    of_pieces = cast(SentencePieceTokenizer, tokenizers[side])  # words are not sampled: TokenizerConfig refuses it
    return side, of_pieces.sample(lines, sampling.rate, sampling.block_seed(number, side))


def _retagged(
    blocks: Iterable[list[list[int]]], first: int, n_tags: int, tags: Sequence[int]
) -> Iterator[list[list[int]]]:
    """Begin the sources from line `first` on with other tags than the `n_tags` that they have."""
    line = 0
    for block in blocks:
        yield [[*tags, *ids[n_tags:]] if ids and i >= first else ids for i, ids in enumerate(block, line)]
        line += len(block)


def _sampled_by_processes(
    tokenizers: TokenizerPair, sampling: Sampling, blocks: Iterator[Block], draft: Path
) -> Iterator[Encoded]:
    # a fork of a process with threads may hang, so processes are forked from one that has only imported modules
    context = get_context("forkserver")
    context.set_forkserver_preload(["utils.dataset.batch"])
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    with TemporaryDirectory(dir=draft) as folder:
        tokenizers.save(Path(folder))
        # Ctrl-C is for the parent process
        pool = ProcessPoolExecutor(n, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))
        try:
            while batch := list(islice(blocks, _AT_ONCE * n)):
                yield from pool.map(partial(_encoded_by_saved, Path(folder), sampling), batch)
        except BrokenProcessPool:
            raise ValueError(
                f"a process that encodes text was killed: is there enough memory for {n} of them? "
                "On Linux, taskset -c 0 starts only one"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_loaded = lru_cache(maxsize=1)(load_tokenizers)


def _encoded_by_saved(folder: Path, sampling: Sampling, block: Block) -> Encoded:
    return _encoded(_loaded(folder), sampling, block)


# Tokenizers, and the ids of one text.


def cached_vocabulary(
    name: str,
    files: Sequence[Path],
    config: TokenizerConfig,
    languages: tuple[str, str],
    log: Log,
    root: Path,
    tags: Sequence[str] = (),
    symbols: Sequence[str] = (),
) -> TokenizerPair:
    """Return the tokenizers that are learned from one text, or from both sides of a parallel one, at the first call."""

    def make(folder: Path) -> None:
        src, *rest = map(TextLines, files)
        log(f"Learning the vocabulary ({config.kind}) from {len(src):,} lines (once; a minute for a large text)")
        train_tokenizers(config, src, rest[0] if rest else (), languages, tags, symbols).save(folder)

    learned = {field: value for field, value in asdict(config).items() if field != "sampling"}
    path = cache_folder(root, f"{name}-tokenizer", *map(file_hash, files), learned, languages, *tags, *symbols)
    tokenizers = load_tokenizers(cached(path, make, log))
    for n_pieces in sorted({*map(len, tokenizers)}):
        if config.kind == "unigram" and n_pieces < config.vocab_size:
            log(f"The text is worth no more than {n_pieces:,} pieces of tokenizer.vocab_size={config.vocab_size}")
    return tokenizers


def cached_tokenizer(name: str, text: Path, config: TokenizerConfig, log: Log, root: Path = CORPUS) -> Tokenizer:
    """Return the tokenizer of a text, learned from it at the first call; `joint` and `tag` are ignored.

    `log` is called with a message about what takes time.
    """
    if config.sampling:
        raise ValueError(f"sampling={config.sampling} is for pairs of texts: set tokenizer.sampling to 0")
    return cached_vocabulary(name, [text], replace(config, joint=True, tag=False), ("", ""), log, root).src


def cached_lines(name: str, text: Path, tokenizer: Tokenizer, log: Log, root: Path = CORPUS) -> TokenArray:
    """Return the ids of a text line by line, encoded at the first call; arguments as in `cached_tokenizer`."""
    return TokenArray.load(cached_ids(name, [text], TokenizerPair(tokenizer, tokenizer), log, root) / "src")


# A parallel corpus: `_cleaned`, then `cached_tokenizers`, then `cached_tokens`; sampled ids are made once per epoch.

_FURTHER = "more.json"  # beside a cleaned text: how many pairs of further text were kept


def cached_tokenizers(corpus: Corpus, config: TokenizerConfig, log: Log) -> TokenizerPair:
    """Return the tokenizers of a corpus, learned from its cleaned training text at the first call."""
    data, files = corpus.data, _cleaned(corpus, log)
    tags = sorted({tag for tag in (data.tag, data.more_tag) if tag})
    stand_ins = STAND_INS if data.protected else ()
    return cached_vocabulary(corpus.name, files, config, data.languages, log, corpus.root, tags, stand_ins)


def cached_tokens(corpus: Corpus, split: Split, tokenizers: TokenizerPair, log: Log) -> TokenPairs:
    """Return the ids of a split, encoded at the first call; only training text is cleaned."""
    if split == "train":
        return TokenPairs.load(_training_ids(corpus, tokenizers, log))
    return TokenPairs.load(cached_ids(f"{corpus.name}-{split}", getattr(corpus, split), tokenizers, log, corpus.root))


def training_tokens(
    corpus: Corpus, tokenizers: TokenizerPair, sampling: float, seed: int, log: Log, ahead: bool = False
) -> Callable[[int], TokenPairs]:
    """Return a function that gives the ids of the training text for each epoch: always the same, or sampled again.

    How a line is segmented depends only on the seed, the epoch and the block of lines that it is in. The ids of an
    epoch are kept until a later epoch is requested, so that an interrupted training finds them again. Those of the next
    one are made meanwhile (`ahead`) where a GPU would wait for them; a CPU has the same work to do now or later.
    """
    if not sampling:
        pairs = cached_tokens(corpus, "train", tokenizers, log)
        return lambda _: pairs

    def prepare(epoch: int) -> None:
        with suppress(Exception):  # of a full disk, say: it is raised when the epoch is requested
            _training_ids(corpus, tokenizers, lambda _: None, Sampling(sampling, seed, epoch))

    def tokens(epoch: int) -> TokenPairs:
        pairs = None
        while pairs is None:
            folder = _training_ids(corpus, tokenizers, log, Sampling(sampling, seed, epoch))
            with suppress(FileNotFoundError):  # another training, epochs ahead, has just removed it: make it again
                pairs = TokenPairs.load(folder)
        if ahead:
            Thread(target=prepare, args=[epoch + 1], daemon=True).start()
        stem = folder.name.removesuffix(str(epoch))
        for other in folder.parent.glob(f"{stem}*"):
            if int(other.name.removeprefix(stem)) < epoch:
                remove_cached(other)  # a process that has mapped its files keeps them
        return pairs

    return tokens


def _training_ids(corpus: Corpus, tokenizers: TokenizerPair, log: Log, sampling: Sampling | None = None) -> Path:
    """Return the folder with the ids of the cleaned training text, whose further pairs may have a tag of their own."""
    data, files, further = corpus.data, _cleaned(corpus, log), None
    if corpus.further.n_pairs and data.tag != data.more_tag:
        further = read_json(files.src.with_name(_FURTHER)), tokenizers.with_tag(data.more_tag)
    name = corpus.name if sampling else f"{corpus.name}-train"
    return cached_ids(name, files, tokenizers, log, corpus.root, sampling, further)


def _cleaned(corpus: Corpus, log: Log) -> ParallelFiles:
    """Return the training text, cleaned at the first call."""
    data = corpus.data

    def make(folder: Path) -> None:
        n_pairs, n_left_out = corpus.further
        learned = ParallelFiles.of(folder, "train")
        masked = partial(masked_pair, languages=data.languages, share=data.protected, random=Random(0))
        change = (masked,) if data.protected else ()
        counts = clean(corpus.train, data.clean, learned, n_pairs, *change)
        total = sum(counts.values())
        table = "\n".join(f"  {rule:<14}{n:>10,}  {n / total:7.2%}" for rule, n in counts.items())
        log(f"Cleaning the training text of {corpus.name}, {total:,} pairs:\n{table}")
        if any(corpus.further):
            log(f"  with {n_pairs:,} further pairs; {n_left_out:,} were left out: the dev or test text has their lines")
        write_json(folder / _FURTHER, counts.get(FURTHER, 0))
        report_shared(corpus.train, corpus.dev, "dev", log)
        report_shared(corpus.train, corpus.test, "test", log)

    more: list[object] = [] if data.tag == data.more_tag else [data.tag, data.more_tag]
    more += [data.protected] if data.protected else []
    path = cache_folder(corpus.root, f"{corpus.name}-cleaned", corpus.fingerprint(), asdict(data.clean), *more)
    return ParallelFiles.of(cached(path, make, log), "train")
