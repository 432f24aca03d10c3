"""Where a figure comes from: what somebody must know who wants it again."""

import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from const.path import CORPUS, PICKLES, ROOT
from const.version import VERSION

_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu")


def provenance(device: torch.device) -> dict[str, str]:
    """The time, the code, the machine and the packages, in words."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": own_commit(),
        "machine": machine(device),
        "versions": f"Python {platform.python_version()}, "
        + ", ".join(f"{package} {version(package)}" for package in _PACKAGES),
    }


@cache
def own_commit() -> str:
    """That of this code when it was first asked for: at the begin of a training, after which it may change."""
    return commit(ROOT)


def portable(path: Path) -> str:
    """As somebody else would write it: below corpus/ or pickles/, wherever those lie here, or else its name alone."""
    for name, root in (("corpus", CORPUS), ("pickles", PICKLES)):
        if path.resolve().is_relative_to(root):
            return f"{name}/{path.resolve().relative_to(root)}"
    return path.name if path.is_absolute() else str(path)


def commit(folder: Path) -> str:
    """The commit that a checkout stands at, and whether its code or settings differ from it; else the version."""
    try:
        top, revision, changed = (
            subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (
                ("rev-parse", "--show-toplevel"),
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", ":!*.md", ":!figure"),
            )
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return f"version {VERSION}"
    if Path(top).resolve() != folder.resolve():  # a copy inside another checkout
        return f"version {VERSION}"
    return f"{revision}, changed" if changed else revision


def machine(device: torch.device) -> str:
    """What computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
