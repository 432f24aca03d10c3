"""Fault injection into a tiny training: kills, damaged checkpoints, no room left: `python -m bench.faults`.

It is first run to its end undisturbed. Whatever happens to the other trainings, they must end bit-identical in weights,
checkpoint (optimizer, averages, place in the data) and log, except for times.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from bench.measure import benchmark_parser, publish
from const.path import ROOT
from utils.command import Parser, run_command
from utils.file import write_lines
from utils.run import CHECKPOINTS, WEIGHTS
from utils.training.checkpoint import CheckpointStore, read_weights, step_files
from utils.training.report import LOG, read_log

CPU = torch.device("cpu")
TIMES = {"seconds", "minutes", "tokens_per_second"}  # differ between any two trainings
PATIENCE = 600.0  # seconds to wait for a training that takes about ten
KILLS_A_TRAINING = 5
AIMS = ("save", "rename", "validation", "start")  # every other kill is aimed at one of these, the rest at any moment
START_S = 3.0  # in which a process imports, reads and makes its folder
# Kills its own process at the n-th call of a function, before or after it.
KILLER = """
import os, runpy, signal, sys
from pathlib import Path
import utils.task.translation as task

where, left, is_before = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "before"
sys.argv = sys.argv[4:]

def killing(function):
    def called(*args, **options):
        global left
        left -= 1
        if not left and is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **options)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return called

if where == "rename":
    Path.replace = killing(Path.replace)
else:
    task.translation_scores = killing(task.translation_scores)
runpy.run_path(sys.argv[0], run_name="__main__")
"""

SETTINGS = """
name: faults
data: {src: my.src, tgt: my.tgt, src_lang: xx, tgt_lang: yy, held_out: 8}
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


