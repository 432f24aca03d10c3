"""A training's log, in JSON Lines."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.file import write_text
from utils.training.observer import Observer, StepReport
from utils.training.progress import Progress
from utils.training.validation import Validation

LOG = "log.jsonl"  # in a run folder


def read_log(path: Path) -> list[tuple[str, dict[str, Any]]]:
    r"""Return each line that a JsonlLog has written completely, as text and parsed.

    Only "\n" ends a line (sentences may contain U+2028). A line that was truncated by a crash, or damaged on disk, is
    left out: a log is there to be read, and the remaining lines are still valid.
    """
    found = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            text = line.decode()
            record = json.loads(text)
            step, _ = record["step"], record["kind"]
        except (ValueError, TypeError, LookupError):
            continue
        if type(step) is int:
            found.append((text + "\n", record))
    return found


class JsonlLog(Observer):
    """A line of JSON for every reported update and every validation; a resumed run continues the log.

    Args:
        path: of the file.
        step: of the checkpoint that the run resumes from; later lines belong to lost updates, and are removed.
    """

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line, record in read_log(path) if record["step"] <= step] if path.exists() else []
        write_text(path, "".join(kept))
        self._file = path.open("a", encoding="utf-8")

    def _write(self, kind: str, progress: Progress, fields: Mapping[str, object]) -> None:
        head = {
            "kind": kind,
            "step": progress.step,
            "epoch": progress.epoch,
            "minutes": round(progress.seconds / 60, 3),
        }
        self._file.write(json.dumps(head | _finite(fields), ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def on_step(self, progress: Progress, report: StepReport) -> None:
        """Write the report."""
        self._write("train", progress, report._asdict())

    def on_validation(self, progress: Progress, validation: Validation) -> None:
        """Write the loss, scores and samples."""
        signatures = {f"{name}_signature": signature for name, signature in validation.signatures.items()}
        fields = {"loss": validation.loss, **validation.scores, **signatures, "perplexity": validation.perplexity}
        self._write("dev", progress, fields | {"samples": [sample._asdict() for sample in validation.samples]})

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _finite(fields: Mapping[str, object]) -> dict[str, object]:
    """Replace numbers that JSON cannot express (infinities, NaN) by None, null in JSON."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }
