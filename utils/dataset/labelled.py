"""Labelled texts for sentence classification; `python -m utils.dataset.labelled` makes some from KFTT's articles."""

import json
import random
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from config.data import LabelledConfig, MonolingualConfig
from const.corpora import CORPORA
from const.path import CORPUS
from const.token import BOS_ID, PAD_ID
from utils.command import Parser, run_command
from utils.dataset.batch import AnyBatch, Examples, fill
from utils.dataset.corpus import SPLITS, Split
from utils.dataset.ids import TokenArray, cache_key, cached_lines, file_hash
from utils.dataset.monolingual import Document, prepare_monolingual
from utils.dataset.text import lines_of
from utils.file import read_json, write_lines, write_text
from utils.text.tokenizer import Tokenizer

_SHOWN = 20  # labels in an error


def text_pairs(config: LabelledConfig) -> tuple[tuple[Path, Path], ...]:
    """Return text and labels of train, dev and test, which are there."""
    pairs = (config.text, config.labels), (config.dev_text, config.dev_labels), (config.test_text, config.test_labels)
    for path in chain.from_iterable(pairs):
        if not path.is_file():
            raise ValueError(
                f"no such file: {path}; python -m utils.dataset.labelled writes the files of "
                "const/preset/kftt_category_ja.yaml"
            )
    return pairs


def fingerprint(config: LabelledConfig) -> str:
    """Return a hash of the files' contents."""
    return cache_key([file_hash(path) for path in chain.from_iterable(text_pairs(config))])


class LabelNames(tuple[str, ...]):
    """Labels in sorted order; a label's number is its place."""

    @classmethod
    def of(cls, path: Path) -> "LabelNames":
        """Collect all labels of a file."""
        names = cls(sorted(set(_labels(path))))
        if len(names) < 2:
            raise ValueError(f"{path} has only one label, {names[0]!r}: give at least two")
        return names

    @classmethod
    def load(cls, path: Path) -> "LabelNames":
        """Read what `save` wrote."""
        return cls(read_json(path))

    def save(self, path: Path) -> None:
        """Write the labels as a JSON list."""
        write_text(path, json.dumps(self, ensure_ascii=False, indent=0) + "\n")

    def numbers(self, path: Path) -> NDArray[np.int64]:
        """Return the number of each line's label."""
        number, found = {name: i for i, name in enumerate(self)}, array("q")
        for line, label in enumerate(_labels(path), start=1):
            if label not in number:
                known = ", ".join(self[:_SHOWN]) + (", ..." if len(self) > _SHOWN else "")
                raise ValueError(f"{path}, line {line}: label {label!r} is not among the training text's: {known}")
            found.append(number[label])
        return np.frombuffer(found, np.int64)


def _labels(path: Path) -> Iterator[str]:
    for number, line in enumerate(lines_of(path), start=1):
        if not (label := line.strip()):
            raise ValueError(f"{path}, line {number} has no label: each line of the text needs one")
        yield label


class LabelledText(NamedTuple):
    """Texts as ids, and their labels."""

    lines: TokenArray
    labels: NDArray[np.int64]

    @classmethod
    def cached(
        cls,
        text: Path,
        labels: Path,
        names: LabelNames,
        tokenizer: Tokenizer,
        say: Callable[[str], None],
        root: Path = CORPUS,
    ) -> "LabelledText":
        """Read two files; the text is encoded at the first call and cached; an empty line is a text too."""
        found = cls(cached_lines(f"labelled-{text.stem}", text, tokenizer, say, root), names.numbers(labels))
        if len(found.lines) != len(found.labels):
            raise ValueError(
                f"{text} has {len(found.lines):,} lines but {labels} has {len(found.labels):,}: "
                "line i of one must be the label of line i of the other"
            )
        return found


@dataclass(frozen=True, eq=False)
class LabelledBatch(AnyBatch):
    """B texts `<s> text </s>`, padded at the end, with their labels."""

    ids: Int[Tensor, "B L"]
    label: Int[Tensor, " B"]


def labelled_examples(text: LabelledText, max_tokens: int | None, *_: Any) -> Examples:
    """Return texts as examples; longer ones than `max_tokens`, <s> and </s> included, are truncated."""
    lengths = text.lines.lengths.astype(np.int64)
    if max_tokens is not None:
        if max_tokens < 3:
            raise ValueError(f"max_tokens={max_tokens} leaves no room for a text: give at least 3")
        lengths = np.minimum(lengths, max_tokens - 2)

    def make(rows: NDArray[np.integer], widths: list[int]) -> LabelledBatch:
        ids = np.full((len(rows), *widths), PAD_ID, np.int64)
        ids[:, 0] = BOS_ID
        fill(ids, 1, *text.lines.gather(rows), lengths[rows])
        return LabelledBatch(torch.from_numpy(ids), torch.from_numpy(text.labels[rows]))

    return Examples([lengths + 2], make, len)


# Data for classifying sentences by the category of their article: `python -m utils.dataset.labelled`.
#
# The category is what an article's name begins with: KFTT's BDS00001 is about Buddhism, one of 15 categories. No
# article has sentences in two splits, since neighbouring sentences give each other away.

_SEED = 20110101


def split_articles(documents: Sequence[Document], share: float) -> list[Split]:
    """Choose a split for each article at random: about this share of each category's lines goes to dev, and to test."""
    of_category: dict[str, list[int]] = defaultdict(list)
    for i, document in enumerate(documents):
        of_category[document.name[:3]].append(i)
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
    """Write `train.text`, `train.labels` and so on into a folder; count the sentences of each category in each split.

    Empty lines are left out; `share` of each category's sentences goes to dev, and to test.
    """
    if not 0 < share < 0.25:
        raise ValueError(f"share={share}: give dev, and test, more than 0 and less than 0.25 of the sentences")
    found: dict[Split, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    lines = lines_of(text)
    for document, split in zip(documents, split_articles(documents, share), strict=True):
        found[split] += [(line, document.name[:3]) for line in islice(lines, document.n_lines) if line.strip()]
    if empty := [split for split, sentences in found.items() if not sentences]:
        raise ValueError(f"{len(documents):,} documents leave {empty[0]} no text: give more, or a larger share")
    for split, sentences in found.items():
        write_lines(folder / f"{split}.text", (line for line, _ in sentences))
        write_lines(folder / f"{split}.labels", (label for _, label in sentences))
    return {split: Counter(label for _, label in sentences) for split, sentences in found.items()}


def build_parser() -> Parser:
    """Build the parser of the command's options."""
    parser = Parser(
        prog="utils.dataset.labelled",
        usage="python -m utils.dataset.labelled --documents FILE --folder FOLDER [options]",
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
    """Write the files and show how many sentences each category has."""
    given = build_parser().parse_args()
    config = MonolingualConfig(given.corpus, given.language, given.archive, documents=given.documents)
    corpus = prepare_monolingual(config, CORPUS)
    counts = write_categories(corpus.train, corpus.documents, given.share, given.folder)
    rows = {name: [counts[split][name] for split in SPLITS] for name in sorted(counts["train"] | counts["dev"])}
    rows["all"] = [counts[split].total() for split in SPLITS]
    print(f"{'':8}" + "".join(f"{split:>10}" for split in SPLITS))
    for name, numbers in rows.items():
        print(f"{name:8}" + "".join(f"{n:10,}" for n in numbers))
    print(f"written to {given.folder}")


if __name__ == "__main__":
    run_command("article_category", main)
