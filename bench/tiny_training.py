"""A training of a few seconds in separate processes, which may be disturbed; its results are compared bit by bit."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from const.path import ROOT
from utils.file import write_lines
from utils.run import CHECKPOINTS, WEIGHTS
from utils.training.checkpoint_store import CheckpointStore
from utils.training.jsonl_log import LOG, read_log
from utils.training.step_file import step_files, step_of
from utils.training.weight_store import read_weights

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
    """A folder with a small parallel text, its caches, and one run.

    Args:
        folder: folder for all of it.
        settings: settings of the training, as YAML.
    """

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
        """Start training, or resume if there is a checkpoint.

        Args:
            prepare: called in the new process.
        """
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
        """Train to the end; return the output.

        Raises:
            ValueError: it ended with another status, or with a traceback.
        """
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
    """Check that two outcomes are identical.

    Raises:
        ValueError: some values differ.
    """
    if found := list(differences(ours._asdict(), reference._asdict())):
        raise ValueError(f"{len(found)} values differ from the undisturbed training: {', '.join(found[:8])}")
