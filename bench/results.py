"""Published results: `python -m bench.results RUN ...` keeps those of runs, and fills the tables of the pages.

A result is the `test.json` of its run, with the translations next to it, so that anybody can score them again. The
tables of the pages are made from the results in figure/results/, from scores of other systems in published.yaml, and
from what bench.decode and bench.train have measured, in figure/bench/.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from config.reader import changed_settings, flat, without_removed
from const.path import FIGURE, PRESET, ROOT
from utils.command import Parser, run_command
from utils.file import atomic_file, read_json, write_json, write_text
from utils.run import TEST, TRANSLATIONS, find_run
from utils.training.dry_run import RANGES
from utils.training.report import SCORES, spread

RESULTS, MEASURED = FIGURE / "results", FIGURE / "bench"
SAMPLES, SHOWN = FIGURE / "translations.md", 5  # the page of translations, and how many it shows of each
PUBLISHED, JAPANESE = (Path(__file__).with_name(name) for name in ("published.yaml", "japanese.yaml"))
# columns of the table of decoding
OURS = (("without caches", "fp32"), ("miyako", "fp32"), ("miyako", "bf16"), ("miyako", "int8"))

Result = dict[str, Any]


def markdown(head: str, rows: list[str]) -> str:
    """Return a Markdown table; cells are parted by ` | `."""
    return "\n".join([f"| {head} |", "|---" * (head.count(" | ") + 1) + "|", *(f"| {row} |" for row in rows)])


def read_results(folder: Path, of_translators: bool) -> Iterator[list[Result]]:
    """Yield the results of runs, grouped by name, in order of each group's first file."""
    runs: dict[str, list[Result]] = {}
    for file in sorted(folder.glob("*.json")):
        result = read_json(file)
        if ("bleu" in result) is of_translators:
            others = runs.setdefault(result["name"], [])
            if others and (changed := changed_settings(_recipe(others[0]), _recipe(result))):
                raise ValueError(
                    f"{file} differs from other results of {result['name']} in {', '.join(changed)}: "
                    "keep those of one setting"
                )
            others.append(result)
    yield from runs.values()


def _recipe(result: Result) -> dict[str, Any]:
    """Return all settings but the seed, by their dotted names, if the result has them.

    Those that are null or false are left out: older results lack what did not exist yet, and was not done then.
    """
    settings = flat(without_removed(result.get("config", {})))
    for own in ("training.seed", "search.max_perplexity"):  # each training finds its own
        settings.pop(own, None)
    return {name: value for name, value in settings.items() if value is not None and value is not False}


def _mean(runs: list[Result], figure: str) -> str:
    """Format the mean and, for several seeds, the standard deviation."""
    values = [run[figure] for run in runs]
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _trained(runs: list[Result]) -> str:
    """Format the cells that all runs have: parameters, training, perplexity."""
    minutes, tokens = (mean(run[figure] for run in runs) for figure in ("minutes", "target_tokens"))
    seeds = f"{len(runs)} seeds, each " if len(runs) > 1 else ""
    training = f"{seeds}{minutes:.0f} min, {tokens / 1e6:.1f} M tokens"
    return f"{runs[0]['parameters'] / 1e6:.1f} M | {training} | {_mean(runs, 'perplexity')}"


def result_table(folder: Path = RESULTS, of_presets: bool = False) -> str:
    """Return a row for each translator, or for each that is a preset; runs of one name share a row."""
    rows = [
        f"`{runs[0]['name']}` | {runs[0]['corpus']} | {runs[0]['direction'].replace('-', '→')} | {_trained(runs)} "
        f"| **{_mean(runs, 'bleu')}** | {_mean(runs, 'chrf')}"
        for runs in read_results(folder, of_translators=True)
        if not of_presets or (PRESET / f"{runs[0]['name']}.yaml").is_file()
    ]
    return markdown("run | corpus | direction | parameters | training | test PPL | BLEU | chrF2", rows)


