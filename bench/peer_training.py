"""Training with other toolkits, each in its own environment, with their speed taken from their logs.

What their logs count, according to their sources: JoeyNMT's "Tokens per Sec" (`Batch.ntokens`) and the second figure
of Eole's "tok/s" (`Statistics.n_tokens`) are both target tokens with </s>, without <s> and padding, over all the time
since the previous line, reading data included. No correction is needed.
"""

import os
import re
import resource
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from utils.dataset.parallel_text import ParallelText
from utils.file import write_lines

WARM_UP = 3  # fewest log lines that do not count
SETTINGS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Peer:
    """A toolkit.

    Args:
        name: name of its package.
        title: name of the toolkit.
        arguments: arguments of python that start a training with the settings beside the texts.
        rate: regular expression for target tokens per second in a log line.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    rate: str


JOEYNMT = Peer("joeynmt", "JoeyNMT", ("-m", "joeynmt", "train", "joeynmt.yaml"), r"Tokens per Sec: +(\d+)")
EOLE = Peer("eole", "Eole", ("-m", "eole.bin.main", "train", "-c", "eole.yaml"), r"\d+/ *(\d+) tok/s")
PEERS = (JOEYNMT, EOLE)


def python_of(peer: Peer, environment: Path) -> Path:
    """Return the interpreter of a virtual environment with the peer.

    Raises:
        ValueError: there is no environment, or the peer is not in it.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        raise ValueError(
            f"--{peer.name} {environment}: not a virtual environment; bench/README.md explains how to make one"
        )
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({peer.name!r}) is None)"
    if subprocess.run([python, "-c", find], check=False).returncode:
        raise ValueError(f"--{peer.name} {environment}: {peer.title} is not installed in it; see bench/README.md")
    return python.absolute()


def write_texts(train: ParallelText, dev: ParallelText, pieces: Iterable[str], folder: Path, budget: int) -> None:
    """Write all that the peers read: texts split into pieces, the pieces, and settings with this token budget."""
    for name, text in (("train", train), ("dev", dev)):
        for side, lines in (("src", text.src), ("tgt", text.tgt)):
            write_lines(folder / f"{name}.{side}", lines)
    write_lines(folder / "pieces.txt", pieces)
    for peer in PEERS:
        settings = yaml.safe_load((SETTINGS / f"{peer.name}.yaml").read_text(encoding="utf-8"))
        settings["training"]["batch_size"] = budget
        (folder / f"{peer.name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def mean_rate(rates: Iterator[float], warm_up: float, seconds: float) -> float:
    """Return the mean of rates, each weighted by the time since the previous one, over `seconds` seconds.

    Args:
        rates: rates as they arrive.
        warm_up: seconds after the first rate that do not count.
        seconds: seconds that count.

    Raises:
        ValueError: the rates end too early.
    """
    work = covered = 0.0
    last = warm = time.perf_counter()
    for n, rate in enumerate(rates):
        now = time.perf_counter()
        if n == 0:
            warm = now + warm_up
        elif n >= WARM_UP and last >= warm:
            work, covered = work + rate * (now - last), covered + now - last
        last = now
        if covered >= seconds:
            return work / covered
    raise ValueError(f"ended after {covered:.0f} of {seconds:.0f} seconds")


def train_peer(
    peer: Peer, python: Path, folder: Path, threads: int, warm_up: float, seconds: float
) -> tuple[float, float]:
    """Return target tokens per second, and peak memory in MiB. This process must have had no other child before.

    Args:
        peer: toolkit to train with.
        python: interpreter of its environment.
        folder: folder written by `write_texts`.
        threads: number of CPU threads.
        warm_up: seconds after its first log line that do not count.
        seconds: seconds that count.

    Raises:
        ValueError: it ended too early; the message includes its last lines.
    """
    shutil.rmtree(folder / peer.name, ignore_errors=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    environment.pop("PYTHONPATH", None)
    said: deque[str] = deque(maxlen=5)
    process = subprocess.Popen(
        [python, "-u", *peer.arguments],
        cwd=folder,
        env=environment,
        text=True,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        rate = mean_rate(_rates(process.stdout or (), peer.rate, said), warm_up, seconds)
    except ValueError as error:
        raise ValueError(f"{peer.title} {error}; its last lines: {' | '.join(said)}") from error
    finally:
        process.kill()
        process.wait()
    return rate, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def _rates(lines: Iterable[str], pattern: str, said: deque[str]) -> Iterator[float]:
    for line in lines:
        said.append(line.strip())
        if found := re.search(pattern, line):
            yield float(found[1])
