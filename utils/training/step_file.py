"""Files that are named by the step of the training that they are of: how they are called, found and ordered."""

import re
from pathlib import Path

_NAME = re.compile(r"step-(\d+)")


def step_file(folder: Path, step: int, suffix: str) -> Path:
    """Where the file of a step lies."""
    return folder / f"step-{step:08d}{suffix}"


def step_files(folder: Path, suffix: str) -> list[Path]:
    """Those that there are, by step."""
    return sorted((path for path in folder.glob(f"step-*{suffix}") if _NAME.fullmatch(path.stem)), key=step_of)


def step_of(path: Path) -> int:
    """The step in the name of such a file."""
    return int(path.stem.removeprefix("step-"))
