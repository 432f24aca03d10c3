"""Fault injection into a tiny training: kills, damaged checkpoints, a full disk: `python -m bench.faults`.

It is first run to its end undisturbed. Whatever happens to the other trainings, they must end bit-identical in weights,
checkpoint (optimizer, averages, place in the data) and log, except for times.
"""

import argparse
import itertools
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from bench.measure import add_json_option, publish
from const.path import ROOT
from utils.command import Parser, run_command
from utils.file import write_lines
from utils.run import CHECKPOINTS, WEIGHTS
from utils.training.checkpoint import CheckpointStore, read_weights, step_files, step_of
from utils.training.report import LOG, read_log

# A training of a few seconds in separate processes, which may be disturbed; its results are compared bit by bit.

CPU = torch.device("cpu")
TIMES = {"seconds", "minutes", "tokens_per_second"}  # differ between any two trainings
PATIENCE = 600.0  # seconds to wait for a training that takes about ten

SETTINGS = """
name: faults
data: {held_out: 8}
tokenizer: {kind: bpe, vocab_size: 48, joint: false, sampling: 0.1}
model: {d_model: 16, n_heads: 2, d_ff: 32, n_encoder_layers: 1, n_decoder_layers: 1, max_length: 40, tie: target,
        dropout: 0.2, attention_dropout: 0.1}
batch: {tokens_per_batch: 120, max_tokens: 40, accumulate: 2}
optimizer: {peak_lr: 0.01, warmup_steps: 20, ema_decay: 0.9}
training: {max_steps: 60, max_epochs: null, validate_every: 5, report_every: 1, precision: fp32, device: cpu,
           select_by: loss, patience: 9}
checkpoint: {average_last: 2}
search: {beam_size: 2, max_ratio: 1.0}
"""

_PLACES = {"京都": "Kyoto", "奈良": "Nara", "大阪": "Osaka", "嵐山": "Arashiyama", "宇治": "Uji", "伏見": "Fushimi"}
_KINDS = {"古い": "old", "新しい": "new", "美しい": "beautiful", "小さい": "small"}
_THINGS = {"寺": "temple", "橋": "bridge", "川": "river", "庭": "garden", "店": "shop"}


class Outcome(NamedTuple):
    """The results of a training."""

    weights: dict[str, Tensor]
    checkpoint: dict[str, Any]
    log: list[dict[str, Any]]


@dataclass
class TinyTraining:
    """A folder with a small parallel text, its caches, and one run."""

    folder: Path
    settings: str = SETTINGS
    said: Path = field(init=False)  # output of all processes

    def __post_init__(self) -> None:
        """Write the settings and the text."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.said = self.folder / "said.txt"
        (self.folder / "faults.yaml").write_text(self.settings, encoding="utf-8")
        words = list(itertools.product(_PLACES, _KINDS, _THINGS))
        texts = {
            "my.ja": [f"{place}に{kind}{thing}がある。" for place, kind, thing in words],
            "my.en": [f"There is a {_KINDS[k]} {_THINGS[t]} in {_PLACES[p]}." for p, k, t in words],
        }
        for name, lines in texts.items():
            write_lines(self.folder / name, lines)

    @property
    def run(self) -> Path | None:
        """Folder of the run; None if it has not started."""
        return next(iter((self.folder / "pickles").glob("*/")), None)

    def drafts(self) -> set[str]:
        """Return checkpoints that are being written, or were when their writer died."""
        with suppress(FileNotFoundError):
            run = self.run
            if run is not None:
                return {entry.name for entry in os.scandir(run / CHECKPOINTS) if entry.name.endswith(".part")}
        return set()

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints in order of their step."""
        return step_files(self.run / CHECKPOINTS, ".pt") if self.run else []

    @property
    def step(self) -> int:
        """Step of the newest checkpoint."""
        return max(map(step_of, self.checkpoints()), default=0)

    def start(self, prepare: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
        """Start training, or resume if there is a checkpoint."""
        if self.checkpoints():
            arguments = ["--resume", str(self.run)]
        else:  # killed before the first validation: there is nothing to resume from
            shutil.rmtree(self.folder / "pickles", ignore_errors=True)
            files = ("--data.src", str(self.folder / "my.ja"), "--data.tgt", str(self.folder / "my.en"))
            arguments = ["--config", str(self.folder / "faults.yaml"), *files]
        places = {name: str(self.folder / name[7:].lower()) for name in ("MIYAKO_CORPUS", "MIYAKO_PICKLES")}
        with self.said.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "train.py", *arguments],
                cwd=ROOT,
                env=os.environ | places | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                preexec_fn=prepare,
            )

    def finish(self, status: int = 0, prepare: Callable[[], None] | None = None) -> str:
        """Train to the end; return the output."""
        before = self.said.stat().st_size if self.said.exists() else 0
        process = self.start(prepare)
        try:
            found = process.wait(PATIENCE)
        finally:
            process.kill()
        said = self.said.read_bytes()[before:].decode(errors="replace")
        if found != status or "Traceback" in said:
            raise ValueError(f"train.py ended with status {found} instead of {status}: {said[-2000:]}")
        return said

    def outcome(self) -> Outcome:
        """Read the results of the run."""
        run = self.run
        if run is None:
            raise ValueError(f"no run in {self.folder}")
        state = CheckpointStore(run / CHECKPOINTS, 9).load(CPU, print)
        return Outcome(read_weights(run / WEIGHTS), state, [record for _, record in read_log(run / LOG)])


