"""Splitting one parallel text into train, dev and test, when its owner has not."""

import random

from utils.dataset.parallel_text import ParallelText

# Not the seed of a training: runs that differ in that one are compared on the same sentences.
_SEED = 20110101


def hold_out(text: ParallelText, sizes: list[int]) -> tuple[ParallelText, list[ParallelText]]:
    """Take random pairs out of a text; the same text and sizes always give the same pairs.

    What is held out are distinct pairs with text on both sides, and every copy of them leaves the rest.

    Args:
        text: the pairs to choose from
        sizes: how many pairs each held-out text gets

    Returns:
        the rest in its order, and one text a size

    Raises:
        ValueError: too few distinct pairs for that
    """
    pairs = [(src.strip(), tgt.strip()) for src, tgt in zip(text.src, text.tgt, strict=True)]
    first = {pair: i for i, pair in reversed(list(enumerate(pairs))) if all(pair)}
    if len(first) <= 2 * sum(sizes):
        raise ValueError(
            f"held_out={max(sizes)} is too many of {len(first):,} distinct pairs, "
            "most of which are needed for training: lower --data.held_out or give --data.dev_src and so on"
        )
    chosen = random.Random(_SEED).sample(sorted(first.values()), sum(sizes))
    held_pairs = {pairs[i] for i in chosen}
    rest = _select(text, [i for i, pair in enumerate(pairs) if pair not in held_pairs])
    held = []
    for size in sizes:
        held.append(_select(text, chosen[:size]))
        chosen = chosen[size:]
    return rest, held


def _select(text: ParallelText, rows: list[int]) -> ParallelText:
    return ParallelText([text.src[i] for i in rows], [text.tgt[i] for i in rows])
