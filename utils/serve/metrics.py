"""Metrics of a server, in the text format of Prometheus."""

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts of values up to each bound.

    Args:
        bounds: ascending upper bounds, one bucket each; one more bucket is for larger values.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, label: str) -> Iterator[str]:
        """Yield the cumulative buckets, the sum and the count."""
        for bound, count in zip([*self._bounds, "+Inf"], accumulate(self._counts), strict=True):
            yield f'{name}_bucket{{{label},le="{bound}"}} {count}'
        yield f"{name}_sum{{{label}}} {self._sum:.6g}"
        yield f"{name}_count{{{label}}} {sum(self._counts)}"


class Metrics:
    """Metrics of one server; use it from a single thread.

    Args:
        runs: names of the served runs.
    """

    def __init__(self, runs: Sequence[str]) -> None:
        self._answers: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches = {run: Histogram(_TEXTS) for run in runs}

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._answers[path, status] += 1
        self._seconds.setdefault(path, Histogram(_SECONDS)).add(seconds)

    def translated(self, run: str, n_texts: int) -> None:
        """Count a batch."""
        self._batches[run].add(n_texts)

    def page(self, waiting: Mapping[str, int]) -> str:
        """Return all metrics; `waiting` is the number of queued texts of each run."""
        return "".join(f"{line}\n" for line in self._lines(waiting))

    def _lines(self, waiting: Mapping[str, int]) -> Iterator[str]:
        yield from _head("miyako_requests_total", "counter", "Requests answered, by status; 499: the client has gone.")
        for (path, status), n in sorted(self._answers.items()):
            yield f'miyako_requests_total{{path="{path}",status="{status}"}} {n}'
        yield from _head(
            "miyako_request_seconds", "histogram", "Seconds from the head of a request to the end of its answer."
        )
        for path, seconds in sorted(self._seconds.items()):
            yield from seconds.lines("miyako_request_seconds", f'path="{path}"')
        yield from _head("miyako_batch_texts", "histogram", "Texts per batch.")
        for run, texts in self._batches.items():
            yield from texts.lines("miyako_batch_texts", f'run="{_escaped(run)}"')
        yield from _head("miyako_queue_texts", "gauge", "Texts waiting for a run.")
        for run, n in waiting.items():
            yield f'miyako_queue_texts{{run="{_escaped(run)}"}} {n}'


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
