"""What a classifier must beat, trained on the same texts: `python -m utils.task.bag_of_words [--run RUN]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from utils.command_line import Parser, run_command
from utils.config import ClassificationConfig
from utils.dataset.labelled import LabelledText
from utils.evaluation.bag_of_words import Bags, TfIdf, Trial, best_regression, naive_bayes
from utils.run import find_run, read_config
from utils.task.classification import vocabulary_of
from utils.task.task import Say
from utils.terminal.plain_text import aligned
from utils.trained import Labelling

STRENGTHS = (1e-4, 1e-5, 3e-6, 1e-6)  # of the penalty on large weights; the dev text chooses


def compare(config: ClassificationConfig, vocabulary: Labelling, strengths: Sequence[float], say: Say) -> list[str]:
    """Train on the training text, choose on dev, score on both: a line for each way of telling classes.

    Args:
        config: says which texts.
        vocabulary: how they are cut, and their labels.
        strengths: of the penalty, to be tried.
        say: is told what takes time.
    """
    tokenizer, labels = vocabulary
    counts = [
        Bags.of(LabelledText.cached(text, its_labels, labels, tokenizer, say), len(tokenizer))
        for text, its_labels in config.data.pairs()
    ]
    train, *others = counts
    say(f"{len(train.labels):,} texts, {len(labels)} labels, {len(tokenizer):,} tokens")
    frequent = int(train.labels.bincount().argmax())
    shares = [100 * (bags.labels == frequent).float().mean().item() for bags in others]
    bayes = naive_bayes(train, len(labels))
    weigh = TfIdf(train)

    def tried(trial: Trial) -> None:
        say(f"logistic regression, l2 {trial.l2:g}: dev {trial.accuracy:.2f}")

    weighed = [weigh(bags) for bags in others]
    best = best_regression(weigh(train), weighed[0], len(labels), strengths, tried)
    rows = [
        ("accuracy", "dev", "test"),
        (f"always {labels[frequent]}", *(f"{share:.2f}" for share in shares)),
        ("naive Bayes", *(f"{bayes.accuracy(bags):.2f}" for bags in others)),
        (f"logistic regression, l2 {best.l2:g}", *(f"{best.classifier.accuracy(bags):.2f}" for bags in weighed)),
    ]
    return aligned(rows, "lrr")


def build_parser() -> Parser:
    """Which texts."""
    parser = Parser(
        prog="utils.task.bag_of_words",
        usage="python -m utils.task.bag_of_words [--run RUN | --config FILE]",
        description="Tell classes by which tokens are in a text, whatever their order: by logistic regression over "
        "tf-idf, whose penalty is chosen on dev, and by naive Bayes.",
        epilog="""examples:
  python -m utils.task.bag_of_words                      the texts and tokenizer of the newest classifier
  python -m utils.task.bag_of_words --run pickles/RUN    those of that one
  python -m utils.task.bag_of_words --config const/preset/kftt_category_ja.yaml""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=Path, help="a classifier's (default: the one trained last)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of a classifier, instead of a run")
    return parser


def main() -> None:
    """Train and score.

    Raises:
        ValueError: no such run or settings, or ones of another task.
    """
    arguments = build_parser().parse_args()
    if arguments.run and arguments.config:
        raise ValueError(f"--run {arguments.run} and --config {arguments.config} at once: give one of them")
    if arguments.config:
        config = ClassificationConfig.load(arguments.config)
        vocabulary = vocabulary_of(config, print)
    else:
        folder = find_run(arguments.run, ClassificationConfig)
        config, vocabulary = read_config(folder, ClassificationConfig), Labelling.load(folder)
    for line in compare(config, vocabulary, STRENGTHS, print):
        print(line)


if __name__ == "__main__":
    run_command("bag_of_words", main)
