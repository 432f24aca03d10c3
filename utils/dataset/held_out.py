"""Keeping texts to train on and to score on apart: splitting one text into them, and adding to one of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from utils.dataset.parallel_text import ParallelFiles, read_blocks
from utils.dataset.repeated import pair_hashes, repeated


def hold_out(files: ParallelFiles, n_dev: int, n_test: int) -> tuple[NDArray[np.bool_], list[int], list[int]]:
    """Choose pairs of a text by their hashes: the lowest are the dev text, the highest the test text.

    The choice is as good as random, and a text that grows keeps it: a new pair can only send a held-out one back to
    the rest, so that a run resumed on a grown text is never scored on what it has learned from. It is the same in both
    directions, so that neither of two opposite translators has learned from the other's test text. Held-out pairs are
    distinct and have text on both sides, and all copies of them, the other way round too, are removed from the rest.

    Args:
        files: the pairs to choose from
        n_dev: how many pairs go to dev
        n_test: how many pairs go to test

    Returns:
        whether each line belongs to the rest, the lines of dev, and those of test

    Raises:
        ValueError: there are too few distinct pairs
    """
    hashed, filled = [], []
    for block in read_blocks(files):
        pairs = [(src.strip(), tgt.strip()) for src, tgt in zip(block.src, block.tgt, strict=True)]
        hashed.append(pair_hashes(sorted(pair) for pair in pairs))
        filled.append(np.fromiter(map(all, pairs), bool, len(pairs)))
    hashes, has_text = np.concatenate(hashed), np.concatenate(filled)
    distinct = np.flatnonzero(has_text & ~repeated(hashes, has_text))
    if len(distinct) <= 2 * (n_dev + n_test):
        raise ValueError(
            f"held_out={max(n_dev, n_test)} is too many of {len(distinct):,} distinct pairs, "
            "most of which are needed for training: lower --data.held_out or give --data.dev_src and so on"
        )
    ranked = distinct[np.argsort(hashes[distinct])]
    dev, test = ranked[:n_dev], ranked[len(ranked) - n_test :]
    rest = ~np.isin(hashes, hashes[np.concatenate([dev, test])])
    return rest, dev.tolist(), test.tolist()


def write_split(
    files: ParallelFiles, rest: NDArray[np.bool_], held: Sequence[Sequence[int]], into: Sequence[ParallelFiles]
) -> None:
    """Write what `hold_out` chose: the rest into the first files, each held-out text into one of the following."""
    wanted = {row for rows in held for row in rows}
    found: dict[int, tuple[str, str]] = {}
    with ExitStack() as stack:
        outs = [_opened(stack, out) for out in into]
        for number, pair in enumerate(_pairs(files)):
            if rest[number]:
                _write(pair, outs[0])
            elif number in wanted:
                found[number] = pair
        for out_pair, rows in zip(outs[1:], held, strict=True):
            for row in rows:
                _write(found[row], out_pair)


def write_joined(
    files: ParallelFiles, more: ParallelFiles, held: Iterable[ParallelFiles], into: ParallelFiles
) -> tuple[int, int]:
    """Write a training text and more pairs after it, without those that have a held-out line on either side.

    A back-translated reference of a test text has another source, and would still be learned by heart.

    Returns:
        how many pairs were added, and how many left out

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the line counts differ
    """
    scored = {line.strip() for text in held for pair in _pairs(text) for line in pair}
    scored.discard("")
    n_added = n_left_out = 0
    with ExitStack() as stack:
        outs = _opened(stack, into)
        for pair in _pairs(files):
            _write(pair, outs)
        for pair in _pairs(more):
            if scored.isdisjoint(map(str.strip, pair)):
                _write(pair, outs)
                n_added += 1
            else:
                n_left_out += 1
    return n_added, n_left_out


def count_shared(files: ParallelFiles, held: ParallelFiles) -> int:
    """Count the pairs of a held-out text that a training text has, too, and whose scores therefore flatter a model.

    Raises:
        ValueError: a file is missing, empty or not UTF-8, or the line counts differ
    """
    scored = Counter((src.strip(), tgt.strip()) for src, tgt in _pairs(held))
    learned = {pair for src, tgt in _pairs(files) if (pair := (src.strip(), tgt.strip())) in scored}
    return sum(scored[pair] for pair in learned)


def _pairs(files: ParallelFiles) -> Iterator[tuple[str, str]]:
    for block in read_blocks(files):
        yield from zip(block.src, block.tgt, strict=True)


def _opened(stack: ExitStack, files: ParallelFiles) -> list[TextIO]:
    return [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in files]


def _write(pair: tuple[str, str], outs: Sequence[TextIO]) -> None:
    for out, line in zip(outs, pair, strict=True):
        out.write(line + "\n")
