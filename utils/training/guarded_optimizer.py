"""From a summed gradient to new weights: mean, clipping, step, moving average; what is not finite moves nothing."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from utils.device import Precision, product_dtype
from utils.training.distributed import Processes
from utils.training.moving_average import MovingAverage
from utils.training.muon import Muon, hidden_matrices
from utils.training.optimizer import OptimizerConfig, build_adam
from utils.training.schedule import learning_rate

# Micikevicius et al. 2018, 3.2; of a sum over tokens, so lower than is usual for a mean
_FIRST_SCALE = 2.0**8
_GROW_AFTER = 2000  # updates with a finite gradient


class GuardedOptimizer:
    """Adam, with or without Muon, for gradients of summed losses. It never waits for the device.

    Division by the tokens, clipping and the loss scale are one factor, which Adam's fused kernel applies on its way;
    an update whose gradient is not finite is skipped there, and counted.

    Args:
        net: whose parameters learn.
        config: how.
        d_model: width of the network, which Noam's schedule asks for.
        precision: of the matrix products of training, and of Muon's. With fp16, losses are scaled up before their
            backward pass, so that gradients in half precision do not vanish.
        processes: those that train together, with the same gradients, and share the work of Muon.
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
        """Of the last update."""
        return float(self.adam.param_groups[0]["lr"])

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """Summed over tokens, and scaled."""
        return [p.grad for p in self._parameters if p.grad is not None]

    def missing_gradients(self) -> None:
        """Give a gradient of zero to each parameter that has none: what other processes have is added to it."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def step(self, step: int, tokens: Tensor) -> Tensor:
        """Move the weights.

        Args:
            step: of this update, from 1.
            tokens: that the loss was summed over.

        Returns:
            The norm of the mean gradient before clipping.
        """
        divisor = tokens * self.loss_scale
        norm = nn.utils.get_total_norm(self.gradients()) / divisor
        finite = norm.isfinite()
        too_long = (norm / self.config.clip_norm).clamp(min=1.0) if self.config.clip_norm is not None else 1.0
        # what torch.amp.GradScaler hands to fused optimizers
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
        """Inside, the network carries the weights that it is to be used with: their moving average, if there is one."""
        with self.average.swapped() if self.average is not None else nullcontext():
            yield

    def state_dict(self) -> dict[str, Any]:
        """All that going on from here needs."""
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
        """Go on from what `state_dict` gave; a moving average that was not there before begins with the weights.

        Raises:
            ValueError: it is of another kind of optimizer, or had weight decay where there is none now, or the reverse.
        """
        was = "adam" if state.get("muon") is None else "muon"  # states from before Muon do not speak of it
        if was != (now := "adam" if self.muon is None else "muon"):
            raise ValueError(
                f"kind={now}, but the checkpoint is one of {was}: give --optimizer.kind {was}, or begin anew with its "
                "weights by --init-from"
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
        if self._half and state.get("half", True):  # states from before this one do not speak of it
            self.loss_scale = state["loss_scale"].clone()
            self._finite_in_a_row = state["finite_in_a_row"].clone()

    def _load_adam(self, state: dict[str, Any]) -> None:
        """Its means; torch would take the settings of the state, too."""
        own = [{name: group[name] for name in ("betas", "eps", "weight_decay")} for group in self.adam.param_groups]
        if len(state["param_groups"]) != len(own):
            raise ValueError(
                f"weight_decay={self.config.weight_decay} cannot be switched on or off in a training that goes on: "
                "give its old value, or begin anew with its weights by --init-from"
            )
        self.adam.load_state_dict(state)
        for group, settings in zip(self.adam.param_groups, own, strict=True):
            group.update(settings)
