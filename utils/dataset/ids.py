"""Token ids of a text: encoded once, cached under a hash of what they were made from, memory-mapped from then on."""

import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from const.path import CORPUS, ROOT
from utils.dataset.text import BLOCK, ParallelFiles, TextBlocks, decoded_lines
from utils.file import atomic_folder, locked, write_json
from utils.text.tokenizer import (
    Tokenizer,
    TokenizerConfig,
    TokenizerPair,
    load_tokenizer,
    load_tokenizers,
    train_tokenizer,
)

# File hashes; that of a large file is remembered until the file changes.

_LARGE = 2**24  # bytes: below it, hashing is faster than looking up
# Seconds within which two changes may get the same time stamp. A file hashed so soon after a change might change once
# more unnoticed, so hashing waits until this much time has passed.
_RESOLUTION = 2.0


def file_hash(path: Path, root: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Args:
        path: the file.
        root: where corpora and caches are kept, known hashes among them.
    """
    memory = root / "cache" / "hashes.json"
    before = path.stat()
    if before.st_size < _LARGE:
        return _hash(path)
    name = str(path.resolve())
    # every write sets the inode's change time, and nobody can set it to a value of their choice
    stamp = [before.st_size, before.st_mtime_ns, before.st_ctime_ns, before.st_ino]
    match _remembered_hashes(memory).get(name):
        case [*known, str(digest)] if known == stamp and len(digest) == 64:
            return digest
    changed = max(before.st_mtime, before.st_ctime)
    time.sleep(min(max(0.0, changed + _RESOLUTION - time.time()), _RESOLUTION))
    settled = time.time() >= changed + _RESOLUTION
    found = _hash(path)
    after = path.stat()
    if settled and stamp == [after.st_size, after.st_mtime_ns, after.st_ctime_ns, after.st_ino]:
        write_json(memory, {**_remembered_hashes(memory), name: [*stamp, found]})
    return found


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered_hashes(memory: Path) -> dict[str, Any]:
    """Return the known hashes; none where the file is missing or damaged."""
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


# Names of cache entries: a hash of everything that they were made from.

_FORMAT = 2  # raised when the format of the cache changes


def cache_key(*parts: object) -> str:
    """Return 16 hexadecimal digits that differ where any part does."""
    text = json.dumps([_FORMAT, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def saved_hashes(save: Callable[[Path], None]) -> dict[str, str]:
    """Return the identity of an object: the hashes of the files that it saves into a folder."""
    with TemporaryDirectory() as folder:
        save(Path(folder))
        return {file.name: hashlib.blake2b(file.read_bytes()).hexdigest() for file in Path(folder).iterdir()}


# Folders that are made once and checked at each use, by checksums stored with their files.

_SUMS = "checksums.json"


def cached_folder(path: Path, make: Callable[[Path], None], say: Callable[[str], None]) -> Path:
    """Return a folder that `make` fills at the first call; it is rebuilt where a file is no longer as it was written.

    Processes that need it at the same time wait for the first of them.

    Args:
        path: the folder.
        make: fills an empty folder.
        say: called with a message about damage.
    """
    with _alone(path):
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
    """Remove a folder that `cached_folder` has made, once no process is making or checking it."""
    with _alone(path):
        shutil.rmtree(path, ignore_errors=True)


def _alone(path: Path) -> AbstractContextManager[None]:
    return locked(path.parent / ".locks" / path.name)


def _fault(folder: Path) -> str | None:
    """Return what is wrong with a folder, None if nothing is."""
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        for name, (size, checksum) in sums.items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found:,} bytes, not {size:,}"
            if _checksum(folder / name) != checksum:
                return f"{name} differs from what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{_SUMS} cannot be read: {error}"
    return None


def _checksum(path: Path) -> int:
    """Return the CRC-32, which detects every flipped bit and takes a second per gigabyte."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


# Many sequences of token ids in one flat array, memory-mapped where they come from a file.


class TokenArray:
    """Many sequences of ids in one flat array.

    Args:
        ids: all ids, concatenated.
        offsets: where each sequence begins, and the total length.
    """

    def __init__(self, ids: NDArray[np.uint16 | np.int32], offsets: NDArray[np.int64]) -> None:
        self._ids = ids
        self._offsets = offsets

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], vocab_size: int) -> "TokenArray":
        """Pack sequences; ids take two bytes each where the vocabulary allows it."""
        lengths = np.fromiter((len(sequence) for sequence in sequences), np.int64, len(sequences))
        offsets = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
        ids = np.fromiter((i for sequence in sequences for i in sequence), np.int32, int(offsets[-1]))
        return cls(ids.astype(np.uint16) if vocab_size <= 2**16 else ids, offsets)

    @classmethod
    def load(cls, stem: Path) -> "TokenArray":
        """Memory-map what a `TokenWriter` wrote; nothing is read until it is used."""
        ids, offsets = (np.load(stem.with_suffix(f".{part}.npy"), mmap_mode="r") for part in ("ids", "offsets"))
        return cls(ids, offsets)

    def __len__(self) -> int:
        """Number of sequences."""
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


