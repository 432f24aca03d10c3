"""What all tests share: shapes and types of tensors are checked as they run, and the real corpora, where at hand."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings
from jaxtyping import config as jaxtyping_config
from jaxtyping import install_import_hook

from const.path import ROOT
from utils.text import loop

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Before any test imports them: the annotations of the tensors (Float[Tensor, "B T D"]) become checks.
install_import_hook(["layers", "models"], "beartype.beartype")
# The checks take a fifth of the time, so they run where a test is about tensors, not where it is about whole commands.
_CHECKED = re.compile("test_(attention|layers|packed|transformer|transformer_xl|translators|bert|loss|search|tasks)")


@pytest.fixture(autouse=True, scope="module")
def _checks_of_annotations(request: pytest.FixtureRequest) -> Iterator[None]:
    jaxtyping_config.update("jaxtyping_disable", not _CHECKED.search(request.module.__name__))
    yield
    jaxtyping_config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _no_measured_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all tests compute the same on all machines: without this, precision=auto is whatever is fast."""
    for module in ("utils.device", "utils.task.task"):
        monkeypatch.setattr(f"{module}.speedup", lambda _precision, _d_model, learning: 1.0)  # noqa: ARG005 (by name)


@pytest.fixture(scope="module")  # while it is open, no other test can run an event loop of its own
def browser() -> "Iterator[Browser]":
    """A headless Chromium; it may be missing, but not in CI."""
    from bench.web import NO_CHROMIUM, chromium, launched

    if chromium() is None and not os.environ.get("CI"):
        pytest.skip(NO_CHROMIUM)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, launched(playwright) as browser:
        yield browser


# Networks that are drawn and not trained repeat themselves in most translations: only tests of loops end them.
loop.OFTEN = 999

# Two busy threads on a loaded machine wait for each other, and tensors this small gain nothing from a second one.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of CTranslate2, and of the commands that tests start

# On a loaded machine the time of a single example says nothing; and a test that failed once fails again.
settings.register_profile("unhurried", deadline=None, derandomize=True)
settings.load_profile("unhurried")


def pytest_report_header() -> str:
    """Say which instructions are used here: fewer than there are, where an older processor is rehearsed."""
    from layers.packed import _has_blocks

    bf16 = "" if _has_blocks(torch.bfloat16) else ", without bf16"
    return f"processor: {torch.backends.cpu.get_cpu_capability()}{bf16}"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Have what cannot be printed named by its parameter: an id is plain, and the same in every process."""
    text = val.decode("ascii", "surrogateescape") if isinstance(val, bytes) else val
    return argname if isinstance(text, str) and not text.isprintable() else None


_BESIDE = ROOT.parent / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shared-data",
        type=Path,
        default=_BESIDE if _BESIDE.is_dir() else None,
        metavar="FOLDER",
        help="archives of the real corpora: kftt-data-1.0.tar.xz, small_parallel_enja.tar.xz, multi30k.tar.xz",
    )


@pytest.fixture(scope="session")
def shared_data(request: pytest.FixtureRequest) -> Path:
    """The folder with the archives of the real corpora; without it the test is skipped."""
    folder: Path | None = request.config.getoption("--shared-data")
    if folder is None or not folder.is_dir():
        pytest.skip("no archives of the real corpora: give --shared-data FOLDER")
    return folder