def other_table(folder: Path = RESULTS) -> str:
    """Return a row for each network of another task; runs of one name share a row."""
    rows = [
        f"`{runs[0]['name']}` | {runs[0]['task']} | {runs[0]['text']} | {_trained(runs)} "
        f"| {', '.join(f'{label} {_mean(runs, n)}' for n, label in SCORES.items() if n in runs[0])}"
        for runs in read_results(folder, of_translators=False)
    ]
    return markdown("run | task | text | parameters | training | test PPL | scores", rows)


def published_table(folder: Path = RESULTS) -> str:
    """Return a row for each published score that we have results for; seeds are averaged."""
    ours = {runs[0]["name"]: mean(run["bleu"] for run in runs) for runs in read_results(folder, of_translators=True)}
    rows = []
    for theirs in yaml.safe_load(PUBLISHED.read_text(encoding="utf-8")):
        if (here := ours.get(theirs["run"])) is not None:
            difference = f"{here - theirs['bleu']:+.2f}" if theirs["same"] else "not comparable"
            there = f"`{theirs['run']}` | {theirs['bleu']:.2f} | {theirs['by']} | {theirs['protocol']}"
            rows.append(f"{there} | **{here:.2f}** | {difference}")
    return markdown("run | published BLEU | by | counted on | BLEU here | difference", rows)


def measured(benchmark: str) -> list[Result]:
    """Return what a benchmark has left in figure/bench/."""
    return [read_json(file) for file in sorted(MEASURED.glob(f"{benchmark}_*.json"))]


def decode_table(results: Iterable[Result]) -> str:
    """Return a row for each search of bench.decode: sentences per second, ratio to CTranslate2, share of the limit."""
    rows = []
    for result in results:
        forced = f", {result['tokens']} tokens forced" if result["tokens"] else ""
        name = f"`{result['name']}`{forced}; {result['machine']}"
        measured = {tuple(row["setting"].values()): row for row in result["measurements"]}
        for single, beam in sorted({(not batched, beam) for _, _, beam, batched in measured}):
            base = measured["CTranslate2", "float32", beam, not single]["sentences_per_s"]
            cells = [name, f"{'greedy' if beam == 1 else f'beam {beam}'}, {'one by one' if single else 'batched'}"]
            for system in (("CTranslate2", "float32"), *OURS):
                row = measured.get((*system, beam, not single))
                cells.append("" if row is None else f"{row['sentences_per_s']:.1f} ({_compared(row, base)})")
            rows.append(" | ".join(cells))
    systems = "CTranslate2 float32 | without caches | ours fp32 | ours bf16 | ours int8"
    return markdown(f"run, its test set; machine | search | {systems}", rows)


def _compared(row: Result, base: float) -> str:
    """Format the ratio to another speed, and the share of what the machine allows if it was measured."""
    share = f", {row['of_the_limit']:.0%}" if "of_the_limit" in row else ""
    return f"{row['sentences_per_s'] / base:.2f} x{share}"


def train_table(results: Iterable[Result]) -> str:
    """Return a row for each setting that bench.train has measured; "ours is": the ratio of our fastest."""
    rows = []
    for result in results:
        speeds = [(m["tokens_per_s"], m["setting"]) for m in result["measurements"]]
        own = [(speed, s) for speed, s in speeds if s["system"] == "miyako" and not s.get("without")] or speeds
        ours = {s["precision"]: speed for speed, s in sorted(own, key=lambda measured: measured[0])}
        for m in result["measurements"]:
            setting, precision, speed = m["setting"], m["setting"]["precision"], m["tokens_per_s"]
            used = speed * result["mflop_per_target_token"] / (result["product_gflops"][precision] * 1e3)
            cells = (
                f"`{result['name']}`, {result['machine']}",
                f"{setting['system']} {precision}{', compiled' if setting['compiled'] else ''}"
                + (f" without {setting['without']}" if setting.get("without") else ""),
                f"{setting['tokens_per_batch']:,}",
                f"{speed:,.0f}",
                f"{max(ours.values()) / speed:.2f} x",
                f"{ours[precision] / speed:.2f} x" if precision in ours else "",
                f"{used:.0%}",
                "" if m["padding"] is None else f"{m['padding']:.1%}",
                ", ".join(f"{m['part_ms'][part]:.0f}" for part in RANGES if part in m["part_ms"]),
                f"{m['peak_mib']:,.0f}",
            )
            rows.append(" | ".join(cells))
    compared = "target tokens/s | ours is | in the same precision | of the peak"
    return markdown(f"on | system | batch | {compared} | padding | {', '.join(RANGES)} (ms) | MiB", rows)


