"""The command line of train.py: a preset or a run, and every setting as an option."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from config.data import DataConfig
from config.reader import Settings, merged, settings_from_options, settings_of, wanted
from const.path import PRESET
from utils.command import Parser
from utils.config import (
    CONFIG_TYPES,
    AnyConfig,
    RunConfig,
    RunConfigT,
    TranslationConfig,
    config_type_in,
    find_settings,
    load_settings,
    to_config,
)
from utils.file import require_folder_name
from utils.run import CHECKPOINTS, CONFIG, WEIGHTS, find_run

NEWEST = "newest"  # what --resume alone asks for


class Arguments(NamedTuple):
    """What the command line requests."""

    config: AnyConfig
    resume: Path | None = None
    init_from: Path | None = None
    branch: Path | None = None
    new_vocabulary: bool = False  # beside `init_from`
    dry_run: bool = False
    profile: bool = False
    notice: str = ""  # what was chosen: settings by the size of the text, or the end


def build_parser(config_type: type[AnyConfig] = TranslationConfig, given: Settings | None = None) -> Parser:
    """Build the parser of all options: train.py's own, and the settings of a task, whose help shows those given."""
    parser = Parser(
        prog="train.py",
        usage="python train.py [--config PRESET] [--GROUP.KEY VALUE ...] [--resume [RUN]] [--init-from RUN] [...]",
        description="Train a translator, a BERT, a Transformer-XL or a classifier; without options: KFTT, Japanese to "
        "English, on a GPU. The options below are those of the task that --config or --task names.",
        epilog=_EXAMPLES,
    )
    _add_choice_of_settings(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="report what would be trained, how large and how fast; train nothing"
    )
    parser.add_argument("--profile", action="store_true", help="write a trace of some of the first updates")
    groups: dict[str, Any] = {}
    for setting in settings_of(config_type):
        name = setting.name
        if name == "task":
            continue
        title = name.partition(".")[0] if "." in name else "run"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        value: Any = given or {}
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        value = setting.default if value is None else value
        default = "required" if value is MISSING else f"default: {as_text(value)}"
        text = f"{setting.text} ({default})".replace("%", "%%")
        groups[title].add_argument(f"--{name}", dest=name, metavar=" | ".join(wanted(setting.type_)), help=text)
    return parser


def _add_choice_of_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide which settings there are."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a preset by its name, such as demo, or a YAML file of settings; see const/preset/",
    )
    parser.add_argument("--task", choices=list(CONFIG_TYPES), help="what to learn, where no file or run says it")
    parser.add_argument("--resume", nargs="?", const=NEWEST, metavar="RUN", help="resume this run, or the newest one")
    parser.add_argument(
        "--init-from", metavar="RUN", help="start a new run from the weights, vocabulary and settings of this one"
    )
    parser.add_argument(
        "--new-vocabulary",
        action="store_true",
        help="with --init-from: learn the vocabulary from the new text; each token begins as in the run or, where that "
        "has none, as the mean of the tokens that it would read",
    )
    parser.add_argument(
        "--branch",
        metavar="RUN",
        help="start a new run from the newest checkpoint of this one, which stays as it is, and let the learning rate "
        "fall to its end over a fifth of all updates, or over the last fifth of --training.max_minutes; the settings "
        "given apply to the new run",
    )


