"""Settings are mappings of text that are merged, and then read once, by the types of the fields that they are for.

A preset, a saved run, a study's trial and a command line are nested mappings of what was written. YAML is used for its
structure alone: `no`, `010` or `1:30:00` mean what the field's type makes of them, in a file as on the command line.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from config.bound import Bound, BoundError

ConfigT = TypeVar("ConfigT")
# saved with every run by earlier versions, and gone since: group -> names
_REMOVED = {"search": {"coverage_penalty"}, "optimizer": {"noam_factor"}}
ABSENT: Final = object()  # stands for a value that one side does not have
_NULL = ("null", "Null", "NULL", "~", "")


class Scalar(str):
    """A value as written, with its place (`preset.yaml, line 3`), which begins complaints about it."""

    place: str
    quoted: bool  # null and ~ in quotes are words

    def __new__(cls, value: str, place: str = "", quoted: bool = False) -> "Scalar":
        """Make a value with its place."""
        text = super().__new__(cls, value)
        text.place, text.quoted = place, quoted
        return text

    @property
    def is_null(self) -> bool:
        """Whether it stands for no value."""
        return not self.quoted and self in _NULL


Value = Scalar | list[Scalar]
Settings = dict[str, Any]  # of names, to a Value or a Settings


class SettingsError(ValueError):
    """A mistake in what was written; one line that names its place."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)


def settings_from_file(path: Path) -> Settings:
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
        return _mapping(node, str(path))
    except RecursionError:
        raise SettingsError("a group that is a part of itself: write it out", str(path)) from None


def _mapping(node: yaml.MappingNode, file: str) -> Settings:
    settings: Settings = {}
    for key, value in node.value:
        place = f"{file}, line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError("a key that is a list or a group: give a name", place)
        if key.value in settings:
            raise SettingsError(f"the key {key.value} appears twice: leave one of them out", place)
        settings[key.value] = _mapping(value, file) if isinstance(value, yaml.MappingNode) else _value(value, file)
    return settings


def _value(node: yaml.Node, file: str) -> Value:
    place = f"{file}, line {node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        return Scalar(node.value, place, quoted=node.style in ("'", '"'))
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [Scalar(item.value, place) for item in node.value]
    raise SettingsError("a list of lists or groups: give a list of values", place)


def without_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that were removed; schedule=noam becomes inverse_sqrt with the same rates."""
    kept = dict(settings)
    for group, removed in _REMOVED.items():
        if isinstance(below := kept.get(group), Mapping):
            kept[group] = {name: value for name, value in below.items() if name not in removed}
    optimizer, model = settings.get("optimizer"), settings.get("model")
    if isinstance(optimizer, Mapping) and optimizer.get("schedule") == "noam" and isinstance(model, Mapping):
        warmup, width = max(1, int(optimizer.get("warmup_steps", 4000))), int(model.get("d_model", 512))
        peak_lr = float(optimizer.get("noam_factor", 1.0)) * (width * warmup) ** -0.5
        as_written = type(optimizer.get("peak_lr", peak_lr))  # a number, or text in which nothing is read yet
        kept["optimizer"] = kept["optimizer"] | {"schedule": "inverse_sqrt", "peak_lr": as_written(peak_lr)}
    return kept


def settings_from_options(options: Mapping[str, str]) -> Settings:
    """Return the settings of some options, such as {"model.d_model": "256"}."""
    settings: Settings = {}
    for name, value in options.items():
        *groups, leaf = name.split(".")
        below = settings
        for group in groups:
            below = below.setdefault(group, {})
            if not isinstance(below, dict):
                raise SettingsError(f"{name} and {group} are both given: leave one of them out")
        below[leaf] = Scalar(value)
    return settings


def merged(*weakest_first: Settings) -> Settings:
    """Return the settings of all, from the weakest to the strongest: of equal names, the last one counts."""
    result: Settings = {}
    for settings in weakest_first:
        for name, value in settings.items():
            before = result.get(name)
            if isinstance(value, dict) and isinstance(before, dict):
                value = merged(before, value)
            result[name] = value
    return result


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested settings on one level, by their dotted names."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        values |= flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return values


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of each changed setting by its dotted name, those only in `new` last; 1 and 1.0 differ."""
    before, after = flat(old), flat(new)
    pairs = {name: (before.get(name, ABSENT), after.get(name, ABSENT)) for name in before | after}
    return {name: pair for name, pair in pairs.items() if ABSENT in pair or len(set(map(json.dumps, pair))) > 1}