def differences(a: Any, b: Any, name: str = "") -> Iterator[str]:
    """Yield the names of all values that are not bit-identical, ignoring times."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or _bits(a) != _bits(b):
            yield name
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if key in TIMES:
                continue
            if key not in a or key not in b:
                yield f"{name}.{key}"
            else:
                yield from differences(a[key], b[key], f"{name}.{key}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            yield f"{name} ({len(a)} and {len(b)} long)"
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{name}[{i}]")
    elif repr(a) != repr(b):  # NaN is NaN here
        yield f"{name} ({a!r} and {b!r})"


def _bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def compare(ours: Outcome, reference: Outcome) -> None:
    """Check that two outcomes are identical."""
    if found := list(differences(ours._asdict(), reference._asdict())):
        raise ValueError(f"{len(found)} values differ from the undisturbed training: {', '.join(found[:8])}")


KILLS_A_TRAINING = 5
STARTING = 0.4  # share of a training's time before its first update


# killed


def kill_once(training: TinyTraining, draw: random.Random, seconds: float, in_save: bool) -> Literal["killed", "ended"]:
    """Start or resume, and kill at a random moment, unless the training ends first."""
    process = training.start()
    try:
        if in_save:
            wait_for_save(training, process, draw.randint(1, 4))
            time.sleep(draw.uniform(0, 0.002))
        else:
            with suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(0, seconds))
        return "killed" if process.poll() is None else "ended"
    finally:
        process.kill()
        process.wait()


def wait_for_save(training: TinyTraining, process: subprocess.Popen[bytes], n: int) -> None:
    """Wait until the n-th checkpoint of this process is being written, or the process has ended."""
    left = training.drafts()
    seen: set[str] = set()
    while process.poll() is None and len(seen) < n:
        seen |= training.drafts() - left
        time.sleep(0.0003)


def survive_kills(folder: Path, n: int, reference: Outcome, seconds: float, seed: int) -> dict[str, int]:
    """Kill trainings n times in all, and let each of them finish after some kills."""
    draw, figures = random.Random(seed), Counter(kills=0, kills_in_save=0, trainings=0)
    last_step = reference.checkpoint["progress"]["step"]
    with tqdm(total=n, desc="killed", disable=None) as bar:
        while figures["kills"] < n:
            training = TinyTraining(folder / f"killed-{figures['trainings']}")
            for i in range(min(KILLS_A_TRAINING, n - figures["kills"])):
                before = training.drafts()
                left = STARTING + (1 - STARTING) * (1 - training.step / last_step)
                if kill_once(training, draw, seconds * left, in_save=i % 2 == 1) == "ended":
                    break
                figures["kills"] += 1
                figures["kills_in_save"] += bool(training.drafts() - before)
                bar.update()
            else:
                training.finish()
            compare(training.outcome(), reference)
            if b"Traceback" in training.said.read_bytes():
                raise ValueError(f"a killed training left a traceback: {training.said.read_text()[-2000:]}")
            figures["trainings"] += 1
    return dict(figures)


# damaged


def truncate(data: bytes, draw: random.Random) -> bytes:
    """Cut off the end."""
    return data[: draw.randrange(1, len(data))]


def flip(data: bytes, draw: random.Random) -> bytes:
    """Flip one to eight bits."""
    flipped = bytearray(data)
    for bit in draw.sample(range(8 * len(data)), draw.randint(1, 8)):
        flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def empty(data: bytes, draw: random.Random) -> bytes:  # noqa: ARG001 (one signature for all)
    """Remove everything."""
    return b""


def zero(data: bytes, draw: random.Random) -> bytes:
    """Zero a block, like a disk that did not get to write it."""
    size = draw.choice([16, 512, 4096])
    begin = draw.randrange(len(data)) // size * size
    block = data[begin : begin + size]
    return data[:begin] + bytes(len(block)) + data[begin + size :]


def append(data: bytes, draw: random.Random) -> bytes:
    """Append random bytes."""
    return data + draw.randbytes(draw.randint(1, 5000))


DAMAGES: Sequence[Callable[[bytes, random.Random], bytes]] = (truncate, flip, empty, zero, append)


def survive_damage(checkpoints: Sequence[Path], folder: Path, n: int, seed: int) -> dict[str, int]:
    """Damage the newer of two checkpoints n times; each time the older one must be loaded, with a notice."""
    draw, refused = random.Random(seed), 0
    older, newer = checkpoints
    whole = newer.read_bytes()
    store = CheckpointStore(folder, 2)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(older, folder)
    expected = CheckpointStore(folder, 2).load(CPU, print)
    for i in tqdm(range(n), desc="damaged", disable=None):
        hurt = DAMAGES[i % len(DAMAGES)]
        while (data := hurt(whole, draw)) == whole:  # zeros in place of zeros
            pass
        (folder / newer.name).write_bytes(data)
        said: list[str] = []
        try:
            found = store.load(CPU, said.append)
        except Exception as error:
            raise ValueError(f"damage {i} ({hurt.__name__}) was fatal: {error!r}") from error
        wrong = next(differences(found, expected), None)
        if wrong or len(said) != 1 or newer.name not in said[0] or older.name not in said[0]:
            raise ValueError(f"damage {i} ({hurt.__name__}) was accepted: {wrong}; messages: {said}")
        refused += 1
    return {"damages": n, "refused": refused}


def survive_damage_on_the_command_line(training: TinyTraining, reference: Outcome) -> None:
    """Damage the newest checkpoint: train.py must say so and end the same. Damage all: it must fail with one line."""
    newest = training.checkpoints()[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    said = training.finish()
    if f"Checkpoint {newest.name} is damaged" not in said:
        raise ValueError(f"a damaged checkpoint was skipped without a message: {said[-2000:]}")
    compare(training.outcome(), reference)
    for path in training.checkpoints():
        path.write_bytes(b"")
    (line,) = training.finish(status=2).strip().splitlines()[-1:]
    if not line.startswith("train.py: error: no checkpoint in "):
        raise ValueError(f"with no checkpoint left, the last line was {line}")


# starved


def mount_small_disk(folder: Path, size: int) -> bool:
    """Mount a separate disk of `size` bytes at an empty folder; False: this user may not."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return (
        shutil.which("mount") is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def unmount(folder: Path) -> None:
    """Unmount the small disk."""
    subprocess.run(["umount", str(folder)], check=True)


