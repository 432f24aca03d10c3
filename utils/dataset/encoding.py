"""Encoding of text to ids, block by block, with one process per processor."""

import json
import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from const.path import ROOT
from utils.dataset.parallel_text import ParallelFiles
from utils.dataset.text_blocks import TextBlocks
from utils.text.pair import TokenizerPair, load_tokenizers

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
            return _read(self._answers), _read(self._answers)
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


def _read(stream: IO[bytes]) -> Ids:
    n_ids, n_lines = _SIZES.unpack(_exactly(stream, _SIZES.size))
    return Ids(*(np.frombuffer(_exactly(stream, 4 * n), np.int32) for n in (n_ids, n_lines)))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found
