"""Imports point down: const <- config <- layers <- models <- utils <- the commands; what is read is data, not code."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from const.path import ROOT

COMMANDS = {"train", "translate", "predict", "evaluate", "serve", "export", "study"}
FLOORS = (
    {"const": 0, "config": 1, "layers": 2, "models": 3, "utils": 4}
    | dict.fromkeys(COMMANDS, 5)
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
    "config.py": 6,
    "recipe.py": 7,
    "run.py": 7,
    "arguments.py": 8,
    "load.py": 8,
    "serve": 8,
    "export/ctranslate2.py": 9,
    "export/pegasus.py": 9,
    "export/safetensors.py": 9,
    "export/graph.py": 9,
    "export/web.py": 10,
    "visualize": 9,
    "evaluation/heads.py": 10,
    "evaluation/score.py": 10,
    "evaluation/validation.py": 10,
    "task": 11,
    "experiment": 11,
}
GROUND = 0  # a file that lies in utils and in no room: tools that every room may use, and that use no room
NAMELESS = {"base", "common", "helper", "helpers", "misc", "shared", "tools", "util"}


def tracked() -> list[str]:
    """The files that git tracks: what belongs to the project."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git: nothing says which files belong to the project")
    return listed.stdout.splitlines()


def python_sources() -> dict[str, str]:
    """Path and text of each module that is not a test."""
    paths = [path for path in tracked() if path.endswith(".py") and not path.startswith("tests/")]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths if (ROOT / path).exists()}


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
    """`utils.text.tokenizer.TokenizerPair` is in the room text; `utils.load.load_run` in run.py, which stands alone."""
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


# What comes from elsewhere, a run or an archive, is read as data: no call that would run or unpack it unchecked.

# they run what a file says, or write wherever it says
FORBIDDEN = {"eval", "exec", "pickle.load", "pickle.loads", "pickle.Unpickler", "shutil.unpack_archive"}
SAFE = {"yaml.SafeLoader"}


def unchecked(source: str) -> Iterator[str]:
    """Line and name of each such call; `torch.load` and `numpy.load` are told to refuse pickles, or do so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name, given = ast.unparse(node.func), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if (
                name in FORBIDDEN
                or name.endswith(".extractall")
                or (name == "torch.load" and given.get("weights_only") != "True")
                or (name == "np.load" and given.get("allow_pickle", "False") != "False")
                or (name == "yaml.load" and given.get("Loader", ast.unparse(node.args[-1])) not in SAFE)
            ):
                yield f"{node.lineno} {name}"


def test_nothing_that_was_read_is_run_or_unpacked_unchecked() -> None:
    sources = python_sources()
    sources.pop("docs/check.py")  # it is there to run code: the pages', and what its caller has written
    found = {path: list(unchecked(source)) for path, source in sources.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}
