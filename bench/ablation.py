"""One switch at a time, each with several seeds: `python -m bench.ablation const/ablation/multi30k.yaml`."""

import argparse
from pathlib import Path

from bench.measure import Figure, add_json_option, publish
from const.path import FIGURE
from utils.command import Parser, run_command
from utils.experiment.ablation import Comparison, Results, Work, compare, draw, read_ablation, write_table
from utils.experiment.trial import stop_as_by_ctrl_c
from utils.run import own_commit


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = Parser(
        prog="bench.ablation",
        usage="python -m bench.ablation FILE [--table] [--folder FOLDER] [--json FILE]",
        description="Train a base and its alternatives with every seed, score them, and report significant differences "
        "from the base. Resumes where it was stopped; when started twice, the processes share the work.",
        epilog="""examples:
  python -m bench.ablation const/ablation/multi30k.yaml            hours; started twice, on two cores
  python -m bench.ablation const/ablation/multi30k.yaml --table    table and picture only, from existing results""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="settings to compare: a file of const/ablation/")
    parser.add_argument("--table", action="store_true", help="only make the table and the picture, without training")
    parser.add_argument("--folder", type=Path, default=FIGURE, help="folder for results (default: figure/)")
    add_json_option(parser)
    return parser


def figures(found: Comparison) -> dict[str, Figure]:
    """Return the figures of the last line."""
    verdicts = found.verdicts()
    named: dict[str, Figure] = {"alternatives": len(found.rows), "missing": len(found.missing)}
    named |= {verdict.replace(" ", "_"): verdicts[verdict] for verdict in ("better", "worse", "no difference seen")}
    return named | ({} if found.trained is None else {"seed_deviation": found.trained.deviation})


def main() -> None:
    """Train, score, write the table and draw the picture."""
    arguments = build_parser().parse_args()
    stop_as_by_ctrl_c()
    own_commit()  # fails now rather than after hours
    ablation = read_ablation(arguments.file)
    results = Results(ablation, arguments.folder / "ablation" / ablation.spec.name)
    if not arguments.table:
        Work(results).finish()
    found = compare(results)
    table, picture = (arguments.folder / f"ablation_{ablation.spec.name}.{kind}" for kind in ("md", "png"))
    draw(found, picture)
    write_table(found, table, picture)
    print(f"{table}\n{picture}")
    publish(figures(found), {"ablation": ablation.spec.name}, arguments.json)


if __name__ == "__main__":
    run_command("bench.ablation", main)