def _limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def starve(training: TinyTraining, prepare: Callable[[], None] | None) -> None:
    """Resume where no further checkpoint fits."""
    before = {path.name: path.read_bytes() for path in training.checkpoints()}
    said = training.finish(2, prepare)
    last = said.strip().splitlines()[-1]
    if not (
        last.startswith("train.py: error: no room for step-") and " MiB, and " in last and " MiB are free in " in last
    ):
        raise ValueError(f"on a full disk, the last line was {last}")
    if {path.name: path.read_bytes() for path in training.checkpoints()} != before or training.drafts():
        raise ValueError("on a full disk, the old checkpoints changed")


def survive_full_disk(folder: Path, reference: Outcome) -> str:
    """Kill a training, resume it where no further checkpoint fits, and then where there is room again.

    Returns:
        `tmpfs` for a full disk, or `rlimit` for limited file sizes if nothing may be mounted.
    """
    started = TinyTraining(folder / "started")
    process = started.start()
    try:
        wait_for_save(started, process, 4)
    finally:
        process.kill()
        process.wait()
    run = started.run
    if run is None:
        raise ValueError("the training did not start")
    room = started.checkpoints()[-1].stat().st_size * 9 // 10  # enough for everything else that is written first
    starved = TinyTraining(folder / "starved")
    disk = starved.folder / "pickles"
    blocks = sum(-(-path.stat().st_size // 4096) for path in run.rglob("*"))
    mounted = mount_small_disk(disk, 4096 * blocks + room)
    try:
        shutil.copytree(run, disk / run.name)
        starve(starved, None if mounted else partial(_limit_files, room))
        if mounted:
            subprocess.run(["mount", "-o", f"remount,size={100 * 4096 * blocks}", str(disk)], check=True)
        starved.finish()
        compare(starved.outcome(), reference)
    finally:
        if mounted:
            unmount(disk)
    return "tmpfs" if mounted else "rlimit"


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="bench.faults",
        usage="python -m bench.faults [--kills N] [--damages N] [--seed N] [--json FILE]",
        description="Kill a tiny training, damage its checkpoints, fill its disk: it must still end bit-identical.",
        epilog="""examples:
  python -m bench.faults                            30 kills, 200 damages, a full disk: a quarter of an hour
  python -m bench.faults --kills 2 --damages 20     a quick look""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=30, help="number of kills (default: 30)")
    parser.add_argument("--damages", type=int, default=200, help="number of damaged checkpoints (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of moments and damages (default: 1)")
    add_json_option(parser)
    return parser


def main() -> None:
    """Train undisturbed, then with faults; compare, print and write the results."""
    arguments = build_parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        training = TinyTraining(folder / "reference")
        begin = time.monotonic()
        training.finish()
        seconds, reference = time.monotonic() - begin, training.outcome()
        print(f"The undisturbed training takes {seconds:.1f} s and leaves {len(reference.log)} lines of log.")
        figures: dict[str, int | str] = {}
        figures |= survive_damage(training.checkpoints(), folder / "damaged", arguments.damages, arguments.seed)
        survive_damage_on_the_command_line(training, reference)
        figures |= {"full_disk": survive_full_disk(folder, reference)}
        figures |= survive_kills(folder, arguments.kills, reference, seconds, arguments.seed)
    print("All trainings ended bit-identical to the undisturbed one.")
    publish(figures, {}, arguments.json)


if __name__ == "__main__":
    run_command("bench.faults", main)
