"""Token ids of a text: encoded once, cached under a hash of what they were made from, memory-mapped from then on."""

import hashlib
import json
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import lru_cache, partial
from itertools import chain, islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from config.data import TokenizerConfig
from const.path import CORPUS
from utils.dataset.text import ParallelFiles, TextLines, in_blocks, lines_of, read_pairs
from utils.file import atomic_folder, locked
from utils.text.tokenizer import Tokenizer, TokenizerPair, load_tokenizers, train_tokenizers

# What is made once: named by a hash of all that it was made from, and checked at each use.

_FORMAT = 2  # raised when the format of the cache changes; labelled texts are known by it in checkpoints
_LARGE = 2**24  # bytes: a larger file is hashed once a process
_SUMS = "checksums.json"


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    stat = path.stat()
    if stat.st_size < _LARGE:
        return _sha256(path)
    # every write sets the inode's change time, and nobody can set it to a value of their choice
    return _remembered(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache
def _remembered(path: Path, *_: int) -> str:
    return _sha256(path)


def cache_key(*parts: object) -> str:
    """Return 16 hexadecimal digits that differ where any part does."""
    text = json.dumps([_FORMAT, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def cache_folder(root: Path, name: str, *made_from: object) -> Path:
    """Return where something is cached; the name is for people who look into the cache."""
    return root / "cache" / f"{name}-{cache_key(*made_from)}"


def saved_hashes(save: Callable[[Path], None]) -> dict[str, str]:
    """Return the identity of an object: the hashes of the files that it saves into a folder."""
    with TemporaryDirectory() as folder:
        save(Path(folder))
        return {file.name: hashlib.blake2b(file.read_bytes()).hexdigest() for file in Path(folder).iterdir()}


def cached(path: Path, make: Callable[[Path], None], say: Callable[[str], None]) -> Path:
    """Return a folder that `make` fills at the first call; it is rebuilt where a file is no longer as it was written.

    Processes that need it at the same time wait for the first of them.
    """
    with locked(_lock(path)):
        if path.exists() and (fault := _fault(path)):
            say(f"{path} is damaged ({fault}): rebuilding it")
            shutil.rmtree(path)
        if not path.exists():
            with atomic_folder(path) as draft:
                make(draft)
                sums = {file.name: [file.stat().st_size, _checksum(file)] for file in sorted(draft.iterdir())}
                (draft / _SUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
    return path


def remove_cached(path: Path) -> None:
    """Remove a folder that `cached` has made, once no process is making or checking it."""
    with locked(_lock(path)):
        shutil.rmtree(path, ignore_errors=True)


def _lock(path: Path) -> Path:
    return path.parent / ".locks" / path.name


def _fault(folder: Path) -> str | None:
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        for name, written in sums.items():
            if [(folder / name).stat().st_size, _checksum(folder / name)] != written:
                return f"{name} differs from what was written"
    except (OSError, ValueError, AttributeError) as error:
        return str(error)
    return None


def _checksum(path: Path) -> int:
    """Return the CRC-32, which detects every flipped bit and takes a second per gigabyte."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


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
        """Memory-map what a `token_writer` wrote; nothing is read until it is used."""
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


@contextmanager
def token_writer(stem: Path, vocab_size: int) -> Iterator[Callable[[Sequence[Sequence[int]]], None]]:
    """Yield a function that adds sequences to two .npy files, for `TokenArray.load`; they are complete on exit."""
    lengths: list[NDArray[np.int32]] = []
    descr = np.lib.format.dtype_to_descr(_flat([], vocab_size)[0].dtype)
    with stem.with_suffix(".ids.npy").open("wb") as file:

        def begin(n: int) -> None:  # numpy leaves room in the header for n to grow
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (n,)})

        def write(sequences: Sequence[Sequence[int]]) -> None:
            ids, sizes = _flat(sequences, vocab_size)
            file.write(ids.tobytes())
            lengths.append(sizes)

        begin(0)
        yield write
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

_WORTH_PROCESSES = 50_000  # pairs; fewer are sampled before processes would have started
_AT_ONCE = 4  # blocks for each process before the next are read

Row = tuple[str, ...]  # a line of one text, or a pair
Encoded = list[list[list[int]]]  # the ids of each side


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
    say: Callable[[str], None],
    root: Path,
    sampling: Sampling | None = None,
) -> Path:
    """Return the folder with the ids of one text, `src`, or of both sides of a parallel one, made at the first call."""

    def make(folder: Path) -> None:
        n_lines = len(TextLines(files[0]))
        rows = read_pairs(ParallelFiles(*files)) if len(files) > 1 else zip(lines_of(*files), strict=True)
        blocks = enumerate(in_blocks(rows))
        when = "once" if sampling is None else f"sampling sub-words for epoch {sampling.epoch + 1}"
        say(f"Encoding {n_lines:,} lines of {name} ({when})")
        if sampling is None or n_lines < _WORTH_PROCESSES:
            encoded: Iterator[Encoded] = (_encoded(tokenizers, sampling, *numbered) for numbered in blocks)
        else:
            encoded = _sampled_by_processes(tokenizers, sampling, blocks)
        with ExitStack() as stack:
            sides = zip(TokenPairs._fields, tokenizers, files, strict=False)  # of one text the source alone
            writers = [stack.enter_context(token_writer(folder / side, len(tokenizer))) for side, tokenizer, _ in sides]
            bar = stack.enter_context(tqdm(total=n_lines, unit=" lines", leave=False, disable=not sys.stderr.isatty()))
            for block in encoded:
                for write, ids in zip(writers, block, strict=True):
                    write(ids)
                bar.update(len(block[0]))

    # of all that tokenizers save: with equal pieces they can still segment a text differently
    made_from = [*map(file_hash, files), saved_hashes(tokenizers.save)]
    if sampling is None:
        return cached(cache_folder(root, name, *made_from), make, say)
    of_all_epochs = cache_folder(root, f"{name}-sampled", *made_from, sampling.rate, sampling.seed)
    return cached(of_all_epochs.with_name(f"{of_all_epochs.name}-{sampling.epoch}"), make, say)


def _encoded(tokenizers: TokenizerPair, sampling: Sampling | None, i: int, block: list[Row]) -> Encoded:
    def ids(side: int, texts: Sequence[str]) -> list[list[int]]:
        if sampling is None:
            return tokenizers[side].encode(texts)
        return tokenizers[side].sample(texts, sampling.rate, sampling.block_seed(i, side))

    return [ids(side, texts) for side, texts in enumerate(zip(*block, strict=True))]


def _sampled_by_processes(
    tokenizers: TokenizerPair, sampling: Sampling, blocks: Iterator[tuple[int, list[Row]]]
) -> Iterator[Encoded]:
    # a fork of a process with threads may hang, so processes are forked from one that has only imported modules
    context = get_context("forkserver")
    context.set_forkserver_preload(["utils.dataset.batch"])
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS
    with TemporaryDirectory(prefix="miyako-") as folder:
        tokenizers.save(Path(folder))
        # Ctrl-C is for the parent process
        pool = ProcessPoolExecutor(n, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))
        try:
            while some := list(islice(blocks, _AT_ONCE * n)):
                yield from pool.map(partial(_encoded_by_saved, Path(folder), sampling), some)
        except BrokenProcessPool:
            raise ValueError(
                f"a process that encodes text was killed: is there enough memory for {n} of them? "
                "On Linux, taskset -c 0 starts only one"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


_loaded = lru_cache(maxsize=1)(load_tokenizers)


def _encoded_by_saved(folder: Path, sampling: Sampling, numbered: tuple[int, list[Row]]) -> Encoded:
    return _encoded(_loaded(folder), sampling, *numbered)


# Tokenizers, and the ids of one text.


def cached_vocabulary(
    name: str,
    files: Sequence[Path],
    config: TokenizerConfig,
    languages: tuple[str, str],
    say: Callable[[str], None],
    root: Path,
) -> TokenizerPair:
    """Return the tokenizers that are learned from one text, or from both sides of a parallel one, at the first call."""

    def make(folder: Path) -> None:
        src, *rest = map(TextLines, files)
        say(f"Learning the vocabulary ({config.kind}) from {len(src):,} lines (once; a minute for a large text)")
        train_tokenizers(config, src, rest[0] if rest else (), languages).save(folder)

    learned = {field: value for field, value in asdict(config).items() if field != "sampling"}
    path = cache_folder(root, f"{name}-tokenizer", *map(file_hash, files), learned, languages)
    return load_tokenizers(cached(path, make, say))


def cached_tokenizer(
    name: str, text: Path, config: TokenizerConfig, say: Callable[[str], None], root: Path = CORPUS
) -> Tokenizer:
    """Return the tokenizer of a text, learned from it at the first call; `joint` and `tag` are ignored.

    `say` is called with a message about what takes time.
    """
    if config.sampling:
        raise ValueError(f"sampling={config.sampling} is for pairs of texts: set tokenizer.sampling to 0")
    return cached_vocabulary(name, [text], replace(config, joint=True, tag=False), ("", ""), say, root).src


def cached_lines(
    name: str, text: Path, tokenizer: Tokenizer, say: Callable[[str], None], root: Path = CORPUS
) -> TokenArray:
    """Return the ids of a text line by line, encoded at the first call; arguments as in `cached_tokenizer`."""
    return TokenArray.load(cached_ids(name, [text], TokenizerPair(tokenizer, tokenizer), say, root) / "src")
