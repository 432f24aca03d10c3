"""A language model goes on with a text: `python -m utils.task.generate "PROMPT" [--run RUN]`."""

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
    """A prompt with what the model says behind it, each time on one line.

    Args:
        trained: in eval mode.
        prompt: how a document begins, be it in the middle of a sentence; may be empty.
        most: most tokens behind it.
        sentences: it ends with so many ends of a sentence, that of the prompt's last one included.
        sampling: how tokens are drawn, and how many times; None: always the likeliest, once.
        memory_length: positions that are remembered; None: as many as a token saw before it in training, at most.

    Raises:
        ValueError: no end of a sentence to go to.
    """
    config, tokenizer, net = trained
    if memory_length is None:
        memory_length = config.model.memory_length + config.batch.segment_length - 1
    ids = [BOS_ID, *tokenizer.encode([prompt])[0]]
    return tokenizer.decode([[*ids, *said] for said in generate(net, ids, most, sentences, sampling, memory_length)])


def build_parser() -> Parser:
    """A prompt, and how to go on with it."""
    parser = Parser(
        prog="utils.task.generate",
        usage="python -m utils.task.generate [PROMPT] [--run RUN] [--tokens N] [--sentences N] [options]",
        description="Go on with a text, as a language model finds likely; without one, begin a document.",
        epilog="""examples:
  python -m utils.task.generate "Kyoto is"
  python -m utils.task.generate "The temple was built in" --sentences 3 --samples 5 --top_p 0.9
  python -m utils.task.generate "Kyoto is" --greedy --memory_length 256 --run pickles/RUN""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", type=str, default="", metavar="PROMPT", help="how the text begins")
    parser.add_argument("--run", type=Path, help="a language model's (default: the one trained last)")
    parser.add_argument("--tokens", type=int, default=60, metavar="N", help="most tokens behind the prompt")
    parser.add_argument("--sentences", type=int, default=1, metavar="N", help="how many ends of sentences to go to")
    add_sampling_options(parser, "how many continuations, a line each (default: 1)")
    parser.add_argument("--greedy", action="store_true", help="draw nothing: always say the likeliest token")
    parser.add_argument(
        "--memory_length",
        type=int,
        metavar="M",
        help="positions to remember (default: as far back as training looked)",
    )
    return parser


def sampling_of(given: Namespace) -> SamplingConfig | None:
    """How to draw; None where the likeliest is said.

    Raises:
        ValueError: a setting with which nothing can be drawn, or any beside --greedy.
    """
    if not given.greedy:
        if given.temperature is not None and not 0 < given.temperature < math.inf:
            raise ValueError(f"--temperature {given.temperature}: give more than 0, or say --greedy instead")
        return changed_by(SamplingConfig(), SAMPLING, given)
    for option in SAMPLING:
        if given[option] is not None:
            raise ValueError(f"--greedy and --{option} {given[option]} at once: greedy draws nothing; leave one out")
    return None


def main() -> None:
    """Go on with a prompt.

    Raises:
        ValueError: no such run, or a setting that says nothing.
    """
    given = build_parser().parse_args()
    require_options_at_least(given, tokens=1, sentences=1, memory_length=0)
    sampling = sampling_of(given)
    trained = load_language_model(find_run(given.run, LanguageConfig), pick_device("auto"))
    for text in continuations(trained, given.prompt, given.tokens, given.sentences, sampling, given.memory_length):
        print(text)


if __name__ == "__main__":
    run_command("generate", main)
