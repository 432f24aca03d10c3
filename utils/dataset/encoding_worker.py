"""The process that encodes blocks of text for another; not to be run by hand."""

import os
import signal
import sys
from pathlib import Path

from utils.dataset.ids import serve_blocks


def main() -> None:
    """Encode the blocks requested on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process: when it ends, so does this one
    try:
        serve_blocks(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:  # the parent process was killed
        os._exit(1)


if __name__ == "__main__":
    main()
