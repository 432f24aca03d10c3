"""Output of all benchmarks: figures in one line, and in a file for programs."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path

from utils.file import require_file, write_json

Figure = float | str


def add_json_option(parser: ArgumentParser) -> None:
    """Add the option --json; an impossible place is refused before anything is measured."""
    parser.add_argument("--json", type=_place_of_a_file, metavar="FILE", help="write all figures to this file")


def _place_of_a_file(name: str) -> Path:
    try:
        require_file(Path(name))
    except ValueError as error:  # argparse would not show its message
        raise ArgumentTypeError(str(error)) from error
    return Path(name)


def publish(figures: Mapping[str, Figure], about: Mapping[str, object], file: Path | None) -> None:
    """Print figures as `name=value name=value`, and write them to a file together with their context.

    Args:
        figures: figures by name; floats are printed with three digits.
        about: further content of the file.
        file: file to write; None: no file.
    """
    print("\n" + " ".join(f"{name}={_printed(value)}" for name, value in figures.items()))
    if file is not None:
        write_json(file, {**about, "figures": figures})


def _printed(value: Figure) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
