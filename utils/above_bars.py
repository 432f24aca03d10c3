"""Lines of output while a bar shows how far the work is."""

import sys

from tqdm import tqdm


def print_above_bars(text: str) -> None:
    """Print on standard output, at once; bars on the same terminal stay below."""
    tqdm.write(text)
    sys.stdout.flush()
