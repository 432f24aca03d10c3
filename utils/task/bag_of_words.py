"""Baselines for a classifier, trained on the same texts: `python -m utils.task.bag_of_words [--run RUN]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from utils.command_line import Parser, run_command
from utils.config import ClassificationConfig, find_settings
from utils.dataset.labelled import LabelledText
from utils.evaluation.bag_of_words import Bags, TfIdf, Trial, best_regression, naive_bayes
from utils.run import find_run, read_config
from utils.task.classification import vocabulary_of
from utils.task.task import Say
from utils.terminal.plain_text import aligned
from utils.trained import Labelling

STRENGTHS = (1e-4, 1e-5, 3e-6, 1e-6)  # of the penalty on large weights, chosen on the dev text


def compare(config: ClassificationConfig, vocabulary: Labelling, strengths: Sequence[float], say: Say) -> list[str]:
    """Train on the training text, choose on dev, score on dev and test; return a table with a row for each method.

    Args:
        config: settings that name the texts.
        vocabulary: their tokenizer and labels.
        strengths: of the penalty, to be tried.
        say: called with a line about what takes time.
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
    """Build the parser: which texts to use."""
    parser = Parser(
        prog="utils.task.bag_of_words",
        usage="python -m utils.task.bag_of_words [--run RUN | --config PRESET]",
        description="Classify texts by the tokens that they contain, whatever their order: by logistic regression over "
        "tf-idf, with its penalty chosen on dev, and by naive Bayes.",
        epilog="""examples:
  python -m utils.task.bag_of_words                      the texts and tokenizer of the newest classifier
  python -m utils.task.bag_of_words --run pickles/RUN    those of this classifier
  python -m utils.task.bag_of_words --config kftt_category_ja""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", type=Path, help="run of a classifier (default: the one trained last)")
    parser.add_argument("--config", type=Path, metavar="PRESET", help="settings of a classifier, instead of a run")
    return parser


def main() -> None:
    """Train and score the baselines.

    Raises:
        ValueError: when there are no such run or settings, or they are of another task.
    """
    arguments = build_parser().parse_args()
    if arguments.run and arguments.config:
        raise ValueError(f"--run {arguments.run} and --config {arguments.config} cannot be combined: give one of them")
    if arguments.config:
        config = ClassificationConfig.load(find_settings(arguments.config))
        vocabulary = vocabulary_of(config, print)
    else:
        folder = find_run(arguments.run, ClassificationConfig)
        config, vocabulary = read_config(folder, ClassificationConfig), Labelling.load(folder)
    for line in compare(config, vocabulary, STRENGTHS, print):
        print(line)


if __name__ == "__main__":
    run_command("bag_of_words", main)
