"""Have a language model continue a text: `python -m utils.task.generate "PROMPT" [--run RUN]`."""

import argparse
import math
from pathlib import Path

from jsonargparse import Namespace

from const.token import BOS_ID
from utils.command_line import Parser, require_options_at_least, run_command
from utils.config import LanguageConfig
from utils.device import pick_device
from utils.run import find_run
from utils.search.generation import generate
from utils.search.sampling import SamplingConfig
from utils.terminal.option import SAMPLING, add_sampling_options, changed_by
from utils.trained import TrainedLanguageModel, load_language_model


def continuations(
    trained: TrainedLanguageModel,
    prompt: str,
    most: int,
    sentences: int,
    sampling: SamplingConfig | None,
    memory_length: int | None = None,
) -> list[str]:
    """Return a prompt followed by what the model generates, each continuation on one line.

    Args:
        trained: in eval mode.
        prompt: the beginning of a document, which may end in the middle of a sentence; may be empty.
        most: maximum number of tokens after the prompt.
        sentences: number of sentence ends to stop at, that of the prompt's last sentence included.
        sampling: how to draw tokens, and how many continuations; None: always the likeliest token, once.
        memory_length: positions that are remembered; None: the most that a token had before it in training.

    Raises:
        ValueError: when `sentences` is less than 1.
    """
    config, tokenizer, net = trained
    if memory_length is None:
        memory_length = config.model.memory_length + config.batch.segment_length - 1
    ids = [BOS_ID, *tokenizer.encode([prompt])[0]]
    return tokenizer.decode([[*ids, *said] for said in generate(net, ids, most, sentences, sampling, memory_length)])


def build_parser() -> Parser:
    """Build the parser: a prompt, and how to continue it."""
    parser = Parser(
        prog="utils.task.generate",
        usage="python -m utils.task.generate [PROMPT] [--run RUN] [--tokens N] [--sentences N] [options]",
        description="Continue a text with a language model; without a text, begin a document.",
        epilog="""examples:
  python -m utils.task.generate "Kyoto is"
  python -m utils.task.generate "The temple was built in" --sentences 3 --samples 5 --top_p 0.9
  python -m utils.task.generate "Kyoto is" --greedy --memory_length 256 --run pickles/RUN""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", type=str, default="", metavar="PROMPT", help="how the text begins")
    parser.add_argument("--run", type=Path, help="run of a language model (default: the one trained last)")
    parser.add_argument("--tokens", type=int, default=60, metavar="N", help="maximum number of tokens after the prompt")
    parser.add_argument("--sentences", type=int, default=1, metavar="N", help="stop after this many sentence ends")
    add_sampling_options(parser, "number of continuations, one per line (default: 1)")
    parser.add_argument("--greedy", action="store_true", help="do not sample: always generate the likeliest token")
    parser.add_argument(
        "--memory_length",
        type=int,
        metavar="M",
        help="positions to remember (default: as far back as in training)",
    )
    return parser


def sampling_of(given: Namespace) -> SamplingConfig | None:
    """Return how to sample; None with --greedy.

    Raises:
        ValueError: when a setting is out of range, or is given together with --greedy.
    """
    if not given.greedy:
        if given.temperature is not None and not 0 < given.temperature < math.inf:
            raise ValueError(f"--temperature {given.temperature}: give more than 0, or use --greedy instead")
        return changed_by(SamplingConfig(), SAMPLING, given)
    for option in SAMPLING:
        if given[option] is not None:
            raise ValueError(f"--greedy and --{option} {given[option]} cannot be combined: leave one out")
    return None


def main() -> None:
    """Continue a prompt.

    Raises:
        ValueError: when there is no such run, or a setting is out of range.
    """
    given = build_parser().parse_args()
    require_options_at_least(given, tokens=1, sentences=1, memory_length=0)
    sampling = sampling_of(given)
    trained = load_language_model(find_run(given.run, LanguageConfig), pick_device("auto"))
    for text in continuations(trained, given.prompt, given.tokens, given.sentences, sampling, given.memory_length):
        print(text)


if __name__ == "__main__":
    run_command("generate", main)
