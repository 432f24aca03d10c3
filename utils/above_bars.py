"""Lines of output while a progress bar is shown."""

import sys

from tqdm import tqdm


def print_above_bars(text: str) -> None:
    """Print to standard output immediately, above any progress bars on the same terminal."""
    tqdm.write(text)
    sys.stdout.flush()
