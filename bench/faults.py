"""Fault injection into a tiny training: kills, damaged checkpoints, a full disk: `python -m bench.faults`.

It is first run to its end undisturbed. Whatever happens to the other trainings, they must end bit-identical in weights,
checkpoint (optimizer, averages, place in the data) and log, except for times.
"""

import argparse
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from bench.publish import add_json_option, publish
from bench.tiny_training import CPU, Outcome, TinyTraining, compare, differences
from utils.command_line import Parser, run_command
from utils.training.checkpoint_store import CheckpointStore

KILLS_A_TRAINING = 5
STARTING = 0.4  # share of a training's time before its first update


# killed


def kill_once(training: TinyTraining, draw: random.Random, seconds: float, in_save: bool) -> Literal["killed", "ended"]:
    """Start or resume, and kill at a random moment, unless the training ends first.

    Args:
        training: training to kill.
        draw: random generator of the moment.
        seconds: time that it takes from here to its end.
        in_save: whether to kill while a checkpoint is being written.
    """
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
    """Kill trainings n times in all, and let each of them finish after some kills.

    Args:
        folder: folder for all of them.
        n: number of kills.
        reference: outcome that each must have.
        seconds: duration of an undisturbed training.
        seed: random seed of the moments.

    Raises:
        ValueError: a training ended differently from the reference.
    """
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
    """Damage the newer of two checkpoints n times; each time the older one must be loaded, with a notice.

    Raises:
        ValueError: a damaged checkpoint was accepted, or loading failed.
    """
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
    """Damage the newest checkpoint: train.py must report it and end the same. Damage all: it must fail with one line.

    Raises:
        ValueError: train.py behaved differently.
    """
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
    """Resume where no further checkpoint fits.

    Args:
        training: a training with checkpoints.
        prepare: called in its process to limit the space; None: the disk is full already.

    Raises:
        ValueError: the error is not a single line with figures, or the old checkpoints changed.
    """
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

    Raises:
        ValueError: it did not end like the reference, or failed on the way.
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
