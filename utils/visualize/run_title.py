"""Names of runs when several are shown."""

import re
from collections.abc import Sequence
from pathlib import Path


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the folder names of runs.

    Raises:
        ValueError: two runs have the same name.
    """
    names = [folder.resolve().name for folder in folders]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two runs are named {name}: give one of them, or rename the folder of the other")
    return names


def titles(names: Sequence[str]) -> list[str]:
    """Return folder names without the time stamp at the end, unless names would then be equal."""
    short = [re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", name) for name in names]
    return [title if short.count(title) == 1 else name for title, name in zip(short, names, strict=True)]
