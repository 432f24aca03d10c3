"""Time and memory of preparing a text of many short pairs and batching it: `python -m bench.data`."""

import argparse
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.measure import add_json_option, publish
from utils.command import Parser, require_options_at_least, run_command
from utils.dataset.batch import BatchConfig, BucketSampler, prefetched
from utils.dataset.corpus import DataConfig, cached_tokenizers, cached_tokens, prepare_corpus, training_tokens
from utils.dataset.text import ParallelFiles
from utils.file import atomic_folder
from utils.text.tokenizer import TokenizerConfig

N_WORDS = 50_000
N_BATCHES = 1000
_FEWEST_PAIRS = 2000  # fewer do not suffice for a vocabulary
_CHUNK = 100_000  # lines
_LOOK_EVERY = 0.1  # seconds
_MIB = 2**20


# the text


def words(draw: np.random.Generator) -> NDArray[np.str_]:
    """Draw distinct words of two to four syllables, the most frequent first."""
    syllables = np.array([c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"])
    found: dict[str, None] = {}
    while len(found) < N_WORDS:
        sizes = draw.integers(2, 5, N_WORDS)
        found |= dict.fromkeys("".join(syllables[draw.integers(0, len(syllables), n)]) for n in sizes)
    return np.array(list(found)[:N_WORDS])


def write_text(files: ParallelFiles, n_pairs: int) -> None:
    """Write lines of 5 to 15 words with natural frequencies (Zipf), and translate them word by word, reversed."""
    draw = np.random.default_rng(0)
    src_words, tgt_words = words(draw), words(draw)
    often = 1 / (np.arange(N_WORDS) + 2.7)
    chances = (often / often.sum()).cumsum()
    with files.src.open("w", encoding="utf-8") as src, files.tgt.open("w", encoding="utf-8") as tgt:
        for begin in range(0, n_pairs, _CHUNK):
            sizes = draw.integers(5, 16, min(_CHUNK, n_pairs - begin))
            drawn = np.minimum(np.searchsorted(chances, draw.random(sizes.sum())), N_WORDS - 1)
            ends = sizes.cumsum()
            src_line, tgt_line = src_words[drawn].tolist(), tgt_words[drawn].tolist()
            for first, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True):
                src.write(" ".join(src_line[first:end]) + "\n")
                tgt.write(" ".join(tgt_line[first:end][::-1]) + "\n")


def synthetic(folder: Path, n_pairs: int) -> ParallelFiles:
    """Return a text of `n_pairs` pairs below a folder, written by the first call."""
    place = folder / f"text-{n_pairs}"
    if not place.exists():
        with atomic_folder(place) as draft:
            write_text(ParallelFiles(draft / "src", draft / "tgt"), n_pairs)
    return ParallelFiles(place / "src", place / "tgt")


# what is measured


@dataclass
class Preparation:
    """The work of a process before the first update, and its duration.

    Attributes:
        seconds: duration of each part.
        pairs: pairs to train on.
        batches: batches of an epoch.
        padding: share of padding in the positions of an epoch.
        batches_per_s: batches prefetched by a thread, per second.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    pairs: int = 0
    batches: int = 0
    padding: float = 0.0
    batches_per_s: float = 0.0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Record the duration of the block."""
        begin = time.perf_counter()
        yield
        self.seconds[part] = time.perf_counter() - begin


def prepare(files: ParallelFiles, root: Path, tokenizer: TokenizerConfig, answer: Connection) -> None:
    """Do what train.py does up to the first update, then make some batches; send the measurements."""
    found, batch = Preparation(), BatchConfig()
    data = DataConfig(src=files.src, tgt=files.tgt, src_lang="xx", tgt_lang="yy", held_out=400)
    with found.timed("corpus"):
        corpus = prepare_corpus(data, root)
    with found.timed("vocabulary"):  # including the cleaning before it
        tokenizers = cached_tokenizers(corpus, data, tokenizer, print, root)
    with found.timed("ids"):
        train = training_tokens(corpus, data, tokenizers, tokenizer.sampling, 1, print, root)
        for split in ("dev", "test"):
            cached_tokens(corpus, split, data, tokenizers, print, root)
    with found.timed("epoch"):
        epoch = BucketSampler(train, batch.tokens_per_batch, batch.max_tokens, 1).epoch(0)
    found.pairs, found.batches, found.padding = len(train(0).src) - epoch.n_dropped, len(epoch), epoch.padding
    n = min(N_BATCHES, len(epoch))
    with found.timed("batches"):
        tokens = sum(batch.target_tokens for batch in prefetched(epoch[i] for i in range(n)))
    found.batches_per_s = n / found.seconds["batches"]
    if tokens != sum(epoch.target_tokens(i) for i in range(n)):
        raise ValueError(f"{tokens:,} target tokens in {n:,} batches are not those that were planned: this is a bug")
    answer.send(found)


class MemoryWatch:
    """Memory of a process and its workers, sampled from outside ten times a second.

    Args:
        pid: id of the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.main = self.largest_worker = self.together = 0.0  # peaks in MiB
        self.workers: set[int] = set()  # ids of all workers so far

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_EVERY):
            started = running_workers(self._pid)
            main, workers = resident(self._pid), [resident(pid) for pid in started]
            self.workers.update(started)
            self.main = max(self.main, main)
            self.largest_worker = max(self.largest_worker, *workers, 0.0)
            self.together = max(self.together, main + sum(workers))


def running_workers(pid: int) -> list[int]:
    """Return the processes that encode a text for a process; what else it starts, for a moment, is none."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()  # after the name, which may contain anything
            if int(fields[1]) == pid and b"encoding_worker" in (stat.parent / "cmdline").read_bytes():
                found.append(int(stat.parent.name))
        except OSError:  # the process has just ended
            continue
    return found


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB, shared pages included."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


def measure(files: ParallelFiles, root: Path, tokenizer: TokenizerConfig) -> tuple[Preparation, MemoryWatch]:
    """Prepare in a separate process while watching its memory.

    Raises:
        ValueError: the process failed; it has printed the reason.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=prepare, args=(files, root, tokenizer, sender))
    process.start()
    sender.close()
    with MemoryWatch(process.pid or 0) as memory:
        try:
            found: Preparation = receiver.recv()
        except EOFError:
            raise ValueError("the preparing process failed: see above") from None
        finally:
            process.join()
    return found, memory


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="bench.data",
        usage="python -m bench.data --folder DIR [--pairs N] [--json FILE]",
        description="Prepare a synthetic text of many pairs, twice: from scratch, and from the cache.",
        epilog="""examples:
  python -m bench.data --folder /tmp/data                      ten million pairs: 5 GB of disk, some minutes
  python -m bench.data --folder /tmp/data --pairs 100000       a quick look""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="folder for texts and caches, which are kept")
    parser.add_argument("--pairs", type=int, default=10_000_000, help="number of pairs (default: 10,000,000)")
    parser.add_argument("--sampling", type=float, default=0.0, help="sub-word sampling, see train.py (default: 0)")
    parser.add_argument("--vocab_size", type=int, default=8000, help="number of pieces (default: 8000)")
    add_json_option(parser)
    return parser


