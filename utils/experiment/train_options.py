"""Settings as train.py is given them, and as it would read them."""

import json
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from const.path import ROOT
from utils.config import AnyConfig, to_config, tree_of
from utils.task.arguments import build_parser


def as_text(value: Any) -> str:
    """A value as it stands on a command line: `0.1`, `true`, `null`, `[1, 2]`, and strings as they are."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def as_options(values: Mapping[str, Any]) -> list[str]:
    """Settings as options of train.py."""
    return [f"--{name}={as_text(value)}" for name, value in values.items()]


def found_preset(path: Path) -> Path:
    """From here, or from the project's folder.

    Raises:
        ValueError: from neither.
    """
    for found in (path, ROOT / path):
        if found.is_file():
            return found
    raise ValueError(f"no preset {path}: give a file under const/preset/, or one of your own")


def settings(arguments: Sequence[str]) -> AnyConfig:
    """All settings that train.py would train with.

    Args:
        arguments: `--config`, a file, and options.

    Raises:
        ValueError: it would refuse them; one line.
    """
    tree = tree_of(Path(arguments[arguments.index("--config") + 1]))
    parser = build_parser(tree)
    parser.exit_on_error = False
    try:
        return to_config(parser, parser.parse_args(arguments), tree)
    except ArgumentError as error:
        raise ValueError(parser.explain(str(error))) from error
