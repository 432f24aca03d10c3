"""What a language model's memory is worth: perplexity of a text by the length of the memory.

`python -m utils.task.perplexity --memory_lengths 0 16 64 256`
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from const.path import CORPUS
from models.transformer_xl import Memory
from utils.command import Parser, require_options_at_least, run_command
from utils.config import LanguageConfig
from utils.dataset.corpus import Split
from utils.dataset.monolingual import prepare_monolingual
from utils.dataset.stream import SegmentBatch, StreamConfig, StreamSampler
from utils.device import autocast, pick_device
from utils.evaluation.judge import WordPerplexity
from utils.file import require_file, write_json
from utils.run import TrainedLanguageModel, find_run, load_language_model
from utils.training.loss import Loss, RecurrentObjective, mean_loss
from utils.training.report import perplexity
from utils.visualize.curve import sheet
from utils.visualize.run_title import distinct_names, titles


class Remembering(NamedTuple):
    """How well a text is predicted with a memory of some length."""

    memory_length: int
    perplexity: float  # per token
    word_ppl: float


@torch.inference_mode()
def text_loss(model: TrainedLanguageModel, batches: Sequence[SegmentBatch], memory_length: int) -> float:
    """Return the nats per token of a text that is read segment by segment."""
    device, objective = next(model.net.parameters()).device, RecurrentObjective(memory_length)

    def loss_of(batch: SegmentBatch, memory: Memory | None) -> Loss:
        with autocast(device, model.config.training.precision):
            return objective(model.net, batch.to(device), memory)

    bar = tqdm(batches, desc=f"memory {memory_length}", unit=" segments", disable=None, leave=False)
    return mean_loss(loss_of, bar)


def remember(
    model: TrainedLanguageModel, split: Split, segment_length: int, memory_lengths: Sequence[int], root: Path = CORPUS
) -> Iterator[Remembering]:
    """Predict a text with memories of different lengths.

    Args:
        model: the language model.
        split: of the corpus that it was trained on.
        segment_length: tokens that are read at a time.
        memory_lengths: numbers of earlier positions to remember.
        root: where corpora and caches are kept.
    """
    corpus = prepare_monolingual(model.config.data, root)
    tokens = corpus.tokens(split, model.tokenizer, print, root)
    batches = StreamSampler(tokens, StreamConfig(1, segment_length)).all()
    by_word = WordPerplexity(corpus, split, batches)
    for memory_length in memory_lengths:
        loss = text_loss(model, batches, memory_length)
        yield Remembering(memory_length, perplexity(loss), by_word(loss).scores["word_ppl"])


def draw(found: dict[str, Sequence[Remembering]], picture: Path) -> None:
    """Draw word perplexity against memory length, one line per model, as a PNG."""
    with sheet(picture, (7, 4.5), dpi=120) as (axes,):
        for title, points in zip(titles(list(found)), found.values(), strict=True):
            axes.plot([p.memory_length for p in points], [p.word_ppl for p in points], marker="o", label=title)
        axes.set_xscale("symlog", base=2, linthresh=8)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.set(xlabel="memory length (positions)", ylabel="word perplexity")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)


def build_parser() -> Parser:
    """Build the parser: runs, text, memory lengths, and where to write."""
    parser = Parser(
        prog="utils.task.perplexity",
        usage="python -m utils.task.perplexity [--run RUN ...] [--memory_lengths M ...] [--split dev|test] [...]",
        description="Report how well language models predict a text that they remember more or less of.",
        epilog="""examples:
  python -m utils.task.perplexity --memory_lengths 0 16 64 256
  python -m utils.task.perplexity --run pickles/XL pickles/NO_MEMORY --picture memory.png --json memory.json""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=Path, nargs="+", metavar="RUN", help="folders of runs (default: the newest one)")
    parser.add_argument(
        "--memory_lengths",
        type=int,
        nargs="+",
        metavar="M",
        default=[0, 16, 32, 64, 128, 256],
        help="positions to remember (default: 0 16 32 64 128 256)",
    )
    parser.add_argument("--split", choices=["dev", "test"], default="test", help="the text to predict (default: test)")
    parser.add_argument(
        "--segment_length", type=int, metavar="T", help="tokens read at a time (default: as in training)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the results as PNG")
    return parser


def main() -> None:
    """Print a line for each memory length.

    Raises:
        ValueError: when there is no such run, two have the same name, or a length is out of range.
    """
    arguments = build_parser().parse_args()
    require_file(arguments.json, arguments.picture)
    require_options_at_least(arguments, memory_lengths=0, segment_length=1)
    folders = [find_run(name, LanguageConfig) for name in arguments.run or [None]]
    names = distinct_names(folders)
    device = pick_device("auto")
    found: dict[str, Sequence[Remembering]] = {}
    for name, folder in zip(names, folders, strict=True):
        model, points = load_language_model(folder, device), list[Remembering]()
        own = model.config.batch.segment_length
        segment_length = own if arguments.segment_length is None else arguments.segment_length
        print(f"{name}, {arguments.split}, segments of {segment_length}\n  memory       PPL  PPL by word")
        for point in remember(model, arguments.split, segment_length, arguments.memory_lengths):
            print(f"{point.memory_length:>8}  {point.perplexity:>8.2f}  {point.word_ppl:>11.2f}", flush=True)
            points.append(point)
        found[name] = points
    if arguments.json:
        table: dict[str, Any] = {name: [point._asdict() for point in points] for name, points in found.items()}
        write_json(arguments.json, table)
    if arguments.picture:
        draw(found, arguments.picture)


if __name__ == "__main__":
    run_command("perplexity", main)
