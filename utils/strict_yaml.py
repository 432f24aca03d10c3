"""YAML that hides no mistakes: every key is a string and appears only once."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Refuses what PyYAML accepts: duplicate keys, of which the last would win, and `2`, `off`, `null` as keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        known: set[str] = set()
        for below, _ in node.value:
            if below.tag == _MERGE:
                continue
            key, line = self.construct_object(below, deep=True), below.start_mark.line + 1
            if not isinstance(key, str):
                raise ValueError(f"line {line}: the key {_as_written(below)} is not a string: quote it")
            if key in known:
                raise ValueError(f"line {line}: the key {key} appears twice: leave one of them out")
            known.add(key)
        return super().construct_mapping(node, deep)


def _as_written(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "that is a list or a group"


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ValueError: when it is malformed, or a key is not a string or appears twice; one line that names the file.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        at = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise ValueError(f"{path}: {at}{said}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
