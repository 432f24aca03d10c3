"""The pages of the guide as Jupyter notebooks, made from their Markdown: `python -m docs.notebook`."""

import argparse
import base64
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from const.path import ROOT
from utils.command import Parser, run_command
from utils.file import from_here, write_json

_DOCS = ROOT / "docs"
PAGES = sorted(page for page in _DOCS.rglob("*.md") if re.match(r"\d-|after_2017|mistakes|solutions|whole", page.name))
_CODE = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.S | re.M)  # and what it prints
_SETUP = f"import sys\n\nsys.path.insert(0, {str(ROOT)!r})  # from where the project is imported\n"

Cell = dict[str, Any]


def notebook(page: Path, made: dict[Path, Path]) -> dict[str, Any]:
    """Return a page as a notebook of the format 4.5: cells of text and of code, with what it prints.

    A section of the solutions needs the code of its page, which stands before it in one folded cell. `made` has the
    notebook of each page that is made, for the links between them.
    """

    def add_text(above: str) -> None:
        for section in re.split(r"^(?=## \d )", above, flags=re.M):  # only the solutions have numbered sections
            if number := re.match(r"## (\d) ", section):
                (source,) = page.parent.glob(f"{number[1]}-*.md")
                codes, outputs = zip(*_CODE.findall(source.read_text(encoding="utf-8")), strict=True)
                cell = _code_cell(f"page-{number[1]}", "\n\n".join(codes), "".join(outputs))
                cells.append(cell | {"metadata": {"jupyter": {"source_hidden": True, "outputs_hidden": True}}})
            if section.strip():
                cells.append(_text_cell(f"text-{len(cells)}", section, page, made))

    text, end = page.read_text(encoding="utf-8"), 0
    cells = [_code_cell("setup-0", _SETUP)]
    for found in _CODE.finditer(text):
        add_text(text[end : found.start()])
        cells.append(_code_cell(f"line-{1 + text.count(chr(10), 0, found.start())}", found[1], found[2] or ""))
        end = found.end()
    add_text(text[end:])
    python = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": python, "cells": cells}


def _code_cell(name: str, code: str, printed: str = "") -> Cell:
    outputs = [{"output_type": "stream", "name": "stdout", "text": printed}] if printed else []
    cell = {"cell_type": "code", "id": name, "metadata": {}, "source": code.rstrip("\n")}
    return cell | {"execution_count": None, "outputs": outputs}


def _text_cell(name: str, text: str, page: Path, made: dict[Path, Path]) -> Cell:
    """Return a cell that holds its pictures, and whose links lead to notebooks or to the files of this repository."""
    pictures: dict[str, dict[str, str]] = {}

    def lead(link: re.Match[str]) -> str:
        file = (page.parent / link[2]).resolve()
        if file.suffix == ".png":
            pictures[file.name] = {"image/png": base64.b64encode(file.read_bytes()).decode()}
            return f"{link[1]}attachment:{file.name}"
        return link[1] + quote(os.path.relpath(made.get(file, file), made[page].parent))

    source = re.sub(r"(\]\()(?!\w+:|#)([^)#\s]+)", lead, text.strip("\n"))
    cell = {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}
    return cell | ({"attachments": pictures} if pictures else {})


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    usage = "python -m docs.notebook (PAGE ... | --all) --output FOLDER"
    parser = Parser(prog="docs.notebook", usage=usage, description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="a page, such as docs/1-attention.md")
    parser.add_argument("--all", action="store_true", help="make a notebook of every page, in both languages")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write to")
    return parser


def main() -> None:
    """Write the notebooks, and print where they are."""
    arguments = build_parser().parse_args()
    pages = PAGES if arguments.all else [page.resolve() for page in arguments.pages]
    if unknown := [page for page in pages if page not in PAGES] or ([] if pages else ["no page"]):
        raise ValueError(f"{unknown[0]}: give a page of the guide, such as docs/1-attention.md, or --all")
    made = {page: arguments.output.resolve() / page.relative_to(_DOCS).with_suffix(".ipynb") for page in pages}
    if kept := [file for file in made.values() if file.exists()]:
        raise ValueError(f"{from_here(kept[0])} exists, and may have been changed: give another --output, or remove it")
    for page, file in made.items():
        write_json(file, notebook(page, made))
        print(from_here(file))


if __name__ == "__main__":
    run_command("docs.notebook", main)
