"""Export of trained models to other formats, their import, and translation with what was exported."""

import math
from collections.abc import Callable, Sequence

CARD = "README.md"  # of an exported folder, for people who have nothing else
PACKAGE = ".argosmodel"  # what the file name of a package of Argos Translate ends in

COMPARED = 48  # tokens of a sentence: more than an attention may see, if somebody has made it see fewer
_EXACT = 1e-3  # part of the norm that a difference may have


def refuse_difference(program: str, expected: Sequence[float], compute: Callable[[], Sequence[float]]) -> None:
    """Refuse a network that another program computes otherwise: one with an edited layer."""
    try:
        apart, size = math.dist(compute(), expected), math.hypot(*expected)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
    else:
        if apart <= _EXACT * size or not math.isfinite(size):  # of a training that has diverged, nothing can be said
            return
        reason = f"results differ by {apart / size:.1%}"
    raise ValueError(f"{program} computes another network than this one ({reason}): give --to safetensors")
