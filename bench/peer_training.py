"""Training by other toolkits, each in an environment of its own: their speed by their own logs.

What a line of each log counts, read in its source: JoeyNMT's "Tokens per Sec" (`Batch.ntokens`) and the second figure
of Eole's "tok/s" (`Statistics.n_tokens`) are both target tokens with </s>, without <s> and padding, over all the time
since the line before it, reading data included. Nothing needs correcting.
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

WARM_UP = 3  # fewest lines of the log that do not count
SETTINGS = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Peer:
    """A toolkit.

    Args:
        name: of its package.
        title: of the toolkit.
        arguments: of python, to train by the settings that lie beside the texts.
        rate: finds target tokens per second in a line of its log.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    rate: str


JOEYNMT = Peer("joeynmt", "JoeyNMT", ("-m", "joeynmt", "train", "joeynmt.yaml"), r"Tokens per Sec: +(\d+)")
EOLE = Peer("eole", "Eole", ("-m", "eole.bin.main", "train", "-c", "eole.yaml"), r"\d+/ *(\d+) tok/s")
PEERS = (JOEYNMT, EOLE)


def python_of(peer: Peer, environment: Path) -> Path:
    """The interpreter of a virtual environment that holds the peer.

    Raises:
        ValueError: there is none, or it does not.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        raise ValueError(f"--{peer.name} {environment}: no virtual environment; bench/README.md says how to make it")
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({peer.name!r}) is None)"
    if subprocess.run([python, "-c", find], check=False).returncode:
        raise ValueError(f"--{peer.name} {environment}: {peer.title} is not in there; see bench/README.md")
    return python.absolute()


def write_texts(train: ParallelText, dev: ParallelText, pieces: Iterable[str], folder: Path, budget: int) -> None:
    """All that the peers read: texts cut into pieces, the pieces, and their settings with this budget of tokens."""
    for name, text in (("train", train), ("dev", dev)):
        for side, lines in (("src", text.src), ("tgt", text.tgt)):
            write_lines(folder / f"{name}.{side}", lines)
    write_lines(folder / "pieces.txt", pieces)
    for peer in PEERS:
        settings = yaml.safe_load((SETTINGS / f"{peer.name}.yaml").read_text(encoding="utf-8"))
        settings["training"]["batch_size"] = budget
        (folder / f"{peer.name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def mean_rate(rates: Iterator[float], warm_up: float, seconds: float) -> float:
    """The mean of rates, each weighted with the time since the one before it, until they cover so many seconds.

    Args:
        rates: as they come.
        warm_up: seconds since the first one that do not count.
        seconds: that do.

    Raises:
        ValueError: they end before.
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
    """Target tokens per second, and MiB at its peak. The process must have had no other child before.

    Args:
        peer: who trains.
        python: of its environment.
        folder: what `write_texts` wrote.
        threads: of the processor.
        warm_up: seconds after the first line of its log that do not count.
        seconds: that do.

    Raises:
        ValueError: it ended too early; the message ends with what it said last.
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
        raise ValueError(f"{peer.title} {error}; its last words: {' | '.join(said)}") from error
    finally:
        process.kill()
        process.wait()
    return rate, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def _rates(lines: Iterable[str], pattern: str, said: deque[str]) -> Iterator[float]:
    for line in lines:
        said.append(line.strip())
        if found := re.search(pattern, line):
            yield float(found[1])