def main() -> None:
    """Write the text, prepare it twice, and print time and memory."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, pairs=_FEWEST_PAIRS)
    tokenizer = TokenizerConfig(vocab_size=arguments.vocab_size, sampling=arguments.sampling)
    root = arguments.folder / f"corpus-{arguments.pairs}"
    if root.exists():
        raise ValueError(f"{root} is left over from an earlier run: delete it, or give another --folder")
    files = synthetic(arguments.folder, arguments.pairs)
    cold, memory = measure(files, root, tokenizer)
    warm, warm_memory = measure(files, root, tokenizer)
    for name, found in ("from scratch", cold), ("from the cache", warm):
        print(f"{name:>15}: " + ", ".join(f"{part} {seconds:.1f} s" for part, seconds in found.seconds.items()))
    print(f"{warm.pairs:,} pairs to train on, {warm.batches:,} batches, {warm.padding:.1%} padding")
    seconds = sum(cold.seconds.values()) - cold.seconds["batches"]
    figures = {
        "minutes": seconds / 60,
        "pairs_per_s": arguments.pairs / seconds,
        "peak_main_mib": max(memory.main, warm_memory.main),
        "peak_worker_mib": memory.largest_worker,
        "workers": len(memory.workers),
        "peak_together_mib": max(memory.together, warm_memory.together),
        "warm_start_s": sum(warm.seconds.values()) - warm.seconds["batches"],
        "batches_per_s": warm.batches_per_s,
    }
    about = {
        "pairs": arguments.pairs,
        "sampling": arguments.sampling,
        "cold_s": cold.seconds,
        "warm_s": warm.seconds,
        "padding": warm.padding,
    }
    publish(figures, about, arguments.json)


if __name__ == "__main__":
    run_command("bench.data", main)
