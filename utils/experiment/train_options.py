"""Settings as command-line options of train.py, and as it would read them."""

import json
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from utils.config import AnyConfig, config_type_of, to_config
from utils.task.arguments import build_parser


def as_text(value: Any) -> str:
    """Return a value as written on the command line: `0.1`, `true`, `null`, `[1, 2]`, and strings unchanged."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def as_options(values: Mapping[str, Any]) -> list[str]:
    """Return settings as options of train.py."""
    return [f"--{name}={as_text(value)}" for name, value in values.items()]


def settings(arguments: Sequence[str]) -> AnyConfig:
    """Return all settings that train.py would train with.

    Args:
        arguments: `--config`, a file, and options.

    Raises:
        ValueError: when train.py would refuse them; one line.
    """
    config_type = config_type_of(Path(arguments[arguments.index("--config") + 1]))
    parser = build_parser(config_type)
    parser.exit_on_error = False
    try:
        return to_config(parser, parser.parse_args(arguments), config_type)
    except ArgumentError as error:
        raise ValueError(parser.explain(str(error))) from error
