"""The process that encodes blocks of text for another; nobody calls it by hand."""

import os
import signal
import sys
from pathlib import Path

from utils.dataset.encoding import serve_blocks


def main() -> None:
    """Encode what is asked for on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks: when that one ends, so does this
    try:
        serve_blocks(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:  # who asked was killed
        os._exit(1)


if __name__ == "__main__":
    main()