def translations_page(folder: Path = RESULTS) -> str:
    """Return what each translator makes of lines of its test text at equal distances; of several seeds the first."""
    lines = [
        "# Translations",
        "",
        "Lines of the test text at equal distances, not picked by hand: source, **translation**, reference.",
        "`python -m bench.results` writes this page.",
    ]
    for result, *_ in read_results(folder, of_translators=True):
        if samples := result.get("samples"):
            lines += ["", f"## `{result['name']}` ({result['corpus']}, {result['direction'].replace('-', '→')})", ""]
            for sample in spread(samples, SHOWN):
                lines += [f"- {sample['source']}", f"  - **{sample['translation']}**", f"  - {sample['reference']}"]
    return "\n".join(lines) + "\n"


# name of each table -> what makes it, and the pages that show it, in both languages
TABLES: dict[str, tuple[Callable[[], str], tuple[str, ...]]] = {
    "results": (lambda: result_table(of_presets=True), ("README.md", "README.ja.md")),
    "translators": (result_table, ("docs/results.md", "docs/ja/results.md")),
    "published": (published_table, ("docs/results.md", "docs/ja/results.md")),
    "models": (other_table, ("docs/results.md", "docs/ja/results.md")),
    "decoding": (lambda: decode_table(measured("decode")), ("docs/speed.md", "docs/ja/speed.md")),
    "training": (lambda: train_table(measured("train")), ("docs/speed.md", "docs/ja/speed.md")),
}


def in_language_of(page: str, table: str) -> str:
    """Return the table as a page shows it: on a Japanese one, its headings and words are Japanese."""
    if page.endswith(".ja.md") or page.startswith("docs/ja/"):
        for english, japanese in yaml.safe_load(JAPANESE.read_text(encoding="utf-8")).items():
            table = re.sub(english, japanese, table)
    return table


def with_table(page: str, table: str, name: str) -> str:
    """Return the page with the table between the two marks of this name."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no {begin} ... {end}: put both where the table should be")
    return f"{page.partition(begin)[0]}{begin}\n{table}\n{end}{page.partition(end)[2]}"


def keep_result(run: Path, folder: Path) -> Path:
    """Copy a run's result into a folder, under the run's name and seed; an earlier result of both is replaced."""
    test, translations = run / TEST, run / TRANSLATIONS
    if not test.is_file():
        raise ValueError(f"{run} has no {TEST} yet: it is written when the training has ended")
    result = read_json(test)
    if "seed" not in result or ("bleu" in result and not translations.is_file()):
        raise ValueError(f"{run} has no seed or no {TRANSLATIONS}: test it again, python train.py --resume {run}")
    kept = folder / f"{result['name']}_{result['seed']}.json"
    if translations.is_file():
        with atomic_file(kept.with_suffix(".txt")) as draft:
            draft.write_bytes(translations.read_bytes())
    write_json(kept, result)
    return kept


def build_parser() -> Parser:
    """Build the parser."""
    parser = Parser(
        prog="bench.results",
        usage="python -m bench.results [RUN ...]",
        description="Keep the test results of runs in figure/results/, and renew the tables of all pages.",
        epilog="""examples:
  python -m bench.results pickles/demo-20260101-120000
  python -m bench.results                     renew the tables only""",
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder or name of a run")
    return parser


def main() -> None:
    """Keep the results of the given runs, and renew the tables."""
    for run in build_parser().parse_args().runs:
        print(keep_result(find_run(run), RESULTS))
    for name, (make, pages) in TABLES.items():
        table = make()
        for page in pages:
            write_text(
                ROOT / page, with_table((ROOT / page).read_text(encoding="utf-8"), in_language_of(page, table), name)
            )
    write_text(SAMPLES, translations_page())


if __name__ == "__main__":
    run_command("bench.results", main)
