"""Forward and backward passes as CUDA graphs: one launch, where a small network would wait for a thousand of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from utils.command import first_line, is_out_of_memory
from utils.dataset.batch import AnyBatch
from utils.training.loss import Loss

_MAX_GRAPHS = 400  # of some megabytes each


class _Graph(NamedTuple):
    batch: AnyBatch  # which the graph reads
    graph: torch.cuda.CUDAGraph
    loss: Loss  # which it writes


class GraphedPasses:
    """Runs the passes of the first batch as they are, and those of others as a CUDA graph for each shape of a batch.

    A graph reads and writes the memory that it was recorded with. So gradients must stay where they are, to be set to
    zero and not discarded; and where batches continue one another, by a memory that moves, nothing is recorded.

    Args:
        passes: adds the gradients of a batch, given the memory of the one before, and returns its loss.
        prepare: called before each recording; gives each parameter a gradient.
        rehearsed: the first batch of each shape is not recorded: torch.compile may compile for it, which cannot be.
    """

    def __init__(
        self, passes: Callable[[Any, Any], Loss], prepare: Callable[[], None], rehearsed: bool = False
    ) -> None:
        self.passes, self.prepare, self.rehearsed = passes, prepare, rehearsed
        self.graphs: dict[Sequence[torch.Size], _Graph] = {}
        self._seen: set[Sequence[torch.Size]] = set()
        self._recordable = False  # before the first batch, when libraries have yet to prepare themselves
        self._pool: Any = None  # of memory, shared by all graphs: only one of them runs at a time

    def __call__(self, batch: AnyBatch, memory: Any = None) -> Loss:
        """Return the loss of a batch, which the next call may overwrite."""
        shapes = tuple(part.shape for part in batch)
        if shapes not in self.graphs:
            is_new = self.rehearsed and shapes not in self._seen
            if is_new or not self._recordable or len(self.graphs) == _MAX_GRAPHS:
                loss = self.passes(batch, memory)
                self._seen.add(shapes)
                self._recordable = loss.memory is None
                return loss
            self.graphs[shapes] = self._record(batch)
        recorded = self.graphs[shapes]
        for own, part in zip(recorded.batch, batch, strict=True):
            own.copy_(part, non_blocking=True)
        recorded.graph.replay()
        return recorded.loss

    def _record(self, batch: AnyBatch) -> _Graph:
        own, graph = batch.to(torch.device("cuda")), torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self.prepare()
        try:  # other threads prepare batches meanwhile, which may allocate
            with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
                loss = self.passes(own, None)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(
                f"no CUDA graph can be recorded here ({first_line(error)}): give --training.graphs false"
            ) from error
        return _Graph(own, graph, loss)
