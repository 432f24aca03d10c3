"""From a summed gradient to new weights: mean, clipping, AdamW or Muon, moving average."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from config.training import OptimizerConfig, Precision
from utils.device import product_dtype
from utils.training.muon import Muon, block_matrices
from utils.training.schedule import learning_rate


class MovingAverage:
    """x̄ ← d x̄ + (1 - d) x after each update (Polyak & Juditsky 1992): it translates better than the latest weights.

    d is min(decay, (1 + n) / (10 + n)) after n updates, so that the initial weights are soon forgotten; skipped updates
    count as well. The parameters are averaged, tied ones once; buffers are not.
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
        """Average in the weights after an update, without waiting for the device; if none has moved, do nothing."""
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        self.n_updates += 1
        averages = list(self._average.values())
        steps = torch._foreach_sub(list(self._weights.values()), averages)
        torch._foreach_mul_(steps, (1 - decay) * moved)
        torch._foreach_add_(averages, steps)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within the block, the network has the averaged weights; afterwards, however it ends, its own again.

        Only the parameters' pointers are swapped: nothing is copied, and optimizers are unaffected.
        """
        own = [weight.data for weight in self._weights.values()]
        try:
            for weight, average in zip(self._weights.values(), self._average.values(), strict=True):
                weight.data = average
            yield
        finally:
            for weight, data in zip(self._weights.values(), own, strict=True):
                weight.data = data

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume from here."""
        return {"n_updates": self.n_updates, "average": self._average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the `state_dict` of an average of the same network."""
        self.n_updates = state["n_updates"]
        for average, saved in zip(self._average.values(), state["average"].values(), strict=True):
            average.copy_(saved)


def build_adam(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Adam:
    """Build Adam (Kingma & Ba 2015; Loshchilov & Hutter 2019) in one fused kernel; each step sets its learning rate.

    With weight decay, of matrices alone, there are two groups; without it, a single one.
    """
    matrices, rest = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in parameters:
        (matrices if config.weight_decay and parameter.dim() > 1 else rest).append(parameter)
    groups: list[dict[str, Any]] = [{"params": rest, "weight_decay": 0.0}]
    if config.weight_decay:
        groups.insert(0, {"params": matrices, "weight_decay": config.weight_decay})
    return torch.optim.AdamW(groups, lr=config.peak_lr, betas=config.betas, eps=config.eps, fused=True)


# Micikevicius et al. 2018, 3.2; lower than is usual because losses are summed over tokens, not averaged
_FIRST_SCALE = 2.0**8
_GROW_AFTER = 2000  # updates with a finite gradient


class Optimizer:
    """Adam, with or without Muon, for gradients of summed losses; skips non-finite ones. It never waits for the device.

    Division by the number of tokens, clipping and the loss scale are one factor, which Adam's fused kernel applies
    itself (which is why `torch.amp.GradScaler`, with a kernel of its own for each of them, is not used); the kernel
    also skips an update whose gradient is not finite, which is then counted.

    `precision` is that of the matrix products of training, and of Muon's. With fp16, losses are scaled up before the
    backward pass, so that gradients in half precision do not vanish.
    """

    def __init__(self, net: nn.Module, config: OptimizerConfig, precision: Precision = "fp32") -> None:
        self.config = config
        self._parameters = list(net.parameters())
        device = self._parameters[0].device
        self.muon: Muon | None = None
        self.matrices = block_matrices(net) if config.kind == "muon" else {}  # Adam has the other parameters
        if config.kind == "muon":
            if not self.matrices:
                raise ValueError(
                    "kind=muon finds no matrix in an EncoderBlock or DecoderBlock of this network: give "
                    "--optimizer.kind adam, or name your kind of block in block_matrices of utils/training/muon.py"
                )
            self.muon = Muon(self.matrices, config.momentum, config.weight_decay, product_dtype(precision))
        self.adam = build_adam([p for p in self._parameters if p not in self.matrices], config)
        self.average = None if config.ema_decay is None else MovingAverage(net, config.ema_decay)
        self._half = precision == "fp16"
        self.loss_scale = torch.full((), _FIRST_SCALE if self._half else 1.0, device=device)
        counts = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(3))  # of updates
        self.skipped, self.skipped_in_a_row, self._finite_in_a_row = counts

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last update."""
        return float(self.adam.param_groups[0]["lr"])

    def zero_grad(self, keep: bool = False) -> None:
        """Discard the gradients, or keep their memory and set them to zero."""
        if not keep:
            for parameter in self._parameters:
                parameter.grad = None
        elif gradients := self.gradients():
            torch._foreach_zero_(gradients)

    def gradients(self) -> list[Tensor]:
        """Return the gradients, summed over tokens and multiplied by the loss scale."""
        return [p.grad for p in self._parameters if p.grad is not None]

    def fill_missing_gradients(self) -> None:
        """Give a zero gradient to each parameter that has none: other processes may have one to add to it."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def step(self, step: int, tokens: Tensor, time_spent: float = 0.0) -> Tensor:
        """Make the update of this number, from 1, for a loss summed over so many tokens.

        `time_spent` is as for `learning_rate`. Return the norm of the mean gradient before clipping.
        """
        divisor = tokens * self.loss_scale
        norm = nn.utils.get_total_norm(self.gradients()) / divisor
        finite = norm.isfinite()
        too_long = (norm / self.config.clip_norm).clamp(min=1.0) if self.config.clip_norm is not None else 1.0
        divisor = divisor * too_long
        for group in self.adam.param_groups:
            group["lr"] = learning_rate(step, self.config, time_spent)
        if getattr(self.adam, "_step_supports_amp_scaling", False):
            # the fused kernel divides gradients by `grad_scale`, and changes nothing if `found_inf` is 1
            self.adam.grad_scale = divisor  # type: ignore[attr-defined]
            self.adam.found_inf = (~finite).float()  # type: ignore[attr-defined]
            self.adam.step()
        elif finite:  # another optimizer in Adam's place, which does neither
            moved = (p for group in self.adam.param_groups for p in group["params"])
            torch._foreach_div_([p.grad for p in moved if p.grad is not None], divisor)
            self.adam.step()
        if self.muon is not None:
            self.muon.step(self.learning_rate, divisor, finite)
        if self.average is not None:
            self.average.update(finite)
        self.skipped += ~finite
        self.skipped_in_a_row = torch.where(finite, 0, self.skipped_in_a_row + 1)
        if self._half:
            in_a_row = torch.where(finite, self._finite_in_a_row + 1, 0)
            grow = in_a_row >= _GROW_AFTER
            self.loss_scale *= torch.where(finite, torch.where(grow, 2.0, 1.0), 0.5)
            self._finite_in_a_row = torch.where(grow, 0, in_a_row)
        return norm

    def averaged(self) -> AbstractContextManager[None]:
        """Within the block, the network has the weights to be used: their moving average, if there is one."""
        return nullcontext() if self.average is None else self.average.swapped()

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
        """Resume from a `state_dict`; if it has no moving average, one starts from the present weights."""
        was = "adam" if state.get("muon") is None else "muon"  # states from before Muon do not have it
        if was != (now := "adam" if self.muon is None else "muon"):
            raise ValueError(
                f"kind={now}, but the checkpoint is of kind {was}: give --optimizer.kind {was}, or start a new run "
                "from its weights with --init-from"
            )
        groups, saved = self.adam.param_groups, state["adam"]["param_groups"]
        if len(groups) != len(saved):
            raise ValueError(
                f"weight_decay={self.config.weight_decay} cannot be switched on or off in a resumed training: "
                "give its old value, or start a new run from its weights with --init-from"
            )
        # Adam's running means only: its settings are those given now
        own = [{name: value for name, value in group.items() if name not in ("params", "lr")} for group in groups]
        given = [was | now for was, now in zip(saved, own, strict=True)]
        self.adam.load_state_dict({"state": state["adam"]["state"], "param_groups": given})
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
