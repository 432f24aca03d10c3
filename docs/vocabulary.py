"""What a vocabulary costs: length of sentences and share of unknown tokens, for characters, words and sub-words.

`python -m docs.vocabulary` counts on KFTT, in some minutes. Vocabularies are made from every fourth line of its
training text, one for each language, and tried on its test text.
"""

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from matplotlib.ticker import FuncFormatter, NullLocator

from config.data import DataConfig, TokenizerConfig
from const.path import FIGURE
from const.token import UNK_ID
from utils.command import Parser, run_command
from utils.dataset.corpus import prepare_corpus
from utils.dataset.text import read_lines
from utils.evaluation.analysis import word_splitter
from utils.evaluation.metric import bleu_tokenizer
from utils.file import write_json
from utils.text.tokenizer import SentencePieceTokenizer
from utils.visualize.curve import sheet

STRIDE = 4
SIZES = [1000 * 2**i for i in range(7)]  # of the most frequent characters or words
PIECES = [4000, 8000, 16_000, 32_000]  # fewer would not do: 2,000 characters of Japanese are pieces of their own


class Cost(NamedTuple):
    """What becomes of a text with a vocabulary of a size."""

    size: int
    length: float  # tokens of a sentence
    unknown: float  # percent of the tokens


def cost(size: int, known: Sequence[Sequence[bool]]) -> Cost:
    """Return the cost of a vocabulary, from whether it knows each token of each sentence."""
    n_tokens = sum(map(len, known))
    return Cost(size, n_tokens / len(known), 100 * (n_tokens - sum(map(sum, known))) / n_tokens)


def costs_of_frequent(train: Iterable[Sequence[str]], test: Sequence[Sequence[str]]) -> Iterator[Cost]:
    """Yield the costs of the most frequent tokens of the training text, and at last of all of them."""
    ranked = [token for token, _ in Counter(chain.from_iterable(train)).most_common()]
    for size in (*(size for size in SIZES if size < len(ranked)), len(ranked)):
        frequent = set(ranked[:size])
        yield cost(size, [[token in frequent for token in sentence] for sentence in test])


def costs_of_pieces(kind: Literal["bpe", "unigram"], train: Sequence[str], test: Sequence[str]) -> Iterator[Cost]:
    """Yield the costs of sub-words learned by SentencePiece."""
    for size in PIECES:
        tokenizer = SentencePieceTokenizer.train(TokenizerConfig(kind=kind, vocab_size=size), [train])
        yield cost(size, [[i != UNK_ID for i in ids] for ids in tokenizer.encode(test)])


def costs(train: Sequence[str], test: Sequence[str], language: str) -> dict[str, list[Cost]]:
    """Return the costs of vocabularies of each kind."""
    words = word_splitter(bleu_tokenizer(language, pre_tokenized=False))
    return {
        "characters": list(costs_of_frequent(train, test)),
        "words": list(costs_of_frequent(map(words, train), [words(line) for line in test])),
        "BPE": list(costs_of_pieces("bpe", train, test)),
        "unigram": list(costs_of_pieces("unigram", train, test)),
    }


def draw_costs(found: Mapping[str, Mapping[str, Sequence[Cost]]], picture: Path) -> None:
    """Draw length and unknown share against the size of a vocabulary, a column for each language."""
    with sheet(picture, (9, 6), rows=2, columns=len(found)) as axes:
        for column, (language, of_kinds) in enumerate(found.items()):
            length, unknown = axes[column], axes[column + len(found)]
            for (kind, measured), style in zip(of_kinds.items(), ("s-", "^-", "o-", "o:"), strict=True):
                sizes, lengths, shares = zip(*measured, strict=True)
                length.plot(sizes, lengths, style, ms=4, label=kind)
                unknown.plot(sizes, shares, style, ms=4, label=kind)
            length.set(title=language, ylim=(0, None), ylabel="tokens of a sentence")
            unknown.set(xlabel="size of the vocabulary", ylabel="<unk>, % of the tokens")
            unknown.set_yscale("log")
            unknown.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}"))
            for one in (length, unknown):
                one.set_xscale("log")
                one.set_xticks(SIZES[::2], [f"{size:,}" for size in SIZES[::2]])
                one.xaxis.set_minor_locator(NullLocator())
                one.grid(alpha=0.3)
        axes[-1].legend(frameon=False)


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(prog="docs.vocabulary", usage="python -m docs.vocabulary [--archive FILE]", description=__doc__)
    parser.add_argument("--archive", type=Path, help="local archive of KFTT (default: it is downloaded)")
    return parser


def main() -> None:
    """Count, keep the numbers and draw them."""
    corpus = prepare_corpus(DataConfig(archive=build_parser().parse_args().archive))
    train, test = corpus.train, corpus.test
    found = {
        "Japanese": costs(read_lines(train.src)[::STRIDE], read_lines(test.src), "ja"),
        "English": costs(read_lines(train.tgt)[::STRIDE], read_lines(test.tgt), "en"),
    }
    write_json(FIGURE / "vocabulary.json", found)  # each Cost as a list
    for name in ("vocabulary.png", "vocabulary.ja.png"):
        draw_costs(found, FIGURE / name)


if __name__ == "__main__":
    run_command("docs.vocabulary", main)