@cache
def fields_of(config_type: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass."""
    hints = get_type_hints(config_type)
    return {field.name: hints[field.name] for field in dataclasses.fields(config_type)}


def group_of(type_: Any) -> type | None:
    """Return the dataclass of a field that is a group of settings, or a group or null; None for a value."""
    return next(
        (member for member in _members(type_) if isinstance(member, type) and dataclasses.is_dataclass(member)), None
    )


class Setting(NamedTuple):
    """What is known of a setting before it is read."""

    name: str  # in full, such as model.d_model
    type_: Any
    default: Any  # MISSING where there is none
    bound: Bound | None
    text: str  # what the docstring of its dataclass says of it


def settings_of(config_type: type, above: str = "") -> Iterator[Setting]:
    """Yield every setting; a group that may be null is one, too."""
    types, texts = fields_of(config_type), texts_of(config_type)
    for field in dataclasses.fields(config_type):
        type_ = types[field.name]
        group = group_of(type_)
        if group is None or NoneType in get_args(type_):
            made, bound = field.default_factory, field.metadata.get("bound")
            default = field.default if made is dataclasses.MISSING else made()
            yield Setting(above + field.name, type_, default, bound, texts.get(field.name, ""))
        if group is not None:
            yield from settings_of(group, f"{above}{field.name}.")


def read(config_type: type[ConfigT], settings: Settings, above: str = "", known: Sequence[str] = ()) -> ConfigT:
    """Make a dataclass of what was written; what was not has its default.

    Args:
        config_type: the dataclass.
        settings: what was written.
        above: name of the group, with a dot behind it.
        known: all names that a complaint may suggest; those of the dataclass by default.
    """
    known = known or [setting.name for setting in settings_of(config_type, above)]
    types, values = fields_of(config_type), {}  # type: ignore[arg-type]  # a dataclass, always
    for name, written in settings.items():
        if name not in types:
            raise _unknown(above + name, written, known)
        values[name] = _read_field(above + name, types[name], written, known)
    for name, parameter in inspect.signature(config_type).parameters.items():
        if parameter.default is parameter.empty and name not in values:
            below = group_of(types[name])
            if below is None:
                raise SettingsError(f"{above}{name} is missing: give it a value")
            values[name] = read(below, {}, f"{above}{name}.", known)
    try:
        return config_type(**values)
    except BoundError as error:
        raise SettingsError(f"{above}{error}", _place(settings.get(error.name))) from None


def _read_field(name: str, type_: Any, written: Any, known: Sequence[str]) -> Any:
    """Return what was written for a field: a group, a mapping from names of the user's own, or a value."""
    if get_origin(type_) is dict and isinstance(written, dict):
        return {key: _read_field(f"{name}.{key}", get_args(type_)[1], value, ()) for key, value in written.items()}
    group = group_of(type_)
    if group is None:
        return read_value(name, type_, written)
    if isinstance(written, dict):
        return read(group, written, f"{name}.", known)
    optional = NoneType in get_args(type_)
    if isinstance(written, Scalar) and written.is_null and optional:
        return None
    wrong = f"{name} is a group of settings, not {_shown(written)}"
    remedy = f"give settings below it, or {'null' if optional else 'leave it out'}"
    raise SettingsError(f"{wrong}: {remedy}", _place(written))


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, of the same group if there is one like it."""
    known, (group, _, last) = list(known), name.rpartition(".")
    beside = {leaf: full for full in known for above, _, leaf in [full.rpartition(".")] if above == group}

    def likeness(leaf: str) -> tuple[float, float]:
        matcher = SequenceMatcher(None, leaf, last)
        return matcher.ratio(), matcher.quick_ratio()

    if near := get_close_matches(last, beside, 3, 0.5):
        return beside[max(near, key=likeness)]  # of equally close ones, that of the same letters: log, not low, for lgo
    return next(iter(get_close_matches(name, known, 1, 0.5)), None)


def _unknown(name: str, written: Any, known: Sequence[str]) -> SettingsError:
    while isinstance(written, dict) and written:
        below, written = next(iter(written.items()))
        name += f".{below}"
    remedy = f"did you mean {near}?" if (near := near_name(name, known)) else "see --help"
    return SettingsError(f"unknown setting {name}: {remedy}", _place(written))


def _place(written: Any) -> str:
    while isinstance(written, dict | list) and written:
        written = next(iter(written.values())) if isinstance(written, dict) else written[0]
    return written.place if isinstance(written, Scalar) else ""


def _shown(written: Any) -> str:
    if isinstance(written, dict):
        return "a group"
    return f"[{', '.join(written)}]" if isinstance(written, list) else str(written) or "null"


def read_value(name: str, type_: Any, written: Any) -> Any:
    """Return a value of the type of the setting of this name; of `Any`, what was written."""
    if type_ is Any:
        return written
    if isinstance(written, Scalar) and written.is_null:
        if NoneType in get_args(type_):
            return None
        if type_ is not str or written:
            raise SettingsError(f"{name} cannot be null: give it a value, or leave it out", _place(written))
    for member in _members(type_):
        try:
            return _converted(member, written)
        except (LookupError, ValueError, TypeError):
            continue
    *others, last = wanted(type_)
    remedy = f"give {', '.join(others)}{' or ' * bool(others)}{last}"
    raise SettingsError(f"{name}={_shown(written)}: {remedy}", _place(written))


def _members(type_: Any) -> list[Any]:
    members = get_args(type_) if get_origin(type_) in (Union, UnionType) else [type_]
    return [member for member in members if member is not NoneType]


def wanted(type_: Any) -> list[str]:
    """Return in words what a value of this type may be."""
    if group_of(type_):
        return ["a group or null"]
    words = [word for member in _members(type_) for word in _words(member)]
    return words + ["null"] * (NoneType in get_args(type_))


def _converted(type_: Any, written: Any) -> Any:
    """Return a value of this type, or raise a LookupError, ValueError or TypeError."""
    if get_origin(type_) is list and isinstance(written, list):
        return [_converted(get_args(type_)[0], item) for item in written]
    if get_origin(type_) is tuple:
        items = re.sub(r"^\[(.*)\]$", r"\1", written).split(",") if isinstance(written, str) else written
        return tuple(_converted(member, item.strip()) for member, item in zip(get_args(type_), items, strict=True))
    if not isinstance(written, str) or get_origin(type_) in (list, dict):
        raise TypeError(written)
    if get_origin(type_) is Literal:
        choices = get_args(type_)
        return choices[choices.index(written)]
    if type_ is bool:
        return {"true": True, "false": False}[written.lower()]
    if type_ is int and not re.fullmatch(r"[-+]?[0-9]+", written):  # int() reads 1_000 and digits of other scripts
        raise ValueError(written)
    if type_ is float:
        return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", written.lower()))
    return type_(str(written))


def _words(type_: Any) -> Sequence[str]:
    if get_origin(type_) is Literal:
        return [str(choice) for choice in get_args(type_)]
    if get_origin(type_) is tuple:
        return [f"a list of {len(get_args(type_))}, such as [0.9, 0.98]"]
    if get_origin(type_) in (list, dict):
        return ["a list, such as [1, 2]" if get_origin(type_) is list else "a group"]
    return [{bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}.get(type_, "text")]


@cache
def texts_of(config_type: type) -> dict[str, str]:
    """Return what the docstrings of a dataclass and of those it extends say of each field."""
    texts: dict[str, str] = {}
    for owner in reversed(config_type.__mro__):
        section = re.search(r"^Args:\n((?: +.*\n?|\n)+)", inspect.cleandoc(owner.__doc__ or ""), re.M)
        entries = re.findall(r"^ {4}(\w+): ((?:.+\n?)(?: {5,}.+\n?)*)", section[1] if section else "", re.M)
        texts |= {name: " ".join(text.split()) for name, text in entries}
    return texts
