"""Ctrl-C and SIGTERM that let the current update finish."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether a stop was requested."""

    asked = False


@contextmanager
def graceful_interrupt() -> Iterator[Interrupt]:
    """Within the block, the first SIGINT or SIGTERM only sets `asked`; the second acts as usual."""
    interrupt = Interrupt()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature is Python's)
        interrupt.asked = True
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        restore()