class TinyTraining:
    """A training of a few seconds in a folder of its own, in processes that may be disturbed."""

    def __init__(self, folder: Path, settings: str = SETTINGS) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "faults.yaml").write_text(settings, encoding="utf-8")
        draw = random.Random(0)
        lines = [draw.choices("abcdefghijklmnop", k=draw.randint(4, 12)) for _ in range(120)]
        write_lines(folder / "my.src", map("".join, lines))
        write_lines(folder / "my.tgt", ("".join(reversed(line)) for line in lines))

    @property
    def run(self) -> Path:
        """Folder of the run; one that is not there if it has not started."""
        return next((self.folder / "pickles").glob("*/"), self.folder / "nowhere")

    def drafts(self) -> set[Path]:
        """Return checkpoints that are being written, or were when their writer died."""
        return set((self.run / CHECKPOINTS).glob("*.part"))

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints in order of their step."""
        return step_files(self.run / CHECKPOINTS, ".pt")

    def start(self, prepare: Callable[[], None] | None = None, killer: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start training, or resume if there is a checkpoint.

        Args:
            prepare: called in its process before it begins.
            killer: where KILLER is to kill it.
        """
        if self.checkpoints():
            arguments = ["--resume", str(self.run)]
        else:  # killed before the first validation: there is nothing to resume from
            shutil.rmtree(self.folder / "pickles", ignore_errors=True)
            arguments = ["--config", "faults.yaml"]
        places = {name: str(self.folder / name[7:].lower()) for name in ("MIYAKO_CORPUS", "MIYAKO_PICKLES")}
        with (self.folder / "output.txt").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *(["-c", KILLER, *killer] if killer else []), str(ROOT / "train.py"), *arguments],
                cwd=self.folder,
                env=os.environ | places | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=prepare,
            )

    def finish(self, status: int = 0, prepare: Callable[[], None] | None = None) -> str:
        """Train to the end; return the output."""
        process = self.start(prepare)
        try:
            ended_with = process.wait(PATIENCE)
        finally:
            process.kill()
        output = (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        if ended_with != status or "Traceback" in output:
            raise ValueError(f"train.py ended with status {ended_with} instead of {status}: {output[-2000:]}")
        return output

    def kill_after(self, wait: Callable[[subprocess.Popen[bytes]], object], killer: Sequence[str] = ()) -> bool:
        """Start or resume, wait, and kill; return whether it was still running, or has killed itself."""
        process = self.start(killer=killer)
        try:
            wait(process)
            return process.poll() in (None, -signal.SIGKILL)
        finally:
            process.kill()
            process.wait()

    def wait_for_save(self, process: subprocess.Popen[bytes], n: int) -> None:
        """Wait until the n-th checkpoint of this process is being written, or the process has ended."""
        seen = before = self.drafts()
        while process.poll() is None and len(seen) < len(before) + n:
            seen = seen | self.drafts()
            time.sleep(0.0003)

    def outcome(self) -> dict[str, Any]:
        """Return the results of the run."""
        return {
            "weights": read_weights(self.run / WEIGHTS),
            "checkpoint": CheckpointStore(self.run / CHECKPOINTS, 9).load(CPU, print),
            "log": [record for _, record in read_log(self.run / LOG)],
        }


def values(of: Any, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the name of each value, times left out, and what two equal values have in common, bit by bit."""
    if isinstance(of, Mapping | list | tuple):
        yield f"{name} length", len(of)
        for key, value in of.items() if isinstance(of, Mapping) else enumerate(of):
            if key not in TIMES:
                yield from values(value, f"{name}.{key}")
    elif isinstance(of, Tensor):
        yield name, (of.dtype, of.shape, of.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    else:
        yield name, repr(of)  # NaN is NaN here


def differences(ours: Any, theirs: Any) -> list[str]:
    """Return the names of all values that are not bit-identical, ignoring times."""
    mine, others = dict(values(ours)), dict(values(theirs))
    return [name for name in mine | others if mine.get(name) != others.get(name)]


def compare(training: TinyTraining, reference: Mapping[str, Any]) -> None:
    """Check that a training has ended as the undisturbed one."""
    if differing := differences(training.outcome(), reference):
        raise ValueError(f"{len(differing)} values differ from the undisturbed training: {', '.join(differing[:8])}")


def survive_kills(folder: Path, n: int, reference: Mapping[str, Any], seconds: float, seed: int) -> dict[str, int]:
    """Kill trainings n times in all, every other time at a bad moment, and let each of them finish after some kills."""
    aims = [AIMS[number // 2 % len(AIMS)] if number % 2 else "any moment" for number in range(n)]
    figures = Counter({"kills": 0, **{f"kills_{aim}": 0 for aim in AIMS}, "trainings": 0})
    bar, lock, numbers = tqdm(total=n, desc="killed", disable=None), Lock(), count()

    def kill(training: TinyTraining, aim: str, draw: random.Random) -> bool:
        if aim in ("rename", "validation"):
            killer = (aim, str(draw.randint(1, 12 if aim == "rename" else 4)), draw.choice(("before", "after")))
            return training.kill_after(lambda process: process.wait(PATIENCE), killer)
        latest = draw.uniform(0, START_S if aim == "start" else seconds)

        def wait(process: subprocess.Popen[bytes]) -> None:
            if aim == "save":
                training.wait_for_save(process, draw.randint(1, 4))
                time.sleep(draw.uniform(0, 0.002))
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(latest)

        return training.kill_after(wait)

    def survive(first: int) -> None:
        draw, left = random.Random(f"{seed} {first}"), aims[first : first + KILLS_A_TRAINING][::-1]
        while left:  # a training may end before it is killed: then another is for the rest
            training = TinyTraining(folder / f"killed-{next(numbers)}")
            before = training.drafts()
            while left and (was_killed := kill(training, left[-1], draw)):
                aim, after = left.pop(), training.drafts()
                in_save = bool(after - before)
                before = after
                with lock:
                    figures.update(["kills", *["kills_save"] * in_save, *[f"kills_{aim}"] * (aim in AIMS[1:])])
                    bar.update()
                    if bar.disable:  # no terminal
                        print(f"killed {figures['kills']} of {n}: {'save' if in_save else aim}", flush=True)
            if was_killed:
                training.finish()
            compare(training, reference)
            with lock:
                figures["trainings"] += 1

    with bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(survive, range(0, n, KILLS_A_TRAINING)):
            pass
    return dict(figures)


def refuse_damages(training: TinyTraining, n: int, seed: int) -> int:
    """Damage the newest checkpoint n times: it must be refused each time, and the one before it read."""
    draw, newest = random.Random(seed), training.checkpoints()[-1]
    whole = newest.read_bytes()
    for number in range(n):
        at, damaged = draw.randrange(len(whole)), bytearray(whole)
        if number % 4 == 0:
            del damaged[at:]
        elif number % 4 == 1:
            damaged[at : at + draw.randint(1, 4096)] = b""
        elif number % 4 == 2:
            damaged[at:at] = draw.randbytes(draw.randint(1, 4096))
        else:
            damaged[at] ^= 1 << draw.randrange(8)
        newest.write_bytes(damaged)
        said = list[str]()
        CheckpointStore(newest.parent, 9).load(CPU, said.append)
        if not any(f"Checkpoint {newest.name} is damaged" in line for line in said):
            raise ValueError(f"damage {number} of {newest.name} (seed {seed}) was not noticed: {said}")
    newest.write_bytes(whole)
    return n


def survive_damage(training: TinyTraining, reference: Mapping[str, Any]) -> None:
    """Damage the newest checkpoint: train.py must say so and end the same. Damage all: it must fail with one line."""
    newest = training.checkpoints()[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    if f"Checkpoint {newest.name} is damaged" not in (output := training.finish()):
        raise ValueError(f"a damaged checkpoint was skipped without a message: {output[-2000:]}")
    compare(training, reference)
    for path in training.checkpoints():
        path.write_bytes(b"")
    last = training.finish(status=2).splitlines()[-1]
    if not last.startswith("train.py: error: no checkpoint in "):
        raise ValueError(f"with no checkpoint left, the last line was {last}")


def survive_full_disk(training: TinyTraining, reference: Mapping[str, Any]) -> None:
    """Kill a training, resume it where no further checkpoint fits, and then where there is room again.

    A limit on the size of files stands for the full disk, which needs no right to mount one.
    """
    training.kill_after(lambda process: training.wait_for_save(process, 4))
    for draft in training.drafts():
        draft.unlink()
    before = {path.name: path.read_bytes() for path in training.checkpoints()}
    room = len(before[max(before)]) * 9 // 10  # enough for everything else that is written first
    last = training.finish(2, partial(resource.setrlimit, resource.RLIMIT_FSIZE, (room, room))).splitlines()[-1]
    if not last.startswith("train.py: error: no room for step-"):
        raise ValueError(f"without room, the last line was {last}")
    if {path.name: path.read_bytes() for path in training.checkpoints()} != before or training.drafts():
        raise ValueError("without room, the old checkpoints changed")
    training.finish()
    compare(training, reference)


def build_parser() -> Parser:
    """Build the parser with all options."""
    return benchmark_parser(
        "faults",
        "Kill a tiny training, damage its checkpoints, leave no room for them: it must still end bit-identical.",
        """  python -m bench.faults                              100 kills, 200 damages, no room: half an hour or more
  python -m bench.faults --kills 2 --damages 8        a quick look""",
        kills=(100, "number of kills, every other one at a save, a rename, a validation or in the first seconds"),
        damages=(200, "number of damages to a checkpoint"),
        seed=(1, "random seed of their moments"),
    )


def main() -> None:
    """Train undisturbed, then with faults; compare, print and write the results."""
    arguments = build_parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        training = TinyTraining(folder / "reference")
        begin = time.monotonic()
        training.finish()
        seconds, reference = time.monotonic() - begin, training.outcome()
        print(f"The undisturbed training takes {seconds:.1f} s and leaves {len(reference['log'])} lines of log.")
        damages = refuse_damages(training, arguments.damages, arguments.seed)
        survive_damage(training, reference)
        survive_full_disk(TinyTraining(folder / "starved"), reference)
        figures = survive_kills(folder, arguments.kills, reference, seconds, arguments.seed)
    print("All trainings ended bit-identical to the undisturbed one.")
    publish(figures | {"damages_refused": damages}, {}, arguments.json)


if __name__ == "__main__":
    run_command("bench.faults", main)