class TokenWriter:
    """Writes sequences to two .npy files, part by part, for `TokenArray.load`; they are complete on exit.

    Args:
        stem: path of the files without their suffix.
        vocab_size: size of the vocabulary; ids take two bytes each where it allows that.
    """

    def __init__(self, stem: Path, vocab_size: int) -> None:
        self._stem = stem
        self._dtype: np.dtype[Any] = np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)
        self._lengths: list[NDArray[np.int32]] = []

    def __enter__(self) -> "TokenWriter":
        self._file = self._stem.with_suffix(".ids.npy").open("wb")
        self._file.write(_header(self._dtype, 0))
        return self

    def write(self, ids: NDArray[np.integer], lengths: NDArray[np.int32]) -> None:
        """Add sequences, given concatenated."""
        self._file.write(ids.astype(self._dtype).tobytes())
        self._lengths.append(lengths)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        offsets = np.zeros(1 + sum(map(len, self._lengths)), np.int64)
        np.cumsum(np.concatenate([np.empty(0, np.int32), *self._lengths]), out=offsets[1:])
        self._file.seek(0)
        self._file.write(_header(self._dtype, int(offsets[-1])))
        self._file.close()
        np.save(self._stem.with_suffix(".offsets.npy"), offsets)


def _header(dtype: np.dtype[Any], n: int) -> bytes:
    """Return the header of a .npy file of n numbers; numpy leaves room in it for n to grow."""
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


class TokenPairs(NamedTuple):
    """Source and target ids of a split, line by line."""

    src: TokenArray
    tgt: TokenArray

    @classmethod
    def load(cls, folder: Path) -> "TokenPairs":
        """Memory-map both sides."""
        return cls(TokenArray.load(folder / "src"), TokenArray.load(folder / "tgt"))


# Encoding of text to ids, block by block, with one process per processor.

_WORTH_PROCESSES = 50_000  # pairs; fewer are encoded before processes would have started
_SIZES = struct.Struct("<qq")
_JOB = "job.json"


@dataclass(frozen=True)
class Sampling:
    """How sub-words are sampled.

    Attributes:
        rate: see `TokenizerConfig.sampling`.
        seed: seed of the training.
        epoch: number of the epoch; each has another segmentation.
    """

    rate: float
    seed: int
    epoch: int

    def block_seed(self, block: int, side: int) -> int:
        """Return a seed for a side of a block, so that its segmentation depends on no other block or process."""
        numbers = f"{self.seed} {self.epoch} {block} {side}".encode()
        return int.from_bytes(blake2b(numbers, digest_size=4).digest(), "little")


