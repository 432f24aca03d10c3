"""Moving average of the weights (Polyak & Juditsky 1992): it translates better than the latest weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class MovingAverage:
    """x̄ ← d x̄ + (1 - d) x after each update.

    d is min(decay, (1 + n) / (10 + n)) after n updates, so that the initial weights are soon forgotten; skipped updates
    count as well.

    Args:
        net: its parameters are averaged, tied ones once; its buffers are not.
        decay: share of the average that is kept at each update.
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights = dict(net.named_parameters())
        self.begin()

    def begin(self) -> None:
        """Restart the average from the present weights."""
        self.n_updates = 0
        self._average = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, moved: Tensor) -> None:
        """Average in the weights after an update, without waiting for the device.

        Args:
            moved: whether the weights were updated; if not, the average stays.
        """
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        self.n_updates += 1
        averages, share = list(self._average.values()), (1 - decay) * moved
        torch._foreach_lerp_(averages, list(self._weights.values()), [share] * len(averages))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within the block, the network has the averaged weights; afterwards, however it ends, its own again.

        Only the parameters' pointers are swapped: nothing is copied, and optimizers are unaffected.
        """
        own = {name: weight.data for name, weight in self._weights.items()}
        self._point_at(self._average)
        try:
            yield
        finally:
            self._point_at(own)

    def _point_at(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.data = tensors[name]

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume from here."""
        return {"n_updates": self.n_updates, "average": self._average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the `state_dict` of an average of the same network."""
        self.n_updates = state["n_updates"]
        for name, average in self._average.items():
            average.copy_(state["average"][name])
