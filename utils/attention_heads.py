"""Where each head looks: `python -m utils.attention_heads SENTENCE ... --picture FILE [--run RUN]`."""

from collections.abc import Sequence
from pathlib import Path

from const.token import EOS
from utils.command_line import Parser, run_command
from utils.device import pick_device
from utils.run import Run, find_run, load_run
from utils.visualize.attention import Attended, cross_attention, draw_heads


def last_cross_attention(run: Run, sentences: Sequence[str]) -> list[Attended]:
    """Translate sentences, and look at what the heads of the last decoder block attended to for each token.

    Args:
        run: loaded with fused=False.
        sentences: each short enough to be translated at once.

    Raises:
        ValueError: an empty sentence, or one longer than the run's window.
    """
    src, tgt = run.tokenizers
    sources = src.encode(sentences)
    for text, ids in zip(sentences, sources, strict=True):
        if not ids:
            raise ValueError(f"{text!r} has no token: give a sentence")
        if len(ids) + 1 > run.window:
            raise ValueError(
                f"{len(ids) + 1} tokens, </s> included, are more than the {run.window} that {run.folder} reads at a "
                f"time: shorten {text!r}"
            )
    found = []
    for ids, (best, *_) in zip(sources, run.translator().search_ids(sources), strict=True):
        weights = cross_attention(run.model, ids, best.ids)[-1]
        found.append(Attended(weights, [*src.tokens(ids), EOS], [*tgt.tokens(best.ids), EOS]))
    return found


def build_parser() -> Parser:
    """Sentences, the run, and where to draw."""
    parser = Parser(
        prog="utils.attention_heads",
        usage="python -m utils.attention_heads SENTENCE [SENTENCE ...] --picture FILE [--run RUN]",
        description="Translate sentences and draw each head of the last decoder block's cross-attention.",
    )
    parser.add_argument("sentences", nargs="+", type=str, metavar="SENTENCE", help="what to translate")
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE", help="where to draw, as PNG")
    parser.add_argument("--run", type=Path, help="folder or name of a run (default: the one trained last)")
    return parser


def main() -> None:
    """Draw.

    Raises:
        ValueError: no such run, or a sentence that it cannot translate at once.
    """
    arguments = build_parser().parse_args()
    run = load_run(find_run(arguments.run), pick_device("auto"), fused=False)
    draw_heads(last_cross_attention(run, arguments.sentences), arguments.picture)


if __name__ == "__main__":
    run_command("attention_heads", main)
