"""Splitting one parallel text into train, dev and test, when its owner has not."""

import random
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from utils.dataset.parallel_text import ParallelFiles, read_blocks
from utils.dataset.repeated import pair_hashes, repeated

# Not the seed of a training: runs that differ in that one are compared on the same sentences.
_SEED = 20110101


def hold_out(files: ParallelFiles, sizes: list[int]) -> tuple[NDArray[np.bool_], list[list[int]]]:
    """Choose random pairs of a text; the same text and sizes always give the same pairs.

    What is held out are distinct pairs with text on both sides, and every copy of them leaves the rest.

    Args:
        files: the pairs to choose from
        sizes: how many pairs each held-out text gets

    Returns:
        whether a line belongs to the rest, and the lines of each held-out text

    Raises:
        ValueError: too few distinct pairs for that
    """
    hashed, filled = [], []
    for block in read_blocks(files):
        pairs = [(src.strip(), tgt.strip()) for src, tgt in zip(block.src, block.tgt, strict=True)]
        hashed.append(pair_hashes(pairs))
        filled.append(np.fromiter(map(all, pairs), bool, len(pairs)))
    hashes, has_text = np.concatenate(hashed), np.concatenate(filled)
    distinct = np.flatnonzero(has_text & ~repeated(hashes, has_text))
    if len(distinct) <= 2 * sum(sizes):
        raise ValueError(
            f"held_out={max(sizes)} is too many of {len(distinct):,} distinct pairs, "
            "most of which are needed for training: lower --data.held_out or give --data.dev_src and so on"
        )
    chosen = distinct[random.Random(_SEED).sample(range(len(distinct)), sum(sizes))]
    rest = ~np.isin(hashes, hashes[chosen])
    return rest, [part.tolist() for part in np.split(chosen, np.cumsum(sizes)[:-1])]


def write_split(
    files: ParallelFiles, rest: NDArray[np.bool_], held: list[list[int]], into: list[ParallelFiles]
) -> None:
    """Write what `hold_out` chose: the rest into the first files, each held-out text into one of the others."""
    wanted = {row for rows in held for row in rows}
    found: dict[int, tuple[str, str]] = {}
    number = 0
    with ExitStack() as stack:
        outs = [[stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in out] for out in into]
        for block in read_blocks(files):
            for pair in zip(block.src, block.tgt, strict=True):
                if rest[number]:
                    for out, line in zip(outs[0], pair, strict=True):
                        out.write(line + "\n")
                elif number in wanted:
                    found[number] = pair
                number += 1
        for out_pair, rows in zip(outs[1:], held, strict=True):
            for row in rows:
                for out, line in zip(out_pair, found[row], strict=True):
                    out.write(line + "\n")