def read_arguments(argv: Sequence[str]) -> Arguments:
    """Read the command line of train.py.

    From the weakest settings to the strongest: those of the run to start from, those of the file that --config names,
    the options. Where no run, file or task is given, those chosen by the size of your own text stand in the place of
    the run, or without such a text the preset kftt_ja_en.
    """
    choices = Parser(prog="train.py", add_help=False)
    _add_choice_of_settings(choices)  # which decide what other options there are
    asked = choices.parse_known_args(argv)[0]
    named = {option: asked[option] for option in ("resume", "init_from", "branch") if asked[option] is not None}
    if len(named) > 1:
        raise ValueError("--resume continues a run, --init-from and --branch start a new one: give only one of them")
    if asked.new_vocabulary and "init_from" not in named:
        raise ValueError("--new-vocabulary is for the weights of another run: also give --init-from RUN")
    if "resume" in named and asked.config is not None:
        remedy = "leave out --config, and give what is to change as options, such as --training.max_epochs 40"
        raise ValueError(f"--config {asked.config}, but a run that is resumed has its own settings: {remedy}")
    file: Settings = {} if asked.config is None else load_settings(find_settings(Path(asked.config)))
    option, run = next(iter(named.items()), ("", ""))
    source, is_new = None, option != "resume"
    if option:
        name = None if (option, run) == ("resume", NEWEST) else Path(run)
        source = find_run(name, RunConfig, having=WEIGHTS if option == "init_from" else CHECKPOINTS)
        weakest = load_settings(source / CONFIG)
        if option == "init_from":
            weakest = _begun_anew(weakest)
        config_type = config_type_in(weakest, str(source / CONFIG))
    else:
        weakest = load_settings(PRESET / "kftt_ja_en.yaml") if asked.config is None and asked.task is None else {}
        config_type = config_type_in(file if asked.task is None else {"task": asked.task}, asked.config or "--task")
    given = build_parser(config_type, merged(weakest, file)).parse_args(argv)
    names = [setting.name for setting in settings_of(config_type)]
    options = {name: value for name in names if (value := given.get(name)) is not None}
    typed, cleared, notice = settings_from_options(options), Settings(), ""
    if source is not None and issubclass(config_type, TranslationConfig):
        cleared = _cleared_files(file, typed, is_new)
    elif source is None and asked.config is None and asked.task is None:
        from utils.recipe import own_recipe  # with numpy, which --help need not wait for

        weakest, notice = own_recipe(options) or (weakest, notice)
    config = to_config(config_type, merged(weakest, cleared, file, typed))
    if is_new:
        require_folder_name(config.name)
    if source is not None:
        if not asked.new_vocabulary:
            _refuse_other(source, to_config(config_type, weakest), config, is_new)
        if option == "resume":
            notice = _other_search(to_config(config_type, weakest), config)
        if option == "init_from":
            notice = _inherited_course(config, source)
        if option == "branch":
            config = _with_decay(config, source, merged(file, typed))
    config, ending = _with_end(config, typed, is_new)
    notice = "\n".join(filter(None, (notice, ending)))
    origin: Any = {option: source} if option else {}
    flags: Any = {name: given[name] for name in ("new_vocabulary", "dry_run", "profile")}
    return Arguments(config, **origin, **flags, notice=notice)


def _begun_anew(settings: Settings) -> Settings:
    """Leave out when the rate of a branch fell, at updates that are no end here, and the precision of that machine."""
    optimizer, training = (dict(settings.get(group, {})) for group in ("optimizer", "training"))
    training.pop("precision", None)
    if optimizer.get("decay_from", "null") != "null":
        del optimizer["decay_from"]
        optimizer.pop("decay_steps", None)
    return settings | {"optimizer": optimizer, "training": training}


_OF_BEAMS = {"beam_size", "length_penalty", "normalization", "by_sentence", "max_perplexity"}  # not of greedy search


def _other_search(saved: AnyConfig, config: AnyConfig) -> str:
    """Say which scores do not compare with those from before, if a resumed run translates by other settings."""
    if not isinstance(saved, TranslationConfig) or not isinstance(config, TranslationConfig):
        return ""
    before = asdict(saved.search)
    changed = {name: value for name, value in asdict(config.search).items() if value != before[name]}
    said = ", ".join(as_options({f"search.{name}": value for name, value in changed.items()}))
    which = "of test " if changed.keys() <= _OF_BEAMS else ""  # dev is translated greedily
    return f"Scores {which}do not compare with those from before: {said}" if changed else ""


def _inherited_course(config: AnyConfig, source: Path) -> str:
    """Say how long and how fast a training will learn that takes this over from another run."""
    training = config.training
    limits = (training.max_steps, "updates"), (training.max_epochs, "epochs"), (training.max_minutes, "minutes")
    ends = " or ".join(f"{n:,} {unit}" for n, unit in limits if n is not None) or "a stop"
    return f"Settings of {source.name} where none are given: ends after {ends}, peak rate {config.optimizer.peak_lr:g}"


