"""The limits of a server."""

from dataclasses import dataclass

from config.group import Group, bounded

_BYTES_PER_CHARACTER = 12  # JSON may write one as two escapes, \ud83d\ude00
_SPARE_BYTES = 16384  # for everything in a request besides text


@dataclass(frozen=True)
class Limits(Group):
    """Limits of a server.

    Args:
        max_chars: most characters in a request
        max_texts: most texts in a request; each line counts as one
        batch_texts: most texts translated together; 1: one by one
        collect_ms: milliseconds that a text may wait for others to share its batch
        queue_texts: most texts waiting for a run
        timeout_s: seconds until a request times out
    """

    max_chars: int = bounded(5000, least=1)
    max_texts: int = bounded(100, least=1)
    batch_texts: int = bounded(64, least=1)
    collect_ms: float = bounded(5.0, least=0)
    queue_texts: int = bounded(512, least=1)
    timeout_s: float = bounded(30.0, above=0)

    def check(self) -> None:
        """Refuse a queue in which the largest request has no room."""
        if self.queue_texts < self.max_texts:
            raise ValueError(
                f"queue_texts={self.queue_texts} has no room for the max_texts={self.max_texts} of one request: "
                "raise the first, or lower the second"
            )

    @property
    def max_bytes(self) -> int:
        """Most bytes in the body of a request."""
        return _SPARE_BYTES + _BYTES_PER_CHARACTER * self.max_chars
