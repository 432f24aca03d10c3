"""Training text with stand-ins for what both sides of a pair have: a network learns to copy them."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from random import Random

from utils.text.protected import NAMES, NUMBERS, Span, spans, written

_LATIN = re.compile(r"(?<![\w.])[A-Za-z][A-Za-z0-9+-]*(?![\w])", re.A)  # teaches a model what to do with any name
_EMOJI_SHARE = 0.01


def masked_pair(pair: tuple[str, str], languages: tuple[str, str], share: float, random: Random) -> tuple[str, str]:
    """Put stand-ins in place of what both sides of a pair have once: of each span with a probability of `share`."""
    sides = [[*_unique(spans(text, language), text)] for text, language in zip(pair, languages, strict=True)]
    by_value = [{_key(span): span for span in side} for side in sides]
    shared = [(by_value[0][key], by_value[1][key]) for key in by_value[0] if key in by_value[1]]
    chosen = [both for both in sorted(shared) if random.random() < share]
    first, texts = random.randrange(len(NAMES)), [*pair]
    stand_ins = {True: iter([*NAMES[first:], *NAMES[:first]]), False: iter([*NUMBERS[first:], *NUMBERS[:first]])}
    placed = [(both, next(stand_ins[both[0].value is None], "")) for both in chosen]
    for side in (0, 1):
        for both, stand_in in sorted(placed, key=lambda item: -item[0][side].begin):
            if stand_in:
                span = both[side]
                texts[side] = texts[side][: span.begin] + stand_in + texts[side][span.end :]
    if random.random() < _EMOJI_SHARE * share and all(texts):
        mark = next(stand_ins[True], "")
        return f"{texts[0]}{mark}", f"{texts[1]} {mark}".rstrip()
    return texts[0], texts[1]


def _unique(found: Sequence[Span], text: str) -> Iterator[Span]:
    """Yield the spans, and Latin words, that a text has once."""
    taken = {at for span in found for at in range(span.begin, span.end)}
    words = [Span(*match.span(), match[0]) for match in _LATIN.finditer(text) if match.start() not in taken]
    kept = [span for span in [*found, *words] if span.is_hard or span.text.isdigit()]
    counts = Counter(map(_key, kept))
    yield from (span for span in kept if counts[_key(span)] == 1)


def _key(span: Span) -> str | Decimal:
    return written(span, "ja") if span.value is None else span.value
