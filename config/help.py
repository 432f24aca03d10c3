"""What --help says of settings: what each may be, what its docstring says, and its default."""

import dataclasses
import inspect
import re
from functools import cache
from typing import Any

from config.reader import (
    fields_of,
    group_of,
    wanted,
)


def described(config_type: type, name: str, kind: Any) -> tuple[str, str]:
    """Return what a setting may be, and what the `Args:` of its dataclass say of it."""
    *groups, leaf = name.split(".")
    for group in groups:
        config_type = group_of(fields_of(config_type)[group]) or config_type
    words = ["a group or null"] if group_of(kind) else wanted(kind)
    return " | ".join(words), texts_of(config_type).get(leaf, "")


@cache
def texts_of(config_type: type) -> dict[str, str]:
    """Return what the docstrings of a dataclass and of those it extends say of each field."""
    texts: dict[str, str] = {}
    for owner in reversed(config_type.__mro__):
        section = re.search(r"^Args:\n((?: +.*\n?|\n)+)", inspect.cleandoc(owner.__doc__ or ""), re.M)
        entries = re.findall(r"^ {4}(\w+): ((?:.+\n?)(?: {5,}.+\n?)*)", section[1] if section else "", re.M)
        texts |= {name: " ".join(text.split()) for name, text in entries}
    return texts


def default_at(config_type: type, name: str) -> Any:
    """Return a setting's default; MISSING if it has none."""
    config: Any = None
    for part in name.split("."):
        if config is None:
            field = next(each for each in dataclasses.fields(config_type) if each.name == part)
            factory = field.default_factory
            config = field.default if factory is dataclasses.MISSING else factory()
        else:
            config = getattr(config, part)
        group = group_of(fields_of(config_type)[part])
        if group is not None:
            config_type, config = group, None if config is dataclasses.MISSING else config
    return config
