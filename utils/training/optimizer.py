"""From a summed gradient to new weights: mean, clipping, step, moving average; non-finite gradients are skipped."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from utils.device import Precision, product_dtype
from utils.training.distributed import Processes
from utils.training.muon import Muon, hidden_matrices
from utils.training.plan import OptimizerConfig, build_adam, learning_rate

# Moving average of the weights (Polyak & Juditsky 1992): it translates better than the latest weights.


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


# Micikevicius et al. 2018, 3.2; lower than is usual because losses are summed over tokens, not averaged
_FIRST_SCALE = 2.0**8
_GROW_AFTER = 2000  # updates with a finite gradient


class GuardedOptimizer:
    """Adam, with or without Muon, for gradients of summed losses. It never waits for the device.

    Division by the number of tokens, clipping and the loss scale are one factor, which Adam's fused kernel applies
    itself; the kernel also skips an update whose gradient is not finite, which is then counted.

    Args:
        net: the network whose parameters are trained.
        config: the settings.
        d_model: width of the network, needed by Noam's schedule.
        precision: of the matrix products of training, and of Muon's. With fp16, losses are scaled up before the
            backward pass, so that gradients in half precision do not vanish.
        processes: those that train together with the same gradients, and share the work of Muon.
    """

    def __init__(
        self,
        net: nn.Module,
        config: OptimizerConfig,
        d_model: int,
        precision: Precision = "auto",
        processes: Processes | None = None,
    ) -> None:
        self.config = config
        self._parameters = list(net.parameters())
        device = self._parameters[0].device
        self.muon: Muon | None = None
        matrices = hidden_matrices(net) if config.kind == "muon" else {}
        if matrices:
            dtype = product_dtype(device, precision)
            self.muon = Muon(matrices, config.momentum, config.weight_decay, dtype, processes)
        self.adam = build_adam([p for p in self._parameters if p not in matrices], config)
        self.average = None if config.ema_decay is None else MovingAverage(net, config.ema_decay)
        self._d_model = d_model
        self._half = precision == "fp16"
        self.loss_scale = torch.full((), _FIRST_SCALE if self._half else 1.0, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)  # updates so far
        self.skipped_in_a_row = torch.zeros((), dtype=torch.int64, device=device)
        self._finite_in_a_row = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last update."""
        return float(self.adam.param_groups[0]["lr"])

    def zero_grad(self) -> None:
        """Discard the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Return the gradients, summed over tokens and multiplied by the loss scale."""
        return [p.grad for p in self._parameters if p.grad is not None]

    def fill_missing_gradients(self) -> None:
        """Give a zero gradient to each parameter that has none: other processes may have one to add to it."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def step(self, step: int, tokens: Tensor) -> Tensor:
        """Update the weights.

        Args:
            step: number of this update, from 1.
            tokens: number of tokens that the loss was summed over.

        Returns:
            The norm of the mean gradient before clipping.
        """
        divisor = tokens * self.loss_scale
        norm = nn.utils.get_total_norm(self.gradients()) / divisor
        finite = norm.isfinite()
        too_long = (norm / self.config.clip_norm).clamp(min=1.0) if self.config.clip_norm is not None else 1.0
        # as torch.amp.GradScaler does for fused optimizers
        divisor = divisor * too_long
        self.adam.grad_scale = divisor  # type: ignore[attr-defined]
        self.adam.found_inf = (~finite).float()  # type: ignore[attr-defined]
        for group in self.adam.param_groups:
            group["lr"] = learning_rate(step, self.config, self._d_model)
        self.adam.step()
        if self.muon is not None:
            self.muon.step(self.learning_rate, divisor, finite)
        if self.average is not None:
            self.average.update(finite)
        self._count(finite)
        return norm

    def _count(self, finite: Tensor) -> None:
        self.skipped += ~finite
        self.skipped_in_a_row = torch.where(finite, 0, self.skipped_in_a_row + 1)
        if self._half:
            in_a_row = torch.where(finite, self._finite_in_a_row + 1, 0)
            grow = in_a_row >= _GROW_AFTER
            self.loss_scale *= torch.where(finite, torch.where(grow, 2.0, 1.0), 0.5)
            self._finite_in_a_row = torch.where(grow, 0, in_a_row)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within the block, the network has the weights to be used: their moving average, if there is one."""
        with self.average.swapped() if self.average is not None else nullcontext():
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume from here."""
        return {
            "adam": self.adam.state_dict(),
            "muon": None if self.muon is None else self.muon.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "loss_scale": self.loss_scale,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "finite_in_a_row": self._finite_in_a_row,
            "half": self._half,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a `state_dict`; if it has no moving average, one starts from the present weights.

        Raises:
            ValueError: when it is of another kind of optimizer, or only one of the two has weight decay.
        """
        was = "adam" if state.get("muon") is None else "muon"  # states from before Muon do not have it
        if was != (now := "adam" if self.muon is None else "muon"):
            raise ValueError(
                f"kind={now}, but the checkpoint is of kind {was}: give --optimizer.kind {was}, or start a new run "
                "from its weights with --init-from"
            )
        self._load_adam(state["adam"])
        if self.muon is not None:
            self.muon.load_state_dict(state["muon"])
        if self.average is not None:
            if state["average"] is None:
                self.average.begin()
            else:
                self.average.load_state_dict(state["average"])
        self.skipped, self.skipped_in_a_row = state["skipped"].clone(), state["skipped_in_a_row"].clone()
        if self._half and state.get("half", True):  # older states do not have it
            self.loss_scale = state["loss_scale"].clone()
            self._finite_in_a_row = state["finite_in_a_row"].clone()

    def _load_adam(self, state: dict[str, Any]) -> None:
        """Load Adam's running means only; torch would also take over the settings of the state."""
        own = [{name: group[name] for name in ("betas", "eps", "weight_decay")} for group in self.adam.param_groups]
        if len(state["param_groups"]) != len(own):
            raise ValueError(
                f"weight_decay={self.config.weight_decay} cannot be switched on or off in a resumed training: "
                "give its old value, or start a new run from its weights with --init-from"
            )
        self.adam.load_state_dict(state)
        for group, settings in zip(self.adam.param_groups, own, strict=True):
            group.update(settings)
