"""How every benchmark ends: figures to a file for programs, and in one line."""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path

from utils.file import require_file, write_json

Figure = float | str


def add_json_option(parser: ArgumentParser) -> None:
    """Where the file is to be; a place that no file can take is refused before anything is measured."""
    parser.add_argument("--json", type=_place_of_a_file, metavar="FILE", help="where to write all figures")


def _place_of_a_file(name: str) -> Path:
    try:
        require_file(Path(name))
    except ValueError as error:  # whose words argparse would not show
        raise ArgumentTypeError(str(error)) from error
    return Path(name)


def publish(figures: Mapping[str, Figure], about: Mapping[str, object], file: Path | None) -> None:
    """Print figures as `name=value name=value`, and write them with what belongs to them, where a file is wanted.

    Args:
        figures: by name; fractions are printed with three digits.
        about: what else the file shall tell.
        file: where to write; None: nowhere.
    """
    print("\n" + " ".join(f"{name}={_printed(value)}" for name, value in figures.items()))
    if file is not None:
        write_json(file, {**about, "figures": figures})


def _printed(value: Figure) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