class Ids(NamedTuple):
    """Ids of some lines, concatenated, and how many each line has."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int32]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "Ids":
        """Concatenate the ids of each line."""
        lengths = np.fromiter(map(len, sequences), np.int32, len(sequences))
        return cls(np.fromiter(chain.from_iterable(sequences), np.int32, int(lengths.sum())), lengths)


def encode_block(text: TextBlocks, i: int, tokenizers: TokenizerPair, sampling: Sampling | None) -> tuple[Ids, Ids]:
    """Return source and target ids of a block."""
    block, found = text.block(i), []
    for side, (tokenizer, lines) in enumerate(zip(tokenizers, (block.src, block.tgt), strict=True)):
        if sampling is None:
            sequences = tokenizer.encode(lines)
        else:
            sequences = tokenizer.sample(lines, sampling.rate, sampling.block_seed(i, side))
        found.append(Ids.of(sequences))
    return found[0], found[1]


def encoded_blocks(
    text: TextBlocks, tokenizers: TokenizerPair, sampling: Sampling | None = None
) -> Iterator[tuple[Ids, Ids]]:
    """Yield source and target ids, block by block in the order of the text.

    Raises:
        ValueError: an encoding process was killed.
    """
    if len(text) < _WORTH_PROCESSES:
        yield from (encode_block(text, i, tokenizers, sampling) for i in range(text.n_blocks))
        return
    n_workers = min(_n_cores(), text.n_blocks)
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def encode(i: int) -> tuple[Ids, Ids]:
        worker = idle.get()
        try:
            return worker.encode(i)
        finally:
            idle.put(worker)

    with ExitStack() as stack:
        job = Path(stack.enter_context(TemporaryDirectory(prefix="miyako-")))
        _write_job(job, text, tokenizers, sampling)
        # on exit the order is reversed: workers end first, so that no thread waits for one
        threads = stack.enter_context(ThreadPoolExecutor(n_workers))
        for _ in range(n_workers):
            idle.put(stack.enter_context(_Worker(job)))
        pending: deque[Future[tuple[Ids, Ids]]] = deque()
        stack.callback(lambda: [future.cancel() for future in pending])
        for i in range(text.n_blocks):
            pending.append(threads.submit(encode, i))
            if len(pending) > 2 * n_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _n_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _write_job(folder: Path, text: TextBlocks, tokenizers: TokenizerPair, sampling: Sampling | None) -> None:
    text.save(folder)
    tokenizers.save(folder)
    job = {
        "files": [str(path.resolve()) for path in text.files],
        "sampling": None if sampling is None else asdict(sampling),
    }
    (folder / _JOB).write_text(json.dumps(job), encoding="utf-8")


class _Worker:
    """A process that encodes one block after another; it ends with its standard input, and so with this process.

    It is a fresh process that imports only what encoding needs, neither torch nor the running command: a fork of a
    process with threads may hang, and a full import takes 300 MB.
    """

    def __init__(self, job: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "utils.dataset.encoding_worker", str(job)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._asked, self._answers = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()  # it has no state to lose
        self._process.wait()

    def encode(self, i: int) -> tuple[Ids, Ids]:
        try:
            self._asked.write(f"{i}\n".encode())
            self._asked.flush()
            return _read_answer(self._answers), _read_answer(self._answers)
        except (BrokenPipeError, EOFError):
            status = self._process.wait()
            raise ValueError(
                f"a process that encodes text ended with status {status}: is there enough memory for "
                f"{_n_cores()} of them? On Linux, taskset -c 0 starts only one"
            ) from None


def serve_blocks(job: Path, asked: IO[bytes], answers: IO[bytes]) -> None:
    """Encode, in a worker, each block whose number is read, and write its ids, until the requests end."""
    settings = json.loads((job / _JOB).read_text(encoding="utf-8"))
    src, tgt = map(Path, settings["files"])
    text, tokenizers = TextBlocks.load(ParallelFiles(src, tgt), job), load_tokenizers(job)
    sampling = None if settings["sampling"] is None else Sampling(**settings["sampling"])
    for line in asked:
        for side in encode_block(text, int(line), tokenizers, sampling):
            answers.write(_SIZES.pack(len(side.ids), len(side.lengths)))
            answers.write(side.ids.tobytes())
            answers.write(side.lengths.tobytes())
        answers.flush()


def _read_answer(stream: IO[bytes]) -> Ids:
    n_ids, n_lines = _SIZES.unpack(_exactly(stream, _SIZES.size))
    return Ids(*(np.frombuffer(_exactly(stream, 4 * n), np.int32) for n in (n_ids, n_lines)))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found


# Tokenizer and token ids of one text, made once and reused until the text changes.


class TextLines:
    """The lines of a UTF-8 file, which may be iterated over repeatedly and are not kept in memory.

    Args:
        path: the file.

    Raises:
        ValueError: no such file, invalid UTF-8, or no text in it.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ValueError(f"no such file: {path}")
        self._path = path
        self._n_lines, has_text = 0, False
        for line in self:
            self._n_lines += 1
            has_text = has_text or bool(line.strip())
        if not has_text:
            raise ValueError(f"{path} holds no text")

    def __len__(self) -> int:
        """Number of lines."""
        return self._n_lines

    def __iter__(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            yield from decoded_lines(file, str(self._path))


def cached_tokenizer(
    name: str, text: Path, config: TokenizerConfig, say: Callable[[str], None], root: Path = CORPUS
) -> Tokenizer:
    """Return the tokenizer of a text, learned from it at the first call.

    Args:
        name: name of the text, for people who look into the cache.
        text: what to learn from.
        config: what to learn; `joint` is ignored.
        say: called with a message about what takes time.
        root: where caches are kept.

    Raises:
        ValueError: the text does not support the requested vocabulary, or sub-word sampling is requested.
    """
    if config.sampling:
        raise ValueError(f"sampling={config.sampling} is for pairs of texts: set tokenizer.sampling to 0")
    learned = {field: value for field, value in asdict(config).items() if field not in ("sampling", "joint")}
    key = cache_key("lines", file_hash(text, root), learned)

    def make(folder: Path) -> None:
        lines = TextLines(text)
        say(f"Learning the vocabulary ({config.kind}) from {len(lines):,} lines (once; a minute for a large text)")
        train_tokenizer(config, lines).save(folder / "tokenizer")

    return load_tokenizer(cached_folder(root / "cache" / f"{name}-tokenizer-{key}", make, say))


def cached_lines(
    name: str, text: Path, tokenizer: Tokenizer, say: Callable[[str], None], root: Path = CORPUS
) -> TokenArray:
    """Return the ids of a text line by line, encoded at the first call.

    Args:
        name: name of the text, for people who look into the cache.
        text: what to encode.
        tokenizer: what encodes the text.
        say: called with a message about what takes time.
        root: where caches are kept.
    """
    written = saved_hashes(lambda folder: tokenizer.save(folder / "tokenizer"))
    key = cache_key("lines", file_hash(text, root), written)

    def make(folder: Path) -> None:
        lines = TextLines(text)
        say(f"Encoding {len(lines):,} lines of {name} (once)")
        _encode(lines, tokenizer, folder / "lines")

    return TokenArray.load(cached_folder(root / "cache" / f"{name}-{key}", make, say) / "lines")


def _encode(lines: TextLines, tokenizer: Tokenizer, stem: Path) -> None:
    """Write the ids, with a progress bar on a terminal; one process encodes a million lines in seconds."""
    bar = tqdm(total=len(lines), unit=" lines", leave=False, disable=not sys.stderr.isatty())
    rest = iter(lines)
    with bar, TokenWriter(stem, len(tokenizer)) as writer:
        while block := list(islice(rest, BLOCK)):
            writer.write(*Ids.of(tokenizer.encode(block)))
            bar.update(len(block))
