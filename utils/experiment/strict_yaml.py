"""YAML that hides no mistake: a key is a string, and stands once."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Python's dict would keep the last of two equal keys, and YAML takes `2`, `off` and `null` for no strings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        known: set[str] = set()
        for below, _ in node.value:
            if below.tag == _MERGE:
                continue
            key, line = self.construct_object(below, deep=True), below.start_mark.line + 1
            if not isinstance(key, str):
                raise ValueError(f"line {line}: the key {_as_written(below)} is no string: quote it")
            if key in known:
                raise ValueError(f"line {line}: the key {key} stands there twice: leave one of them out")
            known.add(key)
        return super().construct_mapping(node, deep)


def _as_written(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "that is a list or a group"


def read_yaml(path: Path) -> Any:
    """What a file says.

    Raises:
        ValueError: it is broken, or a key of it is no string or stands twice; one line that names the file.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: save it so") from error
    except yaml.MarkedYAMLError as error:
        at = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise ValueError(f"{path}: {at}{said}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
