"""Files named after a step of the training: their names, how to find them, and their order."""

import re
from pathlib import Path

_NAME = re.compile(r"step-(\d+)")


def step_file(folder: Path, step: int, suffix: str) -> Path:
    """Return the path of the file of a step."""
    return folder / f"step-{step:08d}{suffix}"


def step_files(folder: Path, suffix: str) -> list[Path]:
    """Return the existing files, ordered by step."""
    return sorted((path for path in folder.glob(f"step-*{suffix}") if _NAME.fullmatch(path.stem)), key=step_of)


def step_of(path: Path) -> int:
    """Return the step in the name of such a file."""
    return int(path.stem.removeprefix("step-"))
