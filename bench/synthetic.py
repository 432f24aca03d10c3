"""Synthetic pairs from two translators of opposite directions: `python -m bench.synthetic`.

Each line of a training text is translated once by each: what the forward translator says becomes a target of the real
source (sequence-level distillation, Kim & Rush 2016: of the candidates of its beam, that nearest to the reference), and
what the backward translator says a source of the real target (back-translation, Sennrich et al. 2016). Both together
beside the real pairs are data diversification (Nguyen et al. 2020).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from sacrebleu.metrics.chrf import CHRF
from tqdm import tqdm

from bench.measure import benchmark_parser
from utils.command import Parser, require_options_at_least, run_command
from utils.dataset.text import ParallelFiles, read_parallel
from utils.device import pick_device
from utils.file import require_outputs, write_lines
from utils.load import load_run
from utils.run import find_run
from utils.search.translator import Translator

_LINES = 4096  # of like length, which a process translates at a time
_TOO_FAR = 2.0  # times as long as the reference, or as short: a translator that has lost itself

_translators: dict[bool, Translator] = {}  # of a process: forward (True) and backward


class Work(NamedTuple):
    """Lines that one process translates at a time."""

    forward: bool
    places: list[int]
    texts: list[str]
    references: list[str]


def start_process(runs: dict[bool, Path], beams: dict[bool, int], device: str) -> None:
    """Load both translators."""
    torch.set_num_threads(1)
    for forward, folder in runs.items():
        run = load_run(folder, torch.device(device))
        _translators[forward] = run.translator(replace(run.config.search, beam_size=beams[forward]))


def translated(work: Work) -> tuple[Work, list[str]]:
    """Return the candidate of each text that is nearest to its reference by chrF; "": it has lost itself."""
    translator = _translators[work.forward]
    chrf, found = CHRF(), []
    translations = translator.translate(work.texts, n_best=translator.search.beam_size)
    for translation, reference in zip(translations, work.references, strict=True):
        texts = [candidate.text for candidate in translation.candidates]
        best = max(texts, key=lambda text: chrf.sentence_score(text, [reference]).score) if texts[1:] else texts[0]
        ratio = (len(best) + 1) / (len(reference) + 1)
        found.append(best if 1 / _TOO_FAR <= ratio <= _TOO_FAR else "")
    return work, found


def split(src: Sequence[str], tgt: Sequence[str], forward: bool) -> Iterator[Work]:
    """Yield the lines of a direction, longest first."""
    texts, references = (src, tgt) if forward else (tgt, src)
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    for begin in range(0, len(order), _LINES):
        places = order[begin : begin + _LINES]
        yield Work(forward, places, [texts[i] for i in places], [references[i] for i in places])


def build_parser() -> Parser:
    """Build the parser with all options."""
    parser = benchmark_parser(
        "synthetic",
        "Translate a training text in both directions, for synthetic pairs beside the real ones.",
        """  python -m bench.synthetic --forward kftt_ja_en --backward kftt_en_ja \\
      --src corpus/kftt/orig/kyoto-train.ja --tgt corpus/kftt/orig/kyoto-train.en --out synthetic
  python train.py --config kftt_ja_en --data.more_src synthetic/more.src --data.more_tgt synthetic/more.tgt""",
        beam=(4, "beam of the forward translator, whose candidate nearest to the reference is taken"),
        backward_beam=(1, "beam of the backward translator"),
        processes=(len(os.sched_getaffinity(0)), "processes that translate side by side"),
    )
    for direction, text in (("forward", "from source to target"), ("backward", "from target to source")):
        parser.add_argument(f"--{direction}", required=True, metavar="RUN", help=f"run that translates {text}")
    for side in ("src", "tgt"):
        parser.add_argument(f"--{side}", type=Path, required=True, metavar="FILE", help="side of the training text")
    parser.add_argument("--out", type=Path, required=True, help="folder for more.src and more.tgt")
    return parser


def main() -> None:
    """Translate both sides, and write the pairs."""
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, beam=1, backward_beam=1, processes=1)
    parallel = read_parallel(ParallelFiles(arguments.src, arguments.tgt))
    src, tgt = parallel.src, parallel.tgt
    files = arguments.out / "more.src", arguments.out / "more.tgt"
    require_outputs(dict(zip(("--out: source", "--out: target"), files, strict=True)))
    runs = {True: find_run(Path(arguments.forward)), False: find_run(Path(arguments.backward))}
    beams = {True: arguments.beam, False: arguments.backward_beam}
    found = {forward: [""] * len(src) for forward in runs}
    start = runs, beams, pick_device().type
    with (
        get_context("spawn").Pool(arguments.processes, start_process, start) as pool,
        tqdm(total=2 * len(src), unit="line", disable=None) as bar,
    ):
        everything = [work for forward in runs for work in split(src, tgt, forward)]
        for work, texts in pool.imap_unordered(translated, everything):
            for place, text in zip(work.places, texts, strict=True):
                found[work.forward][place] = text
            bar.update(len(texts))
    pairs = [*zip(src, found[True], strict=True), *zip(found[False], tgt, strict=True)]
    kept = [(source, target) for source, target in pairs if source and target]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for file, lines in zip(files, zip(*kept, strict=True), strict=True):
        write_lines(file, lines)
    print(f"{len(kept):,} pairs in {arguments.out}; {len(pairs) - len(kept):,} left out")


if __name__ == "__main__":
    run_command("bench.synthetic", main)
