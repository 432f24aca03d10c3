"""Imports point down: const <- layers <- models <- utils <- the verbs, and inside utils from room to room."""

import ast
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from tests.checkout import python_sources

VERBS = {"train", "translate", "predict", "evaluate", "serve", "export", "study"}
FLOORS = (
    {"const": 0, "config": 1, "layers": 2, "models": 3, "utils": 4}
    | dict.fromkeys(VERBS, 5)
    | {"bench": 6, "docs": 6, "tests": 7}
)
ROOMS = {
    "text": 1,
    "dataset": 2,
    "training": 3,
    "search": 3,
    "evaluation": 4,
    "terminal": 4,
    "export": 5,
    "serve": 5,
    "config.py": 6,
    "run.py": 7,
    "arguments.py": 8,
    "visualize": 8,
    "evaluation/heads.py": 9,
    "task": 9,
    "evaluation/verbs.py": 10,
    "experiment": 10,
}
GROUND = 0  # a file that lies in utils and in no room: tools that every room may use, and that use no room
NAMELESS = {"base", "common", "helper", "helpers", "misc", "shared", "tools", "util"}


def imported(path: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of all that a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            package = list(PurePath(path).parent.parts)
            above = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:
                yield node.lineno, ".".join([*above, *([node.module] if node.module else []), alias.name])


def room(name: str) -> str:
    """`utils.text.tokenizer.TokenizerPair` is in the room text; `utils.run.load_run` in run.py, which stands alone."""
    parts = name.split(".")[1:]
    places = [r for r in ROOMS if parts[: r.count("/") + 1] == r.removesuffix(".py").split("/")]
    return max(places, key=len, default="")


def rank(name: str) -> int:
    return ROOMS.get(room(name), GROUND)


def faults(files: dict[str, str]) -> list[str]:
    """`file:line what is wrong`, for each import that does not point down and each file without a proper name."""
    found = []
    for path, source in files.items():
        here = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if PurePath(path).stem in NAMELESS:
            found.append(f"{path}:1 has a name that says nothing")
        if path.count("/") > 1 and here.startswith("utils.") and not room(here):
            found.append(f"{path}:1 is in a room that has no place in the order")
        for line, name in imported(path, source):
            top, other = here.split(".")[0], name.split(".")[0]
            if top not in FLOORS or other not in FLOORS:
                continue
            if FLOORS[top] < FLOORS[other]:
                found.append(f"{path}:{line} imports {name}, which stands above it")
            elif (top, other) == ("translate", "train"):
                found.append(f"{path}:{line} imports {name}: translating needs no training")
            elif top == other == "utils" and room(here) != room(name) and rank(here) <= rank(name):
                found.append(f"{path}:{line} imports {name}, which is not below it")
    return found


def test_every_import_points_down() -> None:
    sources = python_sources()
    assert "layers/mask.py" in sources
    assert not faults(sources)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("const/token.py", "import layers"),
        ("layers/mask.py", "from models.transformer import Transformer"),
        ("layers/mask.py", "def f():\n    from utils import text"),
        ("models/transformer.py", "import utils.text.tokenizer as pair"),
        ("utils/search/beam.py", "import train"),
        ("utils/search/beam.py", "from bench import decode"),
        ("utils/text/tokenizer.py", "from utils.dataset import corpus"),
        ("utils/text/tokenizer.py", "from utils import dataset"),
        ("utils/text/tokenizer.py", "from ..dataset import corpus"),
        ("utils/dataset/corpus.py", "from utils.training.plan import Progress"),
        ("utils/training/plan.py", "from utils.search.beam import beam_search"),
        ("utils/search/beam.py", "from utils.training import plan"),
        ("utils/search/beam.py", "from utils.evaluation.metric import measure"),
        ("utils/evaluation/metric.py", "from utils.visualize.curve import draw"),
        ("utils/serve/api.py", "from utils.export.safetensors import save"),
        ("utils/serve/api.py", "from utils.run import load_run"),
        ("utils/serve/api.py", "from utils import config"),
        ("utils/config.py", "from utils.run import load_run"),
        ("utils/file.py", "from utils.text.tokenizer import TokenizerPair"),
        ("utils/attic/chest.py", ""),
        ("translate.py", "from train import Trainer"),
        ("train.py", "from tests.oracle import block_state"),
        ("utils/text/common.py", ""),
        ("layers/helpers.py", ""),
        ("utils/misc.py", ""),
    ],
)
def test_a_planted_fault_is_found_with_its_line(path: str, source: str) -> None:
    line = 1 + source.count("\n")
    assert [fault.split()[0] for fault in faults({path: source})] == [f"{path}:{line}"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("layers/mask.py", "import torch\nfrom const.token import PAD_ID\nfrom layers.residual import Residual"),
        ("models/transformer.py", "from layers import mask"),
        ("utils/text/tokenizer.py", "from utils.text.tokenizer import Tokenizer\nfrom utils.file import atomic_file"),
        ("utils/serve/api.py", "from utils.evaluation.metric import measure\nfrom utils.search import beam"),
        ("utils/evaluation/metric.py", "from utils.training.plan import Progress"),
        ("utils/run.py", "from utils.config import TranslationConfig\nfrom utils.serve.api import page"),
        ("utils/config.py", "from utils.command import Parser"),
        ("train.py", "from utils import run\nimport utils.config"),
        ("bench/decode.py", "from translate import main\nfrom utils.run import load_run"),
        ("serve.py", "from utils.serve import page"),
    ],
)
def test_what_points_down_is_left_alone(path: str, source: str) -> None:
    assert faults({path: source}) == []
