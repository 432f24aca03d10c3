"""What the command line of train.py asks for."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from const.path import PRESET
from const.version import VERSION
from utils.command_line import Parser
from utils.config import TREES, AnyConfig, Config, add_config, names_corpus, to_config, tree_of
from utils.dataset.corpus import DataConfig
from utils.run import CHECKPOINTS, CONFIG, find_run, newest_run, read_config


class Arguments(NamedTuple):
    """What is asked for."""

    config: AnyConfig
    resume: Path | None = None
    init_from: Path | None = None
    dry_run: bool = False
    profile: bool = False


def build_parser(tree: type[AnyConfig] = Config) -> Parser:
    """All options: those of the configuration tree of a task, and those that are not part of a run."""
    parser = Parser(
        prog="train.py",
        version=VERSION,
        usage="python train.py [--config PRESET] [--GROUP.KEY VALUE ...] [--resume [RUN]] [--init-from RUN] [...]",
        description="Train a translator, a BERT, a Transformer-XL or a classifier; without options: KFTT, Japanese to "
        "English, Transformer base. The options below are those of the task that --config or --task names.",
        epilog="""examples:
  python train.py --config const/preset/demo.yaml                 two minutes, no download
  python train.py --config const/preset/kftt_ja_en_small.yaml     KFTT on a CPU
  python train.py --data.archive kftt-data-1.0.tar.gz             KFTT from a local archive
  python train.py --data.src my.ja --data.tgt my.en --name mine   two files of your own
  python train.py --resume                                        go on with the newest run
  python train.py --resume pickles/RUN --training.max_epochs 40   go on with that one, for longer
  python train.py --init-from pickles/RUN --data.src my.ja --data.tgt my.en --name tuned   begin with its weights
  torchrun --nproc-per-node 2 train.py --batch.accumulate 2       two processes, two batches an update
  python train.py --config const/preset/bert_ja.yaml              a BERT of KFTT's Japanese
  python train.py --config const/preset/transformer_xl_en.yaml    a Transformer-XL of its English
  python train.py --task masked_language --help                   every option of another task""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", action="config", help="a YAML file of settings; see const/preset/")
    parser.add_argument(
        "--resume", nargs="?", const="newest", metavar="RUN", help="go on with this run, or the newest one"
    )
    parser.add_argument(
        "--init-from", metavar="RUN", help="a new run with the weights, vocabulary and settings of this one"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be trained, how large and how fast, and train nothing"
    )
    parser.add_argument("--profile", action="store_true", help="write a trace of some of the first updates")
    add_config(parser, tree)
    return parser


def read_arguments(argv: Sequence[str]) -> Arguments:
    """What is asked for.

    Settings begin with the preset kftt_ja_en where no other file, task or run is named; those of a run that is gone on
    with or begun from come before the other arguments.

    Raises:
        ValueError: no such run; a run to resume and another one to begin from; another score to choose by.
    """
    argv = [_underscored(argument) for argument in argv]
    asked = _first_look(argv)
    if asked.resume is not None and asked.init_from is not None:
        raise ValueError("--resume goes on with a run and --init-from begins a new one: give one of the two")
    resumed = begun = None
    if asked.resume is not None:
        resumed = newest_run(CHECKPOINTS, tree=None) if asked.resume == "newest" else find_run(Path(asked.resume))
    elif asked.init_from is not None:
        begun = find_run(Path(asked.init_from))
    tree = TREES.get(asked.task, Config)  # whose parser says of another task that there is none
    if (source := resumed or begun) is not None:
        saved = source / CONFIG
        if not saved.is_file():
            raise ValueError(f"no settings {saved}: give the folder of a run")
        tree = tree_of(saved)
        cleared = _without_own_files(argv, asked.config) if tree is Config else []
        argv = ["--config", str(saved), *cleared, *argv]
    elif asked.config is not None:
        tree = tree_of(Path(asked.config))
    elif asked.task is None:
        argv = ["--config", str(PRESET / "kftt_ja_en.yaml"), *argv]
    parser = build_parser(tree)
    given = parser.parse_args(argv)
    config = to_config(parser, given, tree)
    if resumed is not None:
        _refuse_other_score(resumed, config)
    return Arguments(config, resumed, begun, given.dry_run, given.profile)


def _refuse_other_score(run: Path, config: AnyConfig) -> None:
    """What is best by one score says nothing of what is by another."""
    was, now = read_config(run, type(config)).training.select_by, config.training.select_by
    if was != now:
        raise ValueError(
            f"select_by={now}, but the best weights of {run} were chosen by {was}: give --training.select_by {was}, "
            "or begin anew with them by --init-from"
        )


def _without_own_files(argv: Sequence[str], preset: str | None) -> list[str]:
    """Options by which a corpus that is named anew takes the place of the files that a run has learned from."""
    given = {argument.partition("=")[0] for argument in argv}
    if "--data.corpus" not in given and not (preset and names_corpus(Path(preset))):
        return []
    files = [f"--data.{key.name}" for key in fields(DataConfig) if key.type == Path | None]
    return [word for option in files if option not in given for word in (option, "null")]


def _underscored(argument: str) -> str:
    """`--model.init_encoder` of `--model.init-encoder`: settings may be typed either way."""
    option, equals, value = argument.partition("=")
    if not option.startswith("--") or "." not in option:
        return argument
    return "--" + option.removeprefix("--").replace("-", "_") + equals + value


def _first_look(argv: Sequence[str]) -> argparse.Namespace:
    """What says which options there are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--config", "--task", "--init-from"):
        parser.add_argument(option)
    parser.add_argument("--resume", nargs="?", const="newest")
    try:
        return parser.parse_known_args(argv)[0]
    except argparse.ArgumentError:  # an option without its value: the parser of all options says so
        return argparse.Namespace(config=None, task=None, init_from=None, resume=None)
