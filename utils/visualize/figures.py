"""The pictures of docs/: `python -m utils.visualize.figures`, or `make figures`."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from const.path import FIGURE, PICKLES
from const.token import BOS, EOS, PAD
from layers.positional_encoding import sinusoid
from utils.command_line import Parser, run_command
from utils.training.jsonl_log import LOG
from utils.visualize.activation import draw_activations
from utils.visualize.curve import draw_curves
from utils.visualize.label_smoothing import draw_label_smoothing
from utils.visualize.learning_rate import draw_learning_rates
from utils.visualize.length_penalty import draw_length_penalty
from utils.visualize.mask import draw_masks, draw_memory_mask
from utils.visualize.masking import draw_masking
from utils.visualize.norm_place import draw_norm_place
from utils.visualize.position import draw_positions, learned_table
from utils.visualize.scaling import draw_scaling

_WEIGHTS = "model.safetensors"
_SOURCES = (
    ("京都", "は", "日本", "の", "古都", "です", "。", EOS),
    ("雨", "です", "。", EOS, PAD, PAD, PAD, PAD),
)
_TARGETS = (
    (BOS, "Kyoto", "is", "an", "old", "capital", "."),
    (BOS, "It", "is", "raining", ".", PAD, PAD),
)
_READ_BEFORE = ("Kyoto", "is", "an", "old", "capital", ".")
_READ_NOW = ("It", "lies", "inland", ".", "Rain", "fell", ".")
_MASKED = (
    "京都 は 千 年 の 間 日本 の 都 で あっ た 。",
    "奈良 に は 古い 寺 が たくさん ある 。",
    "大阪 から 電車 で 三十 分 かかり ます 。",
)
_SEED = 25  # gives ten typical epochs: 16 tokens masked, 2 replaced and 2 kept


class FromRun(NamedTuple):
    """A picture of a trained run: the newest run of a preset that has the file."""

    preset: str
    file: str
    command: str  # command that trains one
    draw: Callable[[Path, Path], None]  # arguments: the file, the picture


def _draw_sinusoid(picture: Path) -> None:
    draw_positions({"sinusoid": sinusoid(100, 64)}, picture)


def _draw_learned(weights: Path, picture: Path) -> None:
    table = learned_table(weights)
    draw_positions({"sinusoid": sinusoid(*table.shape), f"learned, {_preset(weights.parent)}": table}, picture)


def _preset(run: Path) -> str:
    """Return the name of a run without its time stamp."""
    return run.name.split("-")[0]


DRAWN: dict[str, Callable[[Path], None]] = {
    "scaling": draw_scaling,
    "masks": lambda picture: draw_masks(_SOURCES, _TARGETS, picture),
    "positions": _draw_sinusoid,
    "activations": draw_activations,
    "norm_place": draw_norm_place,
    "learning_rates": draw_learning_rates,
    "label_smoothing": draw_label_smoothing,
    "length_penalty": draw_length_penalty,
    "bert_masking": lambda picture: draw_masking(_MASKED, 10, _SEED, picture),
    "memory_mask": lambda picture: draw_memory_mask(_READ_BEFORE, _READ_NOW, 4, picture),
}
FROM_RUNS = {
    "demo_curve": FromRun("demo", LOG, "make demo", lambda log, picture: draw_curves({"": log}, picture)),
    "learned_positions": FromRun(
        "multi30k_de_en_words",
        _WEIGHTS,
        "python train.py --config multi30k_de_en_words",
        _draw_learned,
    ),
}
# pictures drawn by other commands, which need a run
ELSEWHERE = {
    "demo_attention": "make demo leaves it in its run, as attention.png",
    "beam_width": "python evaluate.py tune pickles/RUN --beams 1 2 3 4 5 7 10 15 20 30 50 70 100 "
    "--length_penalties 0 0.6 1 1.4 --picture figure/beam_width.png",
    "kftt_ja_en_small_curve": "python -m utils.visualize.curve pickles/RUN --picture figure/kftt_ja_en_small_curve.png",
    "memory": "python -m utils.task.perplexity --run pickles/XL pickles/VANILLA --picture figure/memory.png",
}


def draw_all(folder: Path, pickles: Path, say: Callable[[str], object]) -> None:
    """Draw every picture that can be drawn, and report for each of the rest the command that makes it.

    Args:
        folder: folder to write to.
        pickles: folder of runs.
        say: called with a line for each picture.
    """
    for name, draw in DRAWN.items():
        draw(folder / f"{name}.png")
        say(f"drawn: {name}.png")
    for name, source in FROM_RUNS.items():
        files = sorted(pickles.glob(f"{source.preset}-*/{source.file}"), key=lambda file: file.stat().st_mtime)
        if files:
            source.draw(files[-1], folder / f"{name}.png")
            say(f"drawn: {name}.png, from {files[-1].parent.name}")
        else:
            say(f"left out: {name}.png, which needs a run of {source.preset}: {source.command}")
    for name, command in ELSEWHERE.items():
        say(f"left out: {name}.png, which another command draws: {command}")


def build_parser() -> Parser:
    """Build the parser."""
    parser = Parser(
        prog="utils.visualize.figures",
        usage="python -m utils.visualize.figures [--folder FOLDER]",
        description="Draw the pictures of docs/; those of trained runs only if there are such runs.",
    )
    parser.add_argument("--folder", type=Path, default=FIGURE, help="folder to write to (default: figure/)")
    return parser


def main() -> None:
    """Draw all pictures, printing a line for each."""
    draw_all(build_parser().parse_args().folder, PICKLES, lambda line: print(line, flush=True))


if __name__ == "__main__":
    run_command("figures", main)
