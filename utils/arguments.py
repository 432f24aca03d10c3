"""The command line of train.py: preset, run and options, and settings written as such options."""

import argparse
import json
import re
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import (  # type: ignore[attr-defined]  # its __all__ lacks ActionConfigFile
    ActionConfigFile,
    ArgumentParser,
    DefaultHelpFormatter,
    Namespace,
)

from const.corpora import VERSION
from const.path import PRESET
from utils.command import hyphenated
from utils.config import (
    CONFIG_TYPES,
    AnyConfig,
    SettingsParser,
    TranslationConfig,
    add_config,
    config_type_of,
    find_settings,
    names_corpus,
    to_config,
)
from utils.dataset.corpus import DataConfig
from utils.file import require_folder_name
from utils.run import CHECKPOINTS, CONFIG, find_run, newest_run, read_config
from utils.training.checkpoint import SUFFIX, step_files, step_of

# The command line of train.py.


class Arguments(NamedTuple):
    """What the command line requests."""

    config: AnyConfig
    resume: Path | None = None
    init_from: Path | None = None
    branch: Path | None = None
    dry_run: bool = False
    profile: bool = False


class _SettingsHelp(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Help with the examples as written, and the type and the default of every setting."""

    def _get_help_string(self, action: argparse.Action) -> str:
        is_setting = action.dest not in Arguments._fields
        return super()._get_help_string(action) if is_setting else action.help or ""

    def _expand_help(self, action: argparse.Action) -> str:
        return re.sub(r"type: Literal\[.*?\], ", "", super()._expand_help(action))  # the choices are shown anyway


class _ActionSettings(ActionConfigFile):
    """Read settings from a file, or from a preset by its name."""

    @staticmethod
    def apply_config(parser: ArgumentParser, cfg: Namespace, dest: str, value: str) -> None:
        ActionConfigFile.apply_config(parser, cfg, dest, str(find_settings(Path(value))))


def build_parser(config_type: type[AnyConfig] = TranslationConfig) -> SettingsParser:
    """Build the parser of all options: the settings of a task, and options that are not part of a run."""
    parser = SettingsParser(
        prog="train.py",
        version=VERSION,
        usage="python train.py [--config PRESET] [--GROUP.KEY VALUE ...] [--resume [RUN]] [--init-from RUN] [...]",
        description="Train a translator, a BERT, a Transformer-XL or a classifier; without options: KFTT, Japanese to "
        "English, Transformer base. The options below are those of the task that --config or --task names.",
        epilog="""examples:
  python train.py --config demo                                   two minutes, no download
  python train.py --config kftt_ja_en_small                       KFTT on a CPU
  python train.py --data.archive kftt-data-1.0.tar.gz             KFTT from a local archive
  python train.py --data.src my.ja --data.tgt my.en --name mine   two files of your own
  python train.py --resume                                        resume the newest run
  python train.py --resume pickles/RUN --training.max_epochs 40   resume this run, and train longer
  python train.py --init-from pickles/RUN --data.src my.ja --data.tgt my.en --name tuned   fine-tune its weights
  python train.py --branch pickles/RUN --name finished            let the learning rate of a trapezoid fall to its end
  torchrun --nproc-per-node 2 train.py --batch.accumulate 2       two processes, two batches per update
  python train.py --config bert_ja                                a BERT of KFTT's Japanese
  python train.py --config transformer_xl_en                      a Transformer-XL of its English
  python train.py --task masked_language --help                   every option of another task""",
        formatter_class=_SettingsHelp,
    )
    parser.add_argument(
        "--config",
        action=_ActionSettings,
        help="a preset by its name, such as demo, or a YAML file of settings; see const/preset/",
    )
    parser.add_argument("--resume", nargs="?", const="newest", metavar="RUN", help="resume this run, or the newest one")
    parser.add_argument(
        "--init-from", metavar="RUN", help="start a new run from the weights, vocabulary and settings of this one"
    )
    parser.add_argument(
        "--branch",
        metavar="RUN",
        help="start a new run from the newest checkpoint of this one, which stays as it is, and let the learning rate "
        "fall to its end over a fifth of all updates; the settings given apply to the new run",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="report what would be trained, how large and how fast; train nothing"
    )
    parser.add_argument("--profile", action="store_true", help="write a trace of some of the first updates")
    add_config(parser, config_type)
    return parser


def read_arguments(argv: Sequence[str]) -> Arguments:
    """Read the command line of train.py.

    The settings start from the preset kftt_ja_en unless a file, task or run is named; the other arguments override the
    settings of a run to resume or to initialise from.

    Raises:
        ValueError: when there is no such run or preset, both --resume and --init-from are given, a run to start from
            has another vocabulary, a resumed one would select its weights by another score or be scored on what it has
            learned from, or no folder can have the name of a new one.
    """
    asked = _first_look(argv)
    settings = None if asked.config is None else find_settings(Path(asked.config))
    if sum(run is not None for run in (asked.resume, asked.init_from, asked.branch)) > 1:
        raise ValueError("--resume continues a run, --init-from and --branch start a new one: give only one of them")
    resumed = begun = trunk = None
    if asked.branch is not None:
        trunk = find_run(Path(asked.branch), having=CHECKPOINTS)
    elif asked.resume is not None:
        resumed = (
            newest_run(CHECKPOINTS, config_type=None)
            if asked.resume == "newest"
            else find_run(Path(asked.resume), having=CHECKPOINTS)
        )
    elif asked.init_from is not None:
        begun = find_run(Path(asked.init_from))
    if asked.task is not None and asked.task not in CONFIG_TYPES:
        raise ValueError(f"task={asked.task} is not one of {', '.join(CONFIG_TYPES)}")
    config_type = CONFIG_TYPES[asked.task or "translation"]
    if (source := resumed or begun or trunk) is not None:
        saved = source / CONFIG
        if not saved.is_file():
            raise ValueError(f"no settings {saved}: give the folder of a run")
        config_type = config_type_of(saved)
        cleared = _without_own_files(argv, settings, resumed is None) if config_type is TranslationConfig else []
        argv = ["--config", str(saved), *cleared, *argv]
    elif settings is not None:
        config_type = config_type_of(settings)
    elif asked.task is None:
        argv = ["--config", str(PRESET / "kftt_ja_en.yaml"), *argv]
    parser = build_parser(config_type)
    given = parser.parse_args(argv)
    config = to_config(parser, given, config_type)
    if source is not None:
        _refuse_other_vocabulary(source, config)
    if resumed is not None:
        _refuse_other_score(resumed, config)
        _refuse_other_held_out(resumed, config)
    else:
        require_folder_name(config.name)
    if trunk is not None:
        config = _with_decay(config, trunk)
    return Arguments(config, resumed, begun, trunk, given.dry_run, given.profile)


def _with_decay(config: AnyConfig, trunk: Path) -> AnyConfig:
    """Return the settings of a branch: it ends with a decay that begins at the trunk's newest checkpoint.

    Raises:
        ValueError: the trunk has no checkpoint, or no learning rate that waits for its decay.
    """
    optimizer, plan = config.optimizer, config.training
    if optimizer.schedule != "trapezoid":
        raise ValueError(
            f"--branch lets the learning rate of a trapezoid fall, but {trunk} has schedule={optimizer.schedule}: "
            "use --init-from"
        )
    if not (files := step_files(trunk / CHECKPOINTS, SUFFIX)):
        raise ValueError(f"no checkpoint in {trunk / CHECKPOINTS}: the run has not saved one yet")
    step = step_of(files[-1])
    # a fifth of all updates is a quarter of those before; what the trunk itself may have had is not the branch's
    decay_steps = optimizer.decay_steps or max(1, step // 4)
    ends: dict[str, Any] = {"training": replace(plan, max_steps=step + decay_steps, max_epochs=None)}
    return replace(config, optimizer=replace(optimizer, decay_steps=decay_steps, decay_from=step), **ends)


def _refuse_other_score(run: Path, config: AnyConfig) -> None:
    """Refuse another score for a resumed run: the best weights by one need not be the best by another."""
    was, now = read_config(run, type(config)).training.select_by, config.training.select_by
    if was != now:
        raise ValueError(
            f"select_by={now}, but the best weights of {run} were chosen by {was}: give --training.select_by {was}, "
            "or start a new run from them with --init-from"
        )


def _refuse_other_held_out(run: Path, config: AnyConfig) -> None:
    """Refuse to hold out another number of pairs for a resumed run: it has learned from what would be held out."""
    # a classifier's texts are all given: nothing is held out
    was, now = (getattr(data, "held_out", None) for data in (read_config(run, type(config)).data, config.data))
    if was != now:
        raise ValueError(
            f"held_out={now}, but {run} was trained on what {was} had left: give --data.held_out {was}, or train a new "
            "run"
        )


def _refuse_other_vocabulary(source: Path, config: AnyConfig) -> None:
    """Refuse settings of a vocabulary other than that of the run to start from; how it is sampled may change.

    Raises:
        ValueError: a setting differs.
    """
    wanted, learned = asdict(config.tokenizer), asdict(read_config(source, type(config)).tokenizer)
    for name, value in wanted.items():
        if name != "sampling" and value != learned[name]:
            raise ValueError(
                f"tokenizer.{name}={value}, but the vocabulary of {source} was learned with {learned[name]}: "
                f"give --tokenizer.{name} {learned[name]}, or train a new run"
            )


def _without_own_files(argv: Sequence[str], settings: Path | None, is_new: bool) -> list[str]:
    """Return options that clear what a run was told of its own files, where others are named.

    With another corpus these are all of them; for a new run with another training text, the further one.
    """
    given = {hyphenated(argument).partition("=")[0] for argument in argv}
    files = [key.name for key in fields(DataConfig) if key.type == Path | None]
    cleared: dict[str, str] = {}
    if "--data.corpus" in given or (settings and names_corpus(settings)):
        cleared = dict.fromkeys(files, "null") | {"pre_tokenized": "false"}
    elif is_new and "--data.src" in given:
        cleared = {name: "null" for name in files if name.startswith("more_")}
    options = {f"--data.{name}": value for name, value in cleared.items()}
    return [word for option, value in options.items() if hyphenated(option) not in given for word in (option, value)]


def _first_look(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options that decide which other options there are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--config", "--task", "--init-from", "--branch"):
        parser.add_argument(option)
    parser.add_argument("--resume", nargs="?", const="newest")
    try:
        return parser.parse_known_args([hyphenated(argument) for argument in argv])[0]
    except argparse.ArgumentError:  # an option without its value: the full parser reports it
        return argparse.Namespace(config=None, task=None, init_from=None, branch=None, resume=None)


# Settings as command-line options of train.py, and as it would read them.


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
