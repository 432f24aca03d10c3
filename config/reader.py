"""Settings are layers of text that are merged, and then read once, by the types of the fields that they are for.

A preset, a saved run, a study's trial and a command line are nested mappings of what was written. YAML is used for its
structure alone: `no`, `010` or `1:30:00` mean what the field's type makes of them, in a file as on the command line.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from config.group import BoundError

ConfigT = TypeVar("ConfigT")
# saved with every run by earlier versions, and gone since: group -> names
_REMOVED = {"search": {"coverage_penalty"}, "optimizer": {"noam_factor"}}
_NULL = ("null", "Null", "NULL", "~", "")


class Text(str):
    """A value as written, with its place (`preset.yaml, line 3`), which begins complaints about it."""

    place: str
    quoted: bool  # null and ~ in quotes are words

    def __new__(cls, value: str, place: str = "", quoted: bool = False) -> "Text":
        """Make a value with its place."""
        text = super().__new__(cls, value)
        text.place, text.quoted = place, quoted
        return text

    @property
    def is_null(self) -> bool:
        """Whether it stands for no value."""
        return not self.quoted and self in _NULL


Value = Text | list[Text]
Layer = dict[str, Any]  # of names, to a Value or a Layer


class SettingsError(ValueError):
    """A mistake in what was written; one line that names its place."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)


def layer_from_file(path: Path) -> Layer:
    """Read a YAML file of settings; refuse what is not UTF-8, not YAML, not a mapping, or has a key twice."""
    if not path.is_file():
        raise SettingsError(f"no settings {path}: give the folder of a run")
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise SettingsError("not UTF-8: save it as UTF-8", str(path)) from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(", ".join(filter(None, (error.context, error.problem))), f"{path}{line}") from error
    except yaml.YAMLError as error:
        raise SettingsError(" ".join(str(error).split()), str(path)) from error
    if not isinstance(node, yaml.MappingNode):
        raise SettingsError("no settings; see const/preset/ for examples", str(path))
    try:
        return _layer(node, str(path))
    except RecursionError:
        raise SettingsError("a group that is a part of itself: write it out", str(path)) from None


def _layer(node: yaml.MappingNode, file: str) -> Layer:
    layer: Layer = {}
    for key, value in node.value:
        place = f"{file}, line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError("a key that is a list or a group: give a name", place)
        if key.value in layer:
            raise SettingsError(f"the key {key.value} appears twice: leave one of them out", place)
        layer[key.value] = _layer(value, file) if isinstance(value, yaml.MappingNode) else _value(value, file)
    return layer


def _value(node: yaml.Node, file: str) -> Value:
    place = f"{file}, line {node.start_mark.line + 1}" if file else ""
    if isinstance(node, yaml.ScalarNode):
        return Text(node.value, place, quoted=node.style in ("'", '"'))
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [Text(item.value, place) for item in node.value]
    raise SettingsError("a list of lists or groups: give a list of values", place)


def without_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that were removed; schedule=noam becomes inverse_sqrt with the same rates."""
    found = {
        group: {name: value for name, value in below.items() if name not in _REMOVED[group]}
        if group in _REMOVED and isinstance(below, Mapping)
        else below
        for group, below in settings.items()
    }
    optimizer, model = settings.get("optimizer"), settings.get("model")
    if isinstance(optimizer, Mapping) and optimizer.get("schedule") == "noam" and isinstance(model, Mapping):
        warmup, width = max(1, int(optimizer.get("warmup_steps", 4000))), int(model.get("d_model", 512))
        peak_lr = float(optimizer.get("noam_factor", 1.0)) * (width * warmup) ** -0.5
        as_written = type(optimizer.get("peak_lr", peak_lr))  # a number, or text in which nothing is read yet
        found["optimizer"] = found["optimizer"] | {"schedule": "inverse_sqrt", "peak_lr": as_written(peak_lr)}
    return found


def layer_from_options(options: Mapping[str, str]) -> Layer:
    """Return the layer of some options, such as {"model.d_model": "256"}."""
    layer: Layer = {}
    for name, value in options.items():
        *groups, leaf = name.split(".")
        below = layer
        for group in groups:
            below = below.setdefault(group, {})
            if not isinstance(below, dict):
                raise SettingsError(f"{name} and {group} are both given: leave one of them out")
        below[leaf] = Text(value)
    return layer


def merged(*layers: Layer) -> Layer:
    """Return the settings of all layers, from the weakest to the strongest: of equal names, the last one counts."""
    result: Layer = {}
    for layer in layers:
        for name, value in layer.items():
            before = result.get(name)
            if isinstance(value, dict) and isinstance(before, dict):
                value = merged(before, value)
            result[name] = value
    return result


@cache
def fields_of(config_type: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass."""
    hints = get_type_hints(config_type)
    return {field.name: hints[field.name] for field in dataclasses.fields(config_type)}


