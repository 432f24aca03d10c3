"""KFTT both ways on one GPU in minutes, from its archive to scores: `python -m bench.gpu --archive FILE --out FOLDER`.

One network learns both directions, and then each alone, both at once, with a learning rate that ends with the time.
Nothing but this project's packages for training is needed, and all that is worth keeping is in one folder.
"""

import os
import runpy
import signal
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from bench.measure import benchmark_parser, product_peak, publish
from bench.results import markdown, train_table
from const.path import ROOT
from utils.arguments import as_options, read_arguments
from utils.command import INTERRUPTED, Parser, print_above_bars, run_command
from utils.dataset.text import read_lines
from utils.device import pick_device
from utils.evaluation.metric import moses_words, multi_bleu
from utils.file import read_json, write_text
from utils.provenance import machine, own_commit
from utils.run import CONFIG, CURVE, TEST, TRANSLATIONS, WEIGHTS, runs_named
from utils.training.checkpoint import read_rank, read_weights, write_weights
from utils.training.report import LOG, read_log

DIRECTIONS = {"kftt_ja_en": ("ja", "en"), "kftt_en_ja": ("en", "ja")}
TRUNK = "kftt_trunk"  # preset, and name of the run
TRUNK_SHARE = 0.4  # of the time of training
MAY_FAIL = (0, 1, 2)  # of what shows and no training needs: its log says why
TESTS = [f"tests/test_{name}.py" for name in ("attention", "batch", "packed", "training")]


class Scale(NamedTuple):
    """What is trained, and the seconds that other things than training take."""

    trunk: Mapping[str, Any]  # settings beside those of the preset
    branch: Mapping[str, Any]
    device: str
    trunk_steps: int | None  # updates after which the trunk is stopped; None: by the clock
    start: float  # of a training: imports, texts, network
    test: float  # of both translators at the end, and of finding their search
    tried: Sequence[str]  # searches
    tokenized: str  # English test text of nymwa's protocol, below the folder of corpora


FULL = Scale(
    trunk={
        "batch.tokens_per_batch": 24576,
        "batch.accumulate": 1,
        "batch.length_multiple": 8,
        "model.dropout": 0.1,
        "optimizer.peak_lr": 0.003,
        "optimizer.ema_decay": 0.998,
        "training.validate_every": 2000,
        "training.report_every": 50,
    },
    branch={"training.validate_every": 3000, "training.bleu_sentences": None},
    device="cuda",
    trunk_steps=None,
    start=15,
    test=110,
    tried=("--beams", "4", "8", "--length-penalties", "0.6", "1", "1.4", "--limit", "300"),
    tokenized="kftt/tok/kyoto-test.en",
)
SMALL = Scale(
    trunk={
        "data.corpus": "embedded",
        "tokenizer.vocab_size": 900,
        "model.d_model": 32,
        "model.n_heads": 2,
        "model.d_ff": 64,
        "model.n_encoder_layers": 1,
        "model.n_decoder_layers": 1,
        "batch.tokens_per_batch": 1024,
        "training.validate_every": 50,
        "training.bleu_sentences": 20,
        "optimizer.warmup_steps": 5,
        "training.report_every": 1,
        "training.precision": "fp32",
        "search.beam_size": 2,
        "search.min_length": 6,
        "search.max_length": 8,
    },
    branch={},
    device="cpu",
    trunk_steps=20,
    start=0,
    test=0,
    tried=("--beams", "1", "2", "--length-penalties", "1", "--limit", "20"),
    tokenized="embedded/kyoto-test.en",
)


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = benchmark_parser(
        "gpu",
        "Train KFTT in both directions on one GPU within some minutes, test both, and keep what came out.",
        """  python -m bench.gpu --archive kftt-data-1.0.tar.xz --out gpu              nine minutes
  python -m bench.gpu --archive kftt-data-1.0.tar.xz --out gpu --minutes 15
  python -m bench.gpu --dry-run --out small                      the same on a CPU: a toy corpus, a few updates""",
        minutes=(9.0, "minutes that all of it may take"),
        speed=(4.0, "seconds for which each form of a training step is measured; 0: none is"),
    )
    parser.add_argument("--archive", type=Path, help="local archive or unpacked folder of KFTT")
    parser.add_argument("--out", type=Path, required=True, help="new folder for what is worth keeping")
    parser.add_argument("--dry-run", action="store_true", help="the same in small, on a CPU; nothing is measured")
    return parser


