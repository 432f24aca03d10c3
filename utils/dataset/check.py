"""Checks of a corpus before hours go by: languages, sides, spaces, and lines of the dev or test text in training."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from config.data import OWN_TEXTS, DataConfig
from const.path import CORPUS
from utils.command import Log
from utils.dataset.corpus import Corpus, own_pair
from utils.dataset.formats import unnamed_columns
from utils.dataset.text import BLOCK, ParallelFiles, ParallelText, read_pairs, read_parallel
from utils.text.language import looks_tokenized, looks_untokenized, refuse_other_language

_MANY_COPIES = 0.3  # of the lines; names and formulas are few
_FIT_BETTER = 2.0  # times as many known words: names and marks are in both languages


def refuse_other_languages(data: DataConfig, root: Path = CORPUS) -> None:
    """Refuse a text of your own that begins in other languages than those it is said to be in."""
    for prefix in OWN_TEXTS:
        if files := own_pair(data, prefix, root):
            text = read_parallel(files, BLOCK)
            for side, file, lines in ("src", files.src, text.src), ("tgt", files.tgt, text.tgt):
                remedy = f"{_swapped(data, prefix)}, or is --data.{side}_lang wrong?"
                refuse_other_language(lines, getattr(data, f"{side}_lang"), str(file), remedy)


def _swapped(data: DataConfig, prefix: str) -> str:
    if pairs := data.own_files(prefix).get(f"{prefix}pairs"):
        return f"are the columns of {pairs} swapped, or without names"
    return f"are --data.{prefix}src and --data.{prefix}tgt swapped"


def check_own_text(corpus: Corpus, log: Log) -> None:
    """Refuse a text of your own whose sides are the other way round than is said; remark on spaces that are odd.

    Letters do not tell English from German. So the words of development and test text are compared with those of the
    training text, and the words of further training text with those of the development text.
    """
    data = corpus.data
    for prefix in OWN_TEXTS:
        table = data.own_files(prefix).get(f"{prefix}pairs")
        if table and (columns := unnamed_columns(table, data.languages)):
            sides = zip(columns, data.languages, strict=True)
            read = ", ".join(f"column {column} is read as {language}" for column, language in sides)
            log(f"{table} does not name its columns: {read}")
    for prefix, known in (("dev_", corpus.train), ("test_", corpus.train), ("more_", corpus.dev)):
        files = own_pair(data, prefix, corpus.root)
        if files and _has_words_of_other_side(read_parallel(files, BLOCK), read_parallel(known, BLOCK)):
            raise ValueError(
                f"{files.src} has the words of {known.tgt}, and {files.tgt} those of {known.src}: "
                f"{_swapped(data, prefix)}?"
            )
    if data.has_own_text:
        files = own_pair(data, "", corpus.root) or corpus.train
        text = read_parallel(files, BLOCK)
        if (copied := sum(map(str.__eq__, text.src, text.tgt)) / len(text)) > _MANY_COPIES:
            log(f"{copied:.0%} of the lines of {files.src} are their own translations: is that right?")
        target, lines = corpus.dev.tgt, read_parallel(corpus.dev, BLOCK).tgt
        if not data.is_tokenized and looks_tokenized(lines):
            log(
                f"{target} looks tokenized: give --data.pre_tokenized true if spaces separate all words and marks, "
                "so that BLEU takes them as they are"
            )
        if data.is_tokenized and looks_untokenized(lines):
            log(f"{target} does not look tokenized, and BLEU splits it at spaces: is --data.pre_tokenized true right?")


def _has_words_of_other_side(text: ParallelText, known: ParallelText) -> bool:
    """Return whether both sides of a text have far more of the words of the other side than of their own."""
    words, other = ([" ".join(side).lower().split() for side in (both.src, both.tgt)] for both in (text, known))
    vocabularies = [*map(set, other)]

    def n_known(side: int, vocabulary: int) -> int:
        return sum(word in vocabularies[vocabulary] for word in words[side])

    return all(n_known(side, 1 - side) > _FIT_BETTER * n_known(side, side) for side in (0, 1))


def report_shared(train: ParallelFiles, held_out: ParallelFiles, split: str, log: Log) -> None:
    """Report how many lines of a held-out text a training text has, too."""

    def rows(files: ParallelFiles) -> Iterator[list[tuple[str, ...]]]:
        for src, tgt in (map(str.strip, pair) for pair in read_pairs(files)):
            yield [("pairs", src, tgt), ("sources", src), ("targets", tgt)]

    scored = list(chain.from_iterable(rows(held_out)))
    learned = {*scored}.intersection(chain.from_iterable(rows(train)))
    if learned:
        n_shared = Counter(item[0] for item in scored if item in learned)
        shown = ", ".join(f"{n_shared[part]:,} {part}" for part in ("pairs", "sources", "targets"))
        log(f"  it has lines of the {split} text, whose scores flatter the model: {shown}")
