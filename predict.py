"""Use what was trained besides translators: `python predict.py fill-mask | classify | generate | perplexity`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.search import SamplingConfig
from utils.command import Namespace, Parser, aligned, option_of, require_options_at_least, run_command
from utils.config import ClassificationConfig, LanguageConfig, MaskedLanguageConfig
from utils.dataset.text import decoded_lines
from utils.file import require_outputs, write_json
from utils.run import distinct_names, find_run
from utils.terminal.input import ask_for_lines
from utils.terminal.option import SAMPLING, add_settings, changed_by, require_extension

if TYPE_CHECKING:
    import torch

    from utils.task.language import Remembered

# What computes is imported where it is used: torch takes seconds, which neither --help nor a mistake should wait for.


def build_parser() -> Parser:
    """Build the parser with all verbs and their options."""
    parser = Parser(
        prog="predict.py",
        usage="python predict.py VERB ... (python predict.py VERB --help shows its options)",
        description="Use what was trained besides translators: a BERT, a classifier, a language model.",
        epilog=_EXAMPLES,
    )
    verbs = parser.add_subparsers(prog="predict.py", dest="verb", title="verbs", metavar="VERB", required=True)
    for name, (add_options, act) in VERBS.items():
        usage, description = f"python predict.py {name} [...]", act.__doc__ or ""
        add_options(verbs.add_parser(name, usage=usage, description=description, help=description.partition(";")[0]))
    return parser


def add_fill_mask_options(parser: Parser) -> None:
    """Add the texts, and the BERT."""
    parser.add_argument("texts", nargs="*", type=str, default=[], metavar="TEXT", help="text with one or more [MASK]s")
    parser.add_argument("--run", type=Path, help="run of a BERT (default: the one trained last)")
    parser.add_argument(
        "--hugging-face", type=Path, metavar="FOLDER", help="folder with config.json, vocab.txt and model.safetensors"
    )
    parser.add_argument("--top", type=int, default=5, metavar="N", help="number of candidates for each mask")
    text = "draw the attention for one text: FILE.html, an interactive page, or FILE.png"
    parser.add_argument("--attention", type=Path, metavar="FILE", help=text)


def fill_mask(arguments: Namespace) -> None:
    """Fill in the [MASK]s of texts, or of lines of standard input; a mask is one token, ▁ marks where a word begins."""
    require_options_at_least(arguments, top=1)
    if arguments.run and arguments.hugging_face:
        raise ValueError(f"--run {arguments.run} and --hugging-face {arguments.hugging_face} at once: give one of them")
    if arguments.attention and len(arguments.texts) != 1:
        raise ValueError(f"--attention {arguments.attention} and {len(arguments.texts)} texts at once: give one text")
    require_extension(arguments, "attention", ".html", ".png")
    require_outputs({"--attention": arguments.attention})
    from utils.task.bert import MaskFiller, show_bert_attention

    of = MaskFiller.of_hugging_face if arguments.hugging_face else MaskFiller.of_run
    folder = arguments.hugging_face or find_run(arguments.run, MaskedLanguageConfig)
    filler = of(folder, device_to_use())
    if arguments.attention:
        show_bert_attention(filler, arguments.texts[0], folder.resolve().name, arguments.attention)
    n_failed = 0
    for number, text in enumerate(given_texts(arguments.texts), 1):
        if not arguments.texts and not text.strip():
            continue
        try:
            print(filler.answer(text, arguments.top), flush=True)
        except ValueError as error:
            if arguments.texts:
                raise
            print(f"line {number}: {error}", file=sys.stderr)  # the lines to come may be better
            n_failed += 1
    if n_failed:
        raise ValueError(f"{n_failed} of the lines could not be filled in: see above")


def add_classify_options(parser: Parser) -> None:
    """Add the texts, and the classifier."""
    # named differently from the option --texts
    parser.add_argument("given", nargs="*", type=str, default=[], metavar="TEXT", help="what to classify")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="file with one text per line")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="file with the label of each text, one per line")
    parser.add_argument("--run", type=Path, help="run of a classifier (default: the one trained last)")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="number of labels to show for each text")


def classify_texts(arguments: Namespace) -> None:
    """Classify texts, or lines of standard input, or score a classifier on a file with known labels."""
    require_options_at_least(arguments, top=1)
    if (arguments.texts is None) != (arguments.labels is None):
        raise ValueError("--texts and --labels belong together: give both")
    if arguments.given and arguments.texts:
        raise ValueError(f"texts and --texts {arguments.texts} at once: give one of them")
    from utils.load import load_classifier
    from utils.task.classification import classify, confusion, labelled_batches, summary

    classifier = load_classifier(find_run(arguments.run, ClassificationConfig), device_to_use())
    if arguments.texts:
        batches = labelled_batches(classifier, arguments.texts, arguments.labels)
        names = classifier.vocabulary.labels
        print("\n".join(summary(confusion(classifier.net, batches, len(names)), names)))
        return
    for text in given_texts(arguments.given):
        rows = [(guess.label, f"{guess.probability:.1%}") for guess in classify(classifier, text, arguments.top)]
        print("\n".join([text, *aligned(rows, "lr")]), flush=True)


def add_generate_options(parser: Parser) -> None:
    """Add a prompt, and how to continue it."""
    parser.add_argument("prompt", nargs="?", type=str, default="", metavar="PROMPT", help="how the text begins")
    parser.add_argument("--run", type=Path, help="run of a language model (default: the one trained last)")
    parser.add_argument("--tokens", type=int, default=60, metavar="N", help="most tokens after the prompt")
    parser.add_argument("--sentences", type=int, default=1, metavar="N", help="stop after this many sentence ends")
    add_settings(parser, SamplingConfig, samples="number of continuations, one per line")
    parser.add_argument("--greedy", action="store_true", help="do not sample: always generate the likeliest token")
    parser.add_argument(
        "--memory-length", type=int, metavar="M", help="positions to remember (default: as far back as in training)"
    )


def generate(arguments: Namespace) -> None:
    """Continue a text with a language model; without a text, begin a document."""
    require_options_at_least(arguments, tokens=1, sentences=1, memory_length=0)
    given = [f"{option_of(option)} {arguments[option]}" for option in SAMPLING if arguments[option] is not None]
    if arguments.greedy and given:
        raise ValueError(f"--greedy and {given[0]} at once: leave one out")
    sampling = None if arguments.greedy else changed_by(SamplingConfig(), SAMPLING, arguments)
    from utils.load import load_language_model
    from utils.task.language import continuations

    model = load_language_model(find_run(arguments.run, LanguageConfig), device_to_use())
    for text in continuations(
        model, arguments.prompt, arguments.tokens, arguments.sentences, sampling, arguments.memory_length
    ):
        print(text)


def add_perplexity_options(parser: Parser) -> None:
    """Add runs, text, memory lengths, and where to write."""
    parser.add_argument("--run", type=Path, nargs="+", metavar="RUN", help="folders of runs (default: the newest one)")
    parser.add_argument(
        "--memory-lengths",
        type=int,
        nargs="+",
        metavar="M",
        default=[0, 16, 32, 64, 128, 256],
        help="positions to remember (default: 0 16 32 64 128 256)",
    )
    parser.add_argument("--split", choices=["dev", "test"], default="test", help="the text to predict (default: test)")
    parser.add_argument(
        "--segment-length", type=int, metavar="T", help="tokens read at a time (default: as in training)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the results as PNG")


def perplexity(arguments: Namespace) -> None:
    """Report how well language models predict a text that they remember more or less of."""
    require_outputs({"--json": arguments.json, "--picture": arguments.picture})
    require_options_at_least(arguments, memory_lengths=0, segment_length=1)
    folders = [find_run(name, LanguageConfig) for name in arguments.run or [None]]
    names = distinct_names(folders)
    from utils.load import load_language_model
    from utils.task.language import draw_memory, effective_memory, perplexity_by_memory

    device, points_by_run = device_to_use(), dict[str, list["Remembered"]]()
    for name, folder in zip(names, folders, strict=True):
        model = load_language_model(folder, device)
        segment_length = arguments.segment_length or model.config.batch.segment_length
        print(f"{name}, {arguments.split}, segments of {segment_length}\n  memory       PPL  PPL by word")
        points_by_run[name] = []
        losses = dict[int, "torch.Tensor"]()
        for point, nats in perplexity_by_memory(model, arguments.split, segment_length, arguments.memory_lengths):
            print(f"{point.memory_length:>8}  {point.perplexity:>8.2f}  {point.word_ppl:>11.2f}", flush=True)
            points_by_run[name].append(point)
            losses[point.memory_length] = nats
        helps = [effective_memory(losses, share) for share in (1, 0.5, 0.1)]
        print("  more memory helps up to {}; up to {} and {} on the hardest half and tenth of tokens".format(*helps))
    if arguments.json:
        table: dict[str, Any] = {name: [point._asdict() for point in points] for name, points in points_by_run.items()}
        write_json(arguments.json, table)
    if arguments.picture:
        draw_memory(points_by_run, arguments.picture)


def device_to_use() -> "torch.device":
    """Return the device to compute on, for a process that keeps the memory that it frees."""
    from utils.device import pick_device
    from utils.memory import keep_freed_memory

    keep_freed_memory()
    return pick_device("auto")


def given_texts(texts: Sequence[str]) -> Iterator[str]:
    """Yield these texts or, if there are none, each line of standard input as it arrives."""
    if texts:
        yield from texts
        return
    ask_for_lines()
    yield from decoded_lines(sys.stdin.buffer, "standard input")


VERBS: dict[str, tuple[Callable[[Parser], None], Callable[[Namespace], None]]] = {
    "fill-mask": (add_fill_mask_options, fill_mask),
    "classify": (add_classify_options, classify_texts),
    "generate": (add_generate_options, generate),
    "perplexity": (add_perplexity_options, perplexity),
}

_EXAMPLES = """examples:
  python predict.py fill-mask "京都は[MASK]の古都である。"
  python predict.py fill-mask "[MASK]時代の[MASK]。" --top 10 --run pickles/RUN
  python predict.py fill-mask "京都は[MASK]の古都である。" --attention attention.html
  python predict.py fill-mask --hugging-face bert-base-uncased "Kyoto was the [MASK] of Japan."
  python predict.py classify "法隆寺は聖徳太子が建てた寺である。"
  python predict.py classify --texts test.text --labels test.labels
  python predict.py generate "The temple was built in" --sentences 3 --samples 5 --top-p 0.9
  python predict.py generate "Kyoto is" --greedy --memory-length 256 --run pickles/RUN
  python predict.py perplexity --memory-lengths 0 16 64 256
  python predict.py perplexity --run pickles/XL pickles/NO_MEMORY --picture memory.png --json memory.json"""


def main() -> None:
    """Read the arguments and run the verb."""
    arguments = build_parser().parse_args()
    _, act = VERBS[arguments.verb]
    act(arguments)


if __name__ == "__main__":
    run_command("predict.py", main)
