"""Whether spaces separate all words and marks of a text, as after a tokenizer such as Moses or KyTea."""

import re
from collections.abc import Sequence

_GLUED = re.compile(r"[^\W\d_][.,!?;:。、！？]")  # a mark right after a letter
_LONGEST_WORD = 20  # characters; what is longer and has no space is more than a word


def looks_tokenized(lines: Sequence[str]) -> bool:
    """Return whether most full stops at line ends follow a space, as in text that was not detokenized."""
    stops = [line for line in map(str.rstrip, lines) if line.endswith(".")]
    return sum(line.endswith(" .") for line in stops) * 2 > len(stops)


def looks_untokenized(lines: Sequence[str]) -> bool:
    """Return whether most lines have marks right after letters, or no spaces, as in text that was not tokenized."""
    lines = [line.strip() for line in lines if line.strip()]
    raw = [line for line in lines if _GLUED.search(line) or (len(line) > _LONGEST_WORD and " " not in line)]
    return len(raw) * 2 > len(lines)
