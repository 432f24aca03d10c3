"""Data for classifying sentences by the category of their article: `python -m utils.dataset.article_category`.

The category is what an article's name begins with: KFTT's BDS00001 is about Buddhism, one of 15 categories. No article
has sentences in two splits, since neighbouring sentences give each other away.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from const.corpora import CORPORA
from const.path import CORPUS
from utils.command_line import Parser, run_command
from utils.dataset.corpus import SPLITS, Split
from utils.dataset.documents import Document
from utils.dataset.line_cache import TextLines
from utils.dataset.monolingual import MonolingualConfig, prepare_monolingual
from utils.file import atomic_file

_SEED = 20110101
_N_LETTERS = 3


def category(document: Document) -> str:
    """Return the category of a document: the first letters of its name."""
    return document.name[:_N_LETTERS]


def split_articles(documents: Sequence[Document], share: float) -> list[Split]:
    """Choose a split for each article at random: about this share of each category's lines goes to dev, and to test.

    A category with few articles, or with one that is larger than all the rest together, may have none there.
    """
    of_category: dict[str, list[int]] = defaultdict(list)
    for i, document in enumerate(documents):
        of_category[category(document)].append(i)
    splits: list[Split] = ["train"] * len(documents)
    draw = random.Random(_SEED)
    for _, articles in sorted(of_category.items()):
        draw.shuffle(articles)
        total, before = sum(documents[i].n_lines for i in articles), 0
        for i in articles:
            middle = (before + documents[i].n_lines / 2) / max(total, 1)
            before += documents[i].n_lines
            if middle < 2 * share:
                splits[i] = "dev" if middle < share else "test"
    return splits


def write_categories(
    text: Path, documents: Sequence[Document], share: float, folder: Path
) -> dict[Split, Counter[str]]:
    """Write `train.text`, `train.labels` and so on into a folder; empty lines are left out.

    Args:
        text: the lines of the documents.
        documents: the documents, in the order of the text.
        share: share of each category's sentences for dev, and for test.
        folder: where to write.

    Returns:
        how many sentences each category has in each split

    Raises:
        ValueError: the share is out of range, or a split would have no text.
    """
    if not 0 < share < 0.25:
        raise ValueError(f"share={share}: give dev, and test, more than 0 and less than 0.25 of the sentences")
    counts: dict[Split, Counter[str]] = {split: Counter() for split in SPLITS}
    lines = iter(TextLines(text))
    with ExitStack() as stack:
        outs = {
            split: [
                stack.enter_context(
                    stack.enter_context(atomic_file(folder / f"{split}.{part}")).open("w", encoding="utf-8")
                )
                for part in ("text", "labels")
            ]
            for split in SPLITS
        }
        for document, split in zip(documents, split_articles(documents, share), strict=True):
            sentences = [line for line in islice(lines, document.n_lines) if line.strip()]
            counts[split][category(document)] += len(sentences)
            for out, written in zip(outs[split], (sentences, [category(document)] * len(sentences)), strict=True):
                out.writelines(line + "\n" for line in written)
        for split in SPLITS:
            if not counts[split].total():
                raise ValueError(
                    f"{len(documents):,} documents leave {split} no text: give more documents, or a larger share"
                )
    return counts


def build_parser() -> Parser:
    """Build the parser of the command's options."""
    parser = Parser(
        prog="utils.dataset.article_category",
        usage="python -m utils.dataset.article_category --documents FILE --folder FOLDER [options]",
        description="Write texts and labels for learning to tell the category of a sentence's article.",
    )
    parser.add_argument("--corpus", choices=CORPORA, default="kftt", help="corpus whose training text to use")
    parser.add_argument("--language", default="ja", help="side of the corpus to use")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="the corpus, instead of a download")
    parser.add_argument("--documents", type=Path, required=True, metavar="FILE", help="name and length of each article")
    parser.add_argument("--share", type=float, default=0.02, help="share of the sentences for dev, and for test")
    parser.add_argument("--folder", type=Path, required=True, metavar="FOLDER", help="where to write")
    return parser


def main() -> None:
    """Write the files and show how many sentences each category has.

    Raises:
        ValueError: no such corpus or documents.
    """
    arguments = build_parser().parse_args()
    config = MonolingualConfig(arguments.corpus, arguments.language, arguments.archive, documents=arguments.documents)
    corpus = prepare_monolingual(config, CORPUS)
    counts = write_categories(corpus.train, corpus.documents, arguments.share, arguments.folder)
    print(f"{'':8}" + "".join(f"{split:>10}" for split in SPLITS))
    for name in sorted(counts["train"] | counts["dev"] | counts["test"]):
        print(f"{name:8}" + "".join(f"{counts[split][name]:10,}" for split in SPLITS))
    print(f"{'all':8}" + "".join(f"{counts[split].total():10,}" for split in SPLITS))
    print(f"written to {arguments.folder}")


if __name__ == "__main__":
    run_command("article_category", main)