def _with_decay(config: RunConfigT, trunk: Path, given: Settings) -> RunConfigT:
    """Return the settings of a branch: a decay that begins at the trunk's newest checkpoint, or goes by the clock.

    The clock of a branch goes on from that of its trunk. How long to decay is what was given for the branch.
    """
    from utils.training.checkpoint import SUFFIX, step_files, step_of  # with torch, which --help need not wait for

    optimizer, training = config.optimizer, config.training
    if optimizer.schedule != "trapezoid":
        raise ValueError(
            f"--branch lets the learning rate of a trapezoid fall, but {trunk} has schedule={optimizer.schedule}: "
            "use --init-from"
        )
    if not (files := step_files(trunk / CHECKPOINTS, SUFFIX)):
        raise ValueError(f"no checkpoint in {trunk / CHECKPOINTS}: the run has not saved one yet")
    decay_steps = optimizer.decay_steps if "decay_steps" in given.get("optimizer", {}) else None
    if "max_minutes" in given.get("training", {}) and training.max_minutes is not None and decay_steps is None:
        optimizer = replace(optimizer, decay_steps=None, decay_from=None)
        return replace(config, optimizer=optimizer, training=replace(training, max_steps=None, max_epochs=None))
    step = step_of(files[-1])
    if step < optimizer.warmup_steps:
        raise ValueError(
            f"{trunk} is still warming up, at update {step:,} of {optimizer.warmup_steps:,}: train it further"
        )
    decay_steps = decay_steps or max(1, step // 4)  # a fifth of all updates is a quarter of those before
    optimizer = replace(optimizer, decay_steps=decay_steps, decay_from=step)
    training = replace(training, max_steps=step + decay_steps, max_epochs=None, max_minutes=None)
    return replace(config, optimizer=optimizer, training=training)


def _with_end(config: RunConfigT, typed: Settings, is_new: bool) -> tuple[RunConfigT, str]:
    """Return the settings with an end where the rate is 0, and a line that says so.

    A branch that goes on with more updates falls to its new end.
    """
    optimizer, training = config.optimizer, config.training
    is_longer = not is_new and "max_steps" in typed.get("training", {})
    moves = is_longer and "decay_steps" not in typed.get("optimizer", {})
    if moves and optimizer.decay_from is not None and training.max_steps is not None:
        decay_steps = max(1, training.max_steps - optimizer.decay_from)
        return replace(config, optimizer=replace(optimizer, decay_steps=decay_steps)), ""
    last = optimizer.last_step
    if last is None or (training.max_steps is not None and training.max_steps <= last):
        return config, ""
    ended = replace(config, training=replace(training, max_steps=last))
    return ended, f"The learning rate is 0 from update {last:,} on: the training ends there"


def _refuse_other(source: Path, saved: AnyConfig, config: AnyConfig, is_new: bool) -> None:
    """Refuse what cannot change in a run: its vocabulary; if it is resumed, its scores, its tag, what is held out."""
    fixed = () if is_new else ("training.select_by", "data.held_out", "data.tag")
    for setting in settings_of(type(config)):
        name = setting.name
        if name in fixed or (name.startswith("tokenizer.") and name != "tokenizer.sampling"):
            was, now = map(as_text, map(attrgetter(name), (saved, config)))
            if was != now:
                remedy = f"give --{name} {was}, or train a new run"
                raise ValueError(f"{name}={now}, but {source} was trained with {was}: {remedy}")


def _cleared_files(file: Settings, typed: Settings, is_new: bool) -> Settings:
    """Return settings that clear what a run was told of its own files, where others are named.

    With another corpus these are all of them; for a new run with another training text, the further one.
    """
    files = [key.name for key in fields(DataConfig) if key.type == Path | None] + ["more_tag"]
    cleared: dict[str, str] = {}
    if any("corpus" in settings.get("data", {}) for settings in (file, typed)):
        cleared = dict.fromkeys(files, "null") | {"pre_tokenized": "false"}
    elif is_new and (named := {"src", "pairs"} & set(typed.get("data", {}))):
        other = ("src", "tgt") if "pairs" in named else ("pairs",)  # the other way to give them; what is typed counts
        cleared = {name: "null" for name in files if name.startswith("more_") or name in ("archive", *other)}
    return settings_from_options({f"data.{name}": value for name, value in cleared.items()})


def as_text(value: Any) -> str:
    """Return a value as written on the command line: `0.1`, `true`, `null`, `[1, 2]`, and strings unchanged."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def as_options(values: Mapping[str, Any]) -> list[str]:
    """Return settings as options of train.py."""
    return [f"--{name}={as_text(value)}" for name, value in values.items()]


def config_with(file: Path, values: Mapping[str, Any]) -> AnyConfig:
    """Return all settings that train.py would train with, or refuse as it would: those of a file with these changed."""
    options = settings_from_options({name: as_text(value) for name, value in values.items()})
    settings = load_settings(file)
    return to_config(config_type_in(settings, str(file)), merged(settings, options))


_EXAMPLES = """examples:
  python train.py --config demo                                   two minutes, no download
  python train.py --config kftt_ja_en_small                       KFTT on a CPU
  python train.py --data.archive kftt-data-1.0.tar.gz             KFTT from a local archive
  python train.py --data.src my.ja --data.tgt my.en --name mine   two files of your own, settings by their size
  python train.py --resume                                        resume the newest run
  python train.py --resume pickles/RUN --training.max_epochs 40   resume this run, and train longer
  python train.py --init-from pickles/RUN --data.src my.ja --data.tgt my.en --name tuned   fine-tune its weights
  python train.py --branch pickles/RUN --name finished            let the learning rate of a trapezoid fall to its end
  torchrun --nproc-per-node 2 train.py --batch.accumulate 2       two processes, two batches per update
  python train.py --config bert_ja                                a BERT of KFTT's Japanese
  python train.py --config transformer_xl_en                      a Transformer-XL of its English
  python train.py --task masked_language --help                   every option of another task"""