def run_python(command: Sequence[str], log: Path) -> None:
    """Be `python COMMAND`, from the folder of the project; both outputs go to a log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(ROOT)
    is_module = command[0] == "-m"
    sys.argv = list(command[is_module:])
    sys.path.insert(0, str(ROOT))
    if is_module:
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(command[0], run_name="__main__")


class Bench:
    """Runs this project's commands one after the other or side by side, until a deadline."""

    def __init__(self, out: Path, minutes: float, scale: Scale) -> None:
        self.out, self.scale = out, scale
        self.begin = time.monotonic()
        self.deadline = self.begin + 60 * minutes
        self.work = out / "work"  # all that is not worth keeping
        self.corpus, self.pickles, self.speeds = (self.work / name for name in ("corpus", "pickles", "speed.json"))
        self.work.mkdir(parents=True)
        os.environ |= {"MIYAKO_CORPUS": str(self.corpus), "MIYAKO_PICKLES": str(self.pickles)}  # of the commands
        if scale is SMALL:
            os.environ["OMP_NUM_THREADS"] = "1"
        # a process that has imported what takes seconds, and of which each command begins as a copy
        self.processes = get_context("forkserver")
        self.processes.set_forkserver_preload(["torch", "torch._dynamo", "matplotlib.pyplot", "sacrebleu"])

    def say(self, text: str) -> None:
        """Print a line with the seconds since the beginning."""
        print_above_bars(f"{time.monotonic() - self.begin:6.1f} s  {text}")

    def start(self, name: str, *command: str) -> BaseProcess:
        """Start a command of Python; what it prints goes to a log of this name."""
        self.say(f"{name}: {' '.join(command)}")
        process = self.processes.Process(target=run_python, args=(command, self.work / f"{name}.log"))
        process.start()
        return process

    def finish(self, name: str, process: BaseProcess, accepted: Sequence[int | None] = (0,)) -> None:
        """Wait for a command, and fail with the end of its log if it has failed."""
        process.join()
        code = process.exitcode
        lines = (self.work / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if code not in accepted:
            raise ValueError(f"{name} ended with status {code}:\n" + "\n".join(lines[-15:]))
        self.say(f"{name}: {'failed' if code in MAY_FAIL[1:] else 'done'}, {' '.join(lines[-1:])}")

    def runs(self) -> dict[str, Path]:
        """Return the folders of the trainings that have begun, by name."""
        begun = {name: runs_named(name, self.pickles) for name in (TRUNK, *DIRECTIONS)}
        return {name: folders[0] for name, folders in begun.items() if folders}

    def training_seconds(self) -> float:
        """Return what is left for training once the branches have begun."""
        return self.deadline - time.monotonic() - self.scale.test - self.scale.start

    def train(self, archive: Path | None, speed: float) -> None:
        """Train the trunk until its time is over, then both branches at once; find the best search and test with it.

        Each form of a training step is measured for `speed` seconds before.
        """
        scale, data = self.scale, {} if archive is None else {"data.archive": str(archive.resolve())}
        settings = self.work / "trunk.yaml"
        read_arguments(["--config", TRUNK, *as_options({**scale.trunk, **data})]).config.save(settings)
        if scale is FULL:
            preparing = self.start("prepare", "train.py", "--config", str(settings), "--dry-run")
            self.finish("tests", self.start("tests", "-m", "pytest", "-q", "-m", "gpu", *TESTS), MAY_FAIL)
            self.finish("prepare", preparing)
        if speed:
            measured = ["--warm-up", "0", "--seconds", f"{speed}", "--rounds", "1"]  # after some steps
            measured += ["--device", scale.device, "--config", str(settings), "--json", str(self.speeds)]
            self.finish("speed", self.start("speed", "-m", "bench.train", *measured), MAY_FAIL)
        if (left := self.training_seconds() - scale.start) <= 0:
            raise ValueError("no time is left for training: raise --minutes")
        self.train_trunk(settings, time.monotonic() + scale.start + TRUNK_SHARE * left)
        folder = self.runs()[TRUNK]
        _, last = read_log(folder / LOG)[-1]
        minutes = last["minutes"] + self.training_seconds() / 60
        until = {} if scale.trunk_steps else {"training.max_minutes": round(minutes, 2)}  # in small: a few updates
        branches = {}
        for name, (src, tgt) in DIRECTIONS.items():
            alone = {"data.both_directions": False, "data.src_lang": src, "data.tgt_lang": tgt}
            options = as_options({**until, **alone, **scale.branch})
            branches[name] = ["train.py", "--branch", str(folder), "--name", name, *options]
        self.both("", branches)
        runs = self.runs()
        self.both("_tune", {n: ["evaluate.py", "tune", str(runs[n]), *scale.tried, "--save"] for n in DIRECTIONS})
        self.both("_test", {n: ["train.py", "--resume", str(runs[n])] for n in DIRECTIONS})  # ended, so that it tests

    def train_trunk(self, settings: Path, end: float) -> None:
        """Train the trunk until a time of the monotonic clock, or for a number of updates if the scale gives one."""
        trunk, steps = self.start("trunk", "train.py", "--config", str(settings)), self.scale.trunk_steps
        while trunk.is_alive():
            if self.updates() >= steps if steps else time.monotonic() >= end:
                os.kill(cast(int, trunk.pid), signal.SIGINT)  # it saves its state
                break
            time.sleep(0.1)
        self.finish("trunk", trunk, (0, INTERRUPTED))

    def updates(self) -> int:
        """Return the number of updates that the trunk has reported."""
        log = self.runs().get(TRUNK, self.work) / LOG
        return max((record["step"] for _, record in read_log(log)), default=0) if log.exists() else 0

    def both(self, step: str, commands: Mapping[str, Sequence[str]]) -> None:
        """Run a command for each direction, side by side."""
        processes = {name + step: self.start(name + step, *command) for name, command in commands.items()}
        for process in processes.values():  # both, before a failure of one is reported
            process.join()
        for name, process in processes.items():
            self.finish(name, process)

    def results(self) -> dict[str, Any]:
        """Return speed and scores of all trainings."""
        results: dict[str, Any] = {}
        for name, folder in self.runs().items():
            reports = [report for _, report in read_log(folder / LOG) if report["kind"] == "train"]
            speed = median(report["tokens_per_second"] for report in reports)
            results[name] = {"tokens_per_second": speed, "target_tokens": reports[-1]["target_tokens"]}
            if name in DIRECTIONS:
                results[name] |= read_json(folder / TEST)
                if DIRECTIONS[name][1] == "en":
                    said = (folder / TRANSLATIONS).read_text(encoding="utf-8").split("\n")[:-1]  # perhaps nothing
                    words = moses_words(said)
                    results[name]["nymwa"] = multi_bleu(words, read_lines(self.corpus / self.scale.tokenized))
        return results

    def keep(self) -> None:
        """Put logs, curves and translations into an archive, and the weights in bfloat16 beside it."""
        with tarfile.open(self.out / "files.tar.gz", "w:gz") as archive:
            for log in sorted(self.work.glob("*.log")):
                archive.add(log, log.name)
            for name, folder in self.runs().items():
                for file in (CONFIG, LOG, CURVE, TEST, TRANSLATIONS, "tokenizer.model", "tokenizer_tag.txt"):
                    if (path := folder / file).exists():
                        archive.add(path, f"{name}/{file}")
        for name, folder in self.runs().items():
            if not (folder / TEST).exists():  # the trunk, or what has failed
                continue
            best, low = folder / WEIGHTS, dict[int, Tensor]()
            for tensor in (weights := read_weights(best)).values():  # tied ones stay tied
                low.setdefault(id(tensor), tensor.bfloat16())
            half = self.out / f"{name}.safetensors"
            write_weights({key: low[id(tensor)] for key, tensor in weights.items()}, half, read_rank(best))

    def publish(self, record: Mapping[str, Any], file: Path | None) -> None:
        """Print the tables and the figures, and write them."""
        results = self.results()
        record = {**record, "seconds": time.monotonic() - self.begin, "runs": results}
        tables = [table(results)]
        if self.speeds.exists():
            record["speed"] = read_json(self.speeds)
            tables.append(train_table([record["speed"]]))
        shown = "\n\n".join(tables)
        write_text(self.out / "table.md", shown + "\n")
        print(shown)
        figures = {f"{name}_bleu": results[name]["bleu"] for name in DIRECTIONS}
        publish(figures, record, file or self.out / "result.json")


def table(results: Mapping[str, Any]) -> str:
    """Return what a reader wants to know first, in Markdown."""
    rows = []
    for name, result in results.items():
        scores = [f"{result[score]:.2f}" if score in result else "" for score in ("bleu", "chrf")]
        scores.append(result.get("nymwa", "").partition(",")[0].removeprefix("BLEU = "))
        rows.append(f"{name} | {result['target_tokens']:,} | {result['tokens_per_second']:,.0f} | {' | '.join(scores)}")
    return markdown("run | target tokens | tokens/s | BLEU | chrF2 | BLEU as nymwa counts", rows)


def main() -> None:
    """Train, test, keep, and print the table."""
    arguments = build_parser().parse_args()
    if arguments.out.exists():
        raise ValueError(f"--out {arguments.out} exists already: name a new folder")
    small, device = arguments.dry_run, pick_device("cpu" if arguments.dry_run else "cuda")
    bench = Bench(arguments.out.resolve(), arguments.minutes, SMALL if small else FULL)
    peak = None if small else product_peak(torch.bfloat16, device)
    bench.say(machine(device) + ("" if peak is None else f": products at {peak / 1000:,.1f} TFLOP/s"))
    try:
        bench.train(arguments.archive, 0 if small else arguments.speed)
    finally:
        bench.keep()
    record = {"commit": own_commit(), "machine": machine(device), "torch": torch.__version__, "product_gflops": peak}
    bench.publish(record, arguments.json)


if __name__ == "__main__":
    run_command("bench.gpu", main)
