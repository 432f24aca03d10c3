"""Many trainings from one YAML file: `python study.py FILE` searches a `space`, or turns `switches` one at a time."""

from pathlib import Path
from typing import TYPE_CHECKING

from config.reader import Scalar, read, settings_from_file
from const.path import FIGURE
from utils.command import Namespace, Parser, needing_group, require_options_at_least, run_command
from utils.file import require_outputs

if TYPE_CHECKING:
    from utils.experiment.ablation import AblationConfig
    from utils.experiment.study import StudyConfig

# What computes is imported where it is used: torch takes seconds, which neither --help nor a mistake should wait for.


def build_parser() -> Parser:
    """Build the parser of all options."""
    parser = Parser(
        prog="study.py",
        usage="python study.py STUDY.yaml [--trials N] [--best FILE] [--report] [--folder FOLDER]",
        description="Run the many trainings of a study file. A file with a space is searched for better settings than "
        "a preset's with Optuna; hopeless trainings are given up early. In a file with switches and seeds, a base and "
        "its alternatives are trained with every seed, and differences are claimed beyond what seeds do. All choices "
        "are made on dev text.",
        epilog="""examples:
  python study.py const/study/demo.yaml --trials 12               search: start or resume
  python study.py const/study/demo.yaml --best best.yaml          also write the best settings, for train.py --config
  python study.py const/study/ablation_multi30k.yaml              one switch at a time: hours
  python study.py const/study/ablation_multi30k.yaml --report     report the results so far, train nothing

The same command in a second terminal takes part. After Ctrl-C, SIGTERM, or when the terminal is closed, the running
training saves, and the same command resumes it.
Exit status: 0 on success, 2 after a mistake or failed trainings, 130 after Ctrl-C.""",
    )
    parser.add_argument("study", type=Path, metavar="STUDY.yaml", help="what to train; see const/study/")
    parser.add_argument(
        "--trials",
        type=int,
        default=20,
        metavar="N",
        help="number of finished trials that a search is to reach, earlier ones included (default: 20)",
    )
    parser.add_argument(
        "--best",
        type=Path,
        metavar="FILE",
        help="at the end of a search, write all settings of the best trial, for train.py --config; it trains for as "
        "long as a trial did unless --training.max_steps or --training.max_epochs is given",
    )
    parser.add_argument("--report", action="store_true", help="only report the results so far, without training")
    parser.add_argument(
        "--folder",
        type=Path,
        default=FIGURE,
        help="folder for table, picture and results of switches (default: figure/)",
    )
    return parser


def load(file: Path) -> "StudyConfig | AblationConfig":
    """Read a study file, and check every option in it with train.py's own parser."""
    if not file.is_file():
        raise ValueError(f"no study {file}: give a YAML file such as const/study/demo.yaml")
    settings = settings_from_file(file)
    with needing_group("study"):
        from utils.experiment.study import StudyConfig
    from utils.experiment.ablation import AblationConfig

    if isinstance(settings.get("pruner"), Scalar):
        settings["pruner"] = {"kind": settings["pruner"]}  # a word is its kind
    try:
        if bool(settings.get("space")) == bool(settings.get("switches")):
            raise ValueError("no study: give a name, a preset, and either a space, or switches and seeds")
        return read(StudyConfig, settings) if settings.get("space") else read(AblationConfig, settings)
    except ValueError as error:
        if str(error).startswith(str(file)):  # and the line
            raise
        raise ValueError(f"{file}: {error}") from error


def main() -> None:
    """Read the study file, train what is missing, and report."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, trials=1)
    require_outputs({"--best": arguments.best})
    config = load(arguments.study)
    from utils.experiment.ablation import AblationConfig
    from utils.experiment.trial import stop_as_by_ctrl_c

    stop_as_by_ctrl_c()
    try:
        ablate(config, arguments) if isinstance(config, AblationConfig) else search(config, arguments)
    except KeyboardInterrupt:
        print("stopped; the running training is saved, and the same command resumes it", flush=True)
        raise


def search(config: "StudyConfig", arguments: Namespace) -> None:
    """Search until there are enough trials, and report the best."""
    from utils.experiment.study import Study, draw, summary, write_best

    study = Study(config)
    study.search(0 if arguments.report else arguments.trials)
    print("\n".join(summary(study)))
    if pictures := draw(study):
        print(f"pictures: {', '.join(map(str, pictures))}")
    if arguments.best is not None:
        write_best(study, arguments.best)
        print(f"its settings: {arguments.best}, for python train.py --config {arguments.best}")


def ablate(config: "AblationConfig", arguments: Namespace) -> None:
    """Train and score a base and its alternatives, and compare them in a table and a picture."""
    from utils.experiment.ablation import Ablation, write_page
    from utils.provenance import own_commit, portable

    if arguments.best is not None:
        raise ValueError(f"--best {arguments.best} is for a file with a space: in one with switches nothing is chosen")
    own_commit()  # of the code as it is now: it may change while this trains
    ablation = Ablation(config, arguments.folder / "ablation" / config.name)
    if not arguments.report:
        ablation.train()
    command = f"python study.py {portable(arguments.study.resolve())} --report"
    print("\n".join(map(str, write_page(ablation, arguments.folder, command))))


if __name__ == "__main__":
    run_command("study.py", main)
