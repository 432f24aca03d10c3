"""Check your answer to an exercise of the guide that asks for a function: `python -m docs.check 1.4`.

The function is read from exercises.py in the current folder, or from another file. It is tried as the solution is: with
the code of the page before it, and by the same checks.
"""

import argparse
import ast
import io
import re
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from const.path import ROOT
from docs.notebook import notebook
from utils.command import Parser, run_command

_SOLUTIONS = ROOT / "docs/solutions.md"


class Exercise(NamedTuple):
    """An exercise that asks for functions."""

    before: str  # code of its page
    functions: list[str]  # as they are called
    checks: str


def exercises() -> dict[str, Exercise]:
    """Return those that can be checked, by page and number: their solution is functions in one block, then checks."""
    blocks, before = dict[str, list[str]](), dict[str, str]()
    page = number = ""
    for cell in notebook(_SOLUTIONS, {_SOLUTIONS: _SOLUTIONS})["cells"]:
        if cell["id"].startswith("page-"):
            page, number = cell["id"].removeprefix("page-"), ""
            before[page] = cell["source"]
        elif cell["cell_type"] == "markdown":
            number = [number, *re.findall(r"^\*\*(\d)\.\*\*", cell["source"], re.M)][-1]
        elif number:
            blocks.setdefault(f"{page}.{number}", []).append(cell["source"])
    found = {}
    for name, (first, *checks) in blocks.items():
        parts = ast.parse(first).body
        functions = [f"{part.name}({ast.unparse(part.args)})" for part in parts if isinstance(part, ast.FunctionDef)]
        if functions and checks and all(isinstance(p, ast.FunctionDef | ast.Import | ast.ImportFrom) for p in parts):
            found[name] = Exercise(before[name.partition(".")[0]], functions, "\n\n".join(checks))
    return found


def failure(exercise: Exercise, file: Path, names: dict[str, Any]) -> str:
    """Return what is wrong with the functions of a file, or nothing.

    Args:
        names: those of the page, which the file may use.
    """
    for function in exercise.functions:
        names.pop(function.partition("(")[0], None)
    try:
        exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
        for function in exercise.functions:
            if function.partition("(")[0] not in names:
                return f"{file} does not define {function}"
        with redirect_stdout(io.StringIO()):
            exec(compile(exercise.checks, "checks", "exec"), names)
    except Exception as error:  # whatever a reader's function may raise
        places = {place.filename: place.lineno or 0 for place in traceback.extract_tb(error.__traceback__)}
        shown = [exercise.checks.splitlines()[places["checks"] - 1].strip()] if "checks" in places else []
        shown += [f"{file}, line {places[str(file)]}"] if str(file) in places else []
        return "\n".join([*shown, *map(str.rstrip, traceback.format_exception_only(error))])
    return ""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    usage = "python -m docs.check PAGE.EXERCISE [FILE]"
    parser = Parser(prog="docs.check", usage=usage, description=__doc__)
    parser.add_argument("exercise", metavar="PAGE.EXERCISE", help="such as 1.4, the fourth exercise of page 1")
    default = Path("exercises.py")
    parser.add_argument("file", nargs="?", type=Path, default=default, help="that has your function (%(default)s)")
    return parser


def main() -> None:
    """Try the reader's function, and end with status 1 if it fails."""
    arguments, known = build_parser().parse_args(), exercises()
    if arguments.exercise not in known:
        raise ValueError(f"{arguments.exercise} asks for no function: those that do are {', '.join(known)}")
    exercise = known[arguments.exercise]
    if not arguments.file.is_file():
        raise ValueError(f"no {arguments.file}: write {' and '.join(exercise.functions)} into it")
    names: dict[str, Any] = {"__name__": "exercise"}
    with redirect_stdout(io.StringIO()):
        exec(exercise.before, names)
    if wrong := failure(exercise, arguments.file, names):
        print(f"{arguments.exercise}: not yet\n{wrong}")
        sys.exit(1)
    print(f"{arguments.exercise}: right")


if __name__ == "__main__":
    run_command("docs.check", main)
