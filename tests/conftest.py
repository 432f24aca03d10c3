"""What all tests share: shapes and types of tensors are checked as they run, and the real corpora, where at hand."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

from const.path import ROOT

# Before any test imports them: the annotations of the tensors (Float[Tensor, "B T D"]) become checks.
install_import_hook(["layers", "models"], "beartype.beartype")

# Two busy threads on a loaded machine wait for each other, and tensors this small gain nothing from a second one.
torch.set_num_threads(1)

# On a loaded machine the time of a single example says nothing; and a test that failed once fails again.
settings.register_profile("unhurried", deadline=None, derandomize=True)
settings.load_profile("unhurried")

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
