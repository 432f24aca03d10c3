"""Where a figure comes from: what somebody needs to know to reproduce it."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from const.corpora import VERSION
from const.path import CORPUS, PICKLES, ROOT

_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu")


def provenance(device: torch.device) -> dict[str, str]:
    """Describe the time, the code, the machine and the packages."""
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": own_commit(),
        "machine": machine(device),
        "versions": f"Python {platform.python_version()}, "
        + ", ".join(f"{package} {version(package)}" for package in _PACKAGES),
    }


@cache
def own_commit() -> str:
    """Return the commit of this code at the first call: at the start of a training, for the code may change later."""
    return commit(ROOT)


def portable(path: Path) -> str:
    """Return a path that holds on other machines: below the project, corpus/ or pickles/, or just its name."""
    if not path.is_absolute():
        return str(path)
    resolved = path.resolve()
    for above, root in ((Path("corpus"), CORPUS), (Path("pickles"), PICKLES), (Path(), ROOT)):
        if resolved.is_relative_to(root):
            return str(above / resolved.relative_to(root))
    return path.name


def commit(folder: Path) -> str:
    """Return the commit of a checkout, and whether code or settings differ from it; without a checkout, the version."""
    try:
        top, revision, changed = (
            subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (
                ("rev-parse", "--show-toplevel"),
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", ":!*.md", ":!figure"),
            )
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or not a checkout
        return f"version {VERSION}"
    if Path(top).resolve() != folder.resolve():  # a copy inside another checkout
        return f"version {VERSION}"
    return f"{revision}, changed" if changed else revision


def machine(device: torch.device) -> str:
    """Describe the device: the GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


_FASTER = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimddp", "bf16")  # of x86-64 and Arm


def _processor() -> str:
    """Name the processor, its family and model, and those of its instructions that products are computed with."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = f" {facts['cpu family']}/{facts['model']}" if {"cpu family", "model"} <= facts.keys() else ""
    has = (facts.get("flags") or facts.get("Features", "")).split()
    held = f"; oneDNN: {isa}" if (isa := os.environ.get("ONEDNN_MAX_CPU_ISA")) else ""  # as if it had no others
    return f"{facts.get('model name', platform.machine())}{model} ({' '.join(i for i in _FASTER if i in has)}{held})"