def group_of(kind: Any) -> type | None:
    """Return the dataclass of a field that is a group of settings, or a group or null; None for a value."""
    kinds = (kind, *get_args(kind)) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((each for each in kinds if isinstance(each, type) and dataclasses.is_dataclass(each)), None)


def names_of(config_type: type, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name and the type of every setting; a group that may be null is one, too."""
    for name, kind in fields_of(config_type).items():
        group = group_of(kind)
        if group is None or NoneType in get_args(kind):
            yield above + name, kind
        if group is not None:
            yield from names_of(group, f"{above}{name}.")


def read(config_type: type[ConfigT], layer: Layer, above: str = "", known: Sequence[str] = ()) -> ConfigT:
    """Make a dataclass of what was written; what was not has its default.

    Args:
        config_type: the dataclass.
        layer: what was written.
        above: name of the group, with a dot behind it.
        known: all names that a complaint may suggest; those of the dataclass by default.
    """
    known = known or [name for name, _ in names_of(config_type, above)]
    kinds, values = fields_of(config_type), {}  # type: ignore[arg-type]  # a dataclass, always
    for name, written in layer.items():
        if name not in kinds:
            raise _unknown(above + name, written, known)
        values[name] = _read_field(above + name, kinds[name], written, known)
    for field in dataclasses.fields(config_type):  # type: ignore[arg-type]  # as above
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if missing and field.name not in values:
            below = group_of(kinds[field.name])
            if below is None:
                raise SettingsError(f"{above}{field.name} is missing: give it a value")
            values[field.name] = read(below, {}, f"{above}{field.name}.", known)
    try:
        return config_type(**values)
    except BoundError as error:
        raise SettingsError(f"{above}{error}", _place(layer.get(error.name))) from None


def _read_field(name: str, kind: Any, written: Any, known: Sequence[str]) -> Any:
    """Return what was written for a field: a group, a mapping from names of the user's own, or a value."""
    if get_origin(kind) is dict and isinstance(written, dict):
        return {key: _read_field(f"{name}.{key}", get_args(kind)[1], value, ()) for key, value in written.items()}
    group = group_of(kind)
    if group is None:
        return read_value(name, kind, written)
    if isinstance(written, dict):
        return read(group, written, f"{name}.", known)
    if isinstance(written, Text) and written.is_null and NoneType in get_args(kind):
        return None
    remedy = "null" if NoneType in get_args(kind) else "leave it out"
    shown = _shown(written)
    raise SettingsError(
        f"{name} is a group of settings, not {shown}: give settings below it, or {remedy}", _place(written)
    )


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, of the same group if there is one like it."""
    known, (group, _, last) = list(known), name.rpartition(".")
    beside = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == group}
    near = get_close_matches(last, beside, 3, 0.5)
    if near:  # of those that are equally close, the one that has the same letters: log, not low, for lgo
        matchers = {each: SequenceMatcher(None, each, last) for each in near}
        return beside[max(near, key=lambda each: (matchers[each].ratio(), matchers[each].quick_ratio()))]
    return next(iter(get_close_matches(name, known, 1, 0.5)), None)


def _unknown(name: str, written: Any, known: Sequence[str]) -> SettingsError:
    while isinstance(written, dict) and written:
        below, written = next(iter(written.items()))
        name += f".{below}"
    near = near_name(name, known)
    return SettingsError(
        f"unknown setting {name}: " + (f"did you mean {near}?" if near else "see --help"), _place(written)
    )


def _place(written: Any) -> str:
    while isinstance(written, dict | list) and written:
        written = next(iter(written.values())) if isinstance(written, dict) else written[0]
    return written.place if isinstance(written, Text) else ""


def _shown(written: Any) -> str:
    if isinstance(written, dict):
        return "a group"
    return f"[{', '.join(written)}]" if isinstance(written, list) else str(written) or "null"


def read_value(name: str, kind: Any, written: Any) -> Any:
    """Return a value of the type of the setting of this name; of `Any`, what was written."""
    if kind is Any:
        return written
    optional = NoneType in get_args(kind)
    if isinstance(written, Text) and written.is_null:
        if optional or kind is NoneType:
            return None
        if kind is not str or written:
            raise SettingsError(f"{name} cannot be null: give it a value, or leave it out", _place(written))
    for each in _alternatives(kind):
        try:
            return _converted(each, written)
        except (ValueError, TypeError, yaml.YAMLError):
            continue
    *others, last = wanted(kind)
    shown = _shown(written)
    raise SettingsError(f"{name}={shown}: give {', '.join(others)}{' or ' * bool(others)}{last}", _place(written))


def _alternatives(kind: Any) -> list[Any]:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]
    return [each for each in kinds if each is not NoneType]


def wanted(kind: Any) -> list[str]:
    """Return in words what a value of this type may be."""
    return [word for each in _alternatives(kind) for word in _words(each)] + ["null"] * (NoneType in get_args(kind))


def _converted(kind: Any, written: Any) -> Any:
    """Return a value of this type, or raise a ValueError or TypeError."""
    if get_origin(kind) is list and isinstance(written, list):
        return [_converted(get_args(kind)[0], item) for item in written]
    if get_origin(kind) is tuple:
        if isinstance(written, Text):
            node = yaml.compose(written, yaml.SafeLoader)
            written = _value(node, "") if isinstance(node, yaml.SequenceNode) else written.split(",")
        return tuple(_converted(each, Text(item)) for each, item in zip(get_args(kind), written, strict=True))
    if not isinstance(written, str) or get_origin(kind) in (list, dict):
        raise TypeError(written)
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return choices[choices.index(written)]  # raises a ValueError if it is none of them
    if kind is bool:
        if written.lower() not in ("true", "false"):
            raise ValueError(written)
        return written.lower() == "true"
    if kind is int:
        if not re.fullmatch(r"[-+]?[0-9]+", written):  # int() also reads 1_000 and digits of other scripts
            raise ValueError(written)
        return int(written)
    if kind is float:
        return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", written.lower()))
    return kind(str(written))


def _words(kind: Any) -> Sequence[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if get_origin(kind) is tuple:
        return [f"a list of {len(get_args(kind))}, such as [0.9, 0.98]"]
    if get_origin(kind) in (list, dict):
        return ["a list, such as [1, 2]" if get_origin(kind) is list else "a group"]
    return [{bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}.get(kind, "text")]


# What --help says of settings: what each may be, what its docstring says, and its default.


def described(config_type: type, name: str, kind: Any) -> tuple[str, str, Any]:
    """Return what a setting may be, what the `Args:` of its dataclass say of it, and its default; MISSING: none."""
    *groups, leaf = name.split(".")
    for group in groups:
        config_type = group_of(fields_of(config_type)[group]) or config_type
    words = ["a group or null"] if group_of(kind) else wanted(kind)
    (field,) = (each for each in dataclasses.fields(config_type) if each.name == leaf)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return " | ".join(words), texts_of(config_type).get(leaf, ""), default


@cache
def texts_of(config_type: type) -> dict[str, str]:
    """Return what the docstrings of a dataclass and of those it extends say of each field."""
    texts: dict[str, str] = {}
    for owner in reversed(config_type.__mro__):
        section = re.search(r"^Args:\n((?: +.*\n?|\n)+)", inspect.cleandoc(owner.__doc__ or ""), re.M)
        entries = re.findall(r"^ {4}(\w+): ((?:.+\n?)(?: {5,}.+\n?)*)", section[1] if section else "", re.M)
        texts |= {name: " ".join(text.split()) for name, text in entries}
    return texts
