"""Classify texts: `python -m utils.task.classify "TEXT" ...`; or score a classifier on a file."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from const.token import BOS_ID, EOS_ID
from models.bert import BertClassifier
from utils.command_line import Parser, require_options_at_least, run_command
from utils.config import ClassificationConfig
from utils.dataset.labelled import LabelledBatch, LabelledSampler, LabelledText
from utils.dataset.parallel_text import read_lines
from utils.dataset.token_array import TokenArray
from utils.device import pick_device
from utils.run import find_run
from utils.terminal.given_text import given_texts
from utils.terminal.plain_text import aligned
from utils.trained import TrainedClassifier, load_classifier

_CONFUSIONS = 5  # number to show


class Guess(NamedTuple):
    """A class that a text may belong to."""

    label: str
    probability: float


@torch.inference_mode()
def classify(classifier: TrainedClassifier, text: str, top: int) -> list[Guess]:
    """Return the likeliest classes of a text, likeliest first; a long text is truncated, as in training."""
    config, (tokenizer, labels), net = classifier
    ids = [BOS_ID, *tokenizer.encode([text])[0][: config.batch.max_tokens - 2], EOS_ID]
    probs = net(torch.tensor([ids], device=next(net.parameters()).device))[0].float().softmax(-1)
    found = probs.topk(min(top, len(labels)))
    return [Guess(labels[i], p) for i, p in zip(found.indices.tolist(), found.values.tolist(), strict=True)]


def labelled_batches(classifier: TrainedClassifier, texts: Path, labels: Path) -> list[LabelledBatch]:
    """Read texts and their labels from two files, as batches of similar length.

    Raises:
        ValueError: as `LabelNames.numbers`, or when the files have different numbers of lines.
    """
    config, (tokenizer, names), _ = classifier
    lines, numbers = read_lines(texts), names.numbers(labels)
    if len(lines) != len(numbers):
        raise ValueError(f"{texts} has {len(lines):,} lines but {labels} has {len(numbers):,}: give a label for each")
    read = LabelledText(TokenArray.of(tokenizer.encode(lines), len(tokenizer)), numbers)
    return LabelledSampler(read, config.batch.tokens_per_batch, config.batch.max_tokens).all()


@torch.inference_mode()
def confusion(net: BertClassifier, batches: Iterable[LabelledBatch], n_classes: int) -> Int[Tensor, "C C"]:
    """Count how many texts of each class (row) the network assigns to each class (column)."""
    device = next(net.parameters()).device
    taken = torch.zeros(n_classes * n_classes, dtype=torch.long, device=device)
    for batch in (batch.to(device) for batch in batches):
        taken += (batch.label * n_classes + net(batch.ids).argmax(-1)).bincount(minlength=n_classes**2)
    return taken.view(n_classes, n_classes).cpu()


def summary(taken: Int[Tensor, "C C"], labels: Sequence[str]) -> list[str]:
    """Return lines with the accuracy and the most frequent confusions."""
    right, n_texts = int(taken.trace()), int(taken.sum())
    lines = [f"accuracy {100 * right / n_texts:.2f} % of {n_texts:,} texts"]
    wrong = taken.clone().fill_diagonal_(0).flatten()
    counts, places = wrong.sort(descending=True, stable=True)
    most = [
        f"{labels[place // len(labels)]} taken for {labels[place % len(labels)]} ({count:,})"
        for count, place in zip(counts[:_CONFUSIONS].tolist(), places[:_CONFUSIONS].tolist(), strict=True)
        if count
    ]
    return [*lines, f"most often confused: {', '.join(most)}"] if most else lines


def build_parser() -> Parser:
    """Build the parser: texts, and the classifier."""
    parser = Parser(
        prog="utils.task.classify",
        usage="python -m utils.task.classify [TEXT ...] [--texts FILE --labels FILE] [--run RUN] [--top N]",
        description="Classify texts, or lines of standard input; or score a classifier on a file with known labels.",
        epilog="""examples:
  python -m utils.task.classify "法隆寺は聖徳太子が建てた寺である。"
  cat sentences.ja | python -m utils.task.classify --top 1 --run pickles/RUN
  python -m utils.task.classify --texts test.text --labels test.labels""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # named differently from the option --texts
    parser.add_argument("given", nargs="*", type=str, default=[], metavar="TEXT", help="what to classify")
    parser.add_argument("--texts", type=Path, metavar="FILE", help="file with one text per line")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="file with the label of each text, one per line")
    parser.add_argument("--run", type=Path, help="run of a classifier (default: the one trained last)")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="number of labels to show for each text")
    return parser


def main() -> None:
    """Classify texts, or score a classifier.

    Raises:
        ValueError: when there is no such run, or the files do not fit it or each other.
    """
    arguments = build_parser().parse_args()
    require_options_at_least(arguments, top=1)
    if (arguments.texts is None) != (arguments.labels is None):
        raise ValueError("--texts and --labels belong together: give both")
    if arguments.given and arguments.texts:
        raise ValueError(f"texts and --texts {arguments.texts} cannot be combined: give one of them")
    folder = find_run(arguments.run, ClassificationConfig)
    classifier = load_classifier(folder, pick_device("auto"))
    if arguments.texts:
        batches = labelled_batches(classifier, arguments.texts, arguments.labels)
        names = classifier.vocabulary.labels
        print("\n".join(summary(confusion(classifier.net, batches, len(names)), names)))
        return
    for text in given_texts(arguments.given):
        rows = [(guess.label, f"{guess.probability:.1%}") for guess in classify(classifier, text, arguments.top)]
        print("\n".join([text, *aligned(rows, "lr")]), flush=True)


if __name__ == "__main__":
    run_command("classify", main)
