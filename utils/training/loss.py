"""What training minimises, as sums over tokens: means would depend on how the tokens were batched.

The logits of a whole batch are by far the largest tensors of a training step: at 2,000 positions and 8,000 tokens,
64 MB each for logits, log-probabilities and gradients. Here they are computed a slice of the positions at a time, each
with its gradient at once, so that neither forward nor backward ever holds more. On a CPU a slice is large enough for
matrix products at full speed, while element-wise operations run on smaller pieces that stay in a core's own cache.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from const.token import PAD_ID
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import Memory, TransformerXL
from utils.dataset.batch import Batch
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.dataset.stream import SegmentBatch

_SLICE = {"cpu": 2**23, "cuda": 2**27}  # logits per matrix product
_PIECE = {"cpu": 2**19, "cuda": 2**27}  # logits per element-wise operation

# from the logits of a slice of the positions, P passes over each: their summed nats, and what gives the gradient
LogitLoss = Callable[[Float[Tensor, "P n V"], slice], tuple[Float[Tensor, ""], Callable[[], Float[Tensor, "P n V"]]]]


class _Projected(torch.autograd.Function):
    """Σ loss_of(hidden Wᵀ + b) over all positions; `forward` saves the gradients that `backward` returns.

    Matrix products run in the precision of the surrounding autocast, everything else in single precision or better.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "P N D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, " V"] | None,
        loss_of: LogitLoss,
    ) -> Float[Tensor, ""]:
        device, passes, vocab = hidden.device.type, len(hidden), len(weight)
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        summing = torch.promote_types(precision, torch.float32)
        hidden_low, weight_low = hidden.to(precision), weight.to(precision)
        needed = any(ctx.needs_input_grad)
        if needed:
            hidden_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight)
            bias_grad = None if bias is None else torch.zeros_like(bias)
        nats = torch.zeros((), device=hidden.device, dtype=summing)
        for part in _slices(hidden.size(1), passes * vocab, _SLICE[device]):
            rows = hidden_low[:, part].flatten(0, 1)
            logits = (rows @ weight_low.t()).unflatten(0, (passes, -1))
            for piece in _slices(logits.size(1), passes * vocab, _PIECE[device]):
                exact = logits[:, piece].to(summing)
                if bias is not None:
                    exact += bias
                loss, gradient = loss_of(exact, slice(part.start + piece.start, part.start + piece.stop))
                nats += loss
                if needed:
                    logits[:, piece] = logits_grad = gradient()
                    if bias_grad is not None:
                        bias_grad += logits_grad.sum((0, 1))
            if needed:
                flat = logits.flatten(0, 1)
                hidden_grad[:, part] = (flat @ weight_low).unflatten(0, (passes, -1))
                weight_grad += flat.t() @ rows
        if needed:
            ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return nats

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *(saved * grads[0] if saved is not None else None for saved in ctx.saved_tensors), None


def _projected(hidden: Tensor, weight: Tensor, bias: Tensor | None, loss_of: LogitLoss) -> Tensor:
    if not torch.is_grad_enabled():  # a Function is not told that, and would compute gradients that nobody asks for
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    nats: Tensor = _Projected.apply(hidden, weight, bias, loss_of)
    return nats


def _slices(n_positions: int, width: int, most: int) -> Iterator[slice]:
    step = max(1, most // width)
    return (slice(begin, min(begin + step, n_positions)) for begin in range(0, n_positions, step))


def cross_entropy(
    logits: Float[Tensor, "P n V"], target: Int[Tensor, "P n 1"], smoothing: float
) -> tuple[Float[Tensor, "P n V"], Float[Tensor, "P n"]]:
    """Return p = softmax(logits), and H(q, p) in nats, where q is the target smoothed by ε = `smoothing`."""
    p = logits.softmax(-1)
    # log Z from the most likely token, whose probability is at least 1 / V and so has a logarithm
    log_z = logits.amax(-1) - p.amax(-1).log()
    return p, log_z - (1 - smoothing) * logits.gather(2, target)[..., 0] - smoothing * logits.mean(-1)


def subtract_target(
    p: Float[Tensor, "P n V"], target: Int[Tensor, "P n 1"], smoothing: float, share: float = 1
) -> Float[Tensor, "P n V"]:
    """Subtract q, the smoothed target, times `share`, in place."""
    p.sub_(share * smoothing / p.size(2))
    return p.scatter_add_(2, target, torch.full_like(target, share * (smoothing - 1), dtype=p.dtype))


def projected_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    target: Int[Tensor, " N"],
    smoothing: float,
    counted: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, ""]:
    """Σ H(q, softmax(hidden Wᵀ + b)) in nats, q = (1 - ε) one-hot(target) + ε / V (Szegedy et al. 2016, sec. 7).

    Args:
        hidden: what is projected.
        weight: of the output layer.
        bias: of the output layer.
        target: the correct token of each position.
        smoothing: ε.
        counted: positions whose loss counts; None: all.
    """

    def loss_of(logits: Tensor, positions: slice) -> tuple[Tensor, Callable[[], Tensor]]:
        right = target[None, positions, None]
        p, nats = cross_entropy(logits, right, smoothing)
        if counted is None:
            return nats.sum(), lambda: subtract_target(p, right, smoothing)
        mask = counted[positions]
        return (nats * mask).sum(), lambda: subtract_target(p, right, smoothing).mul_(mask[:, None])

    return _projected(hidden[None], weight, bias, loss_of)


def projected_r_drop(
    hidden: Float[Tensor, "2 N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    target: Int[Tensor, " N"],
    smoothing: float,
    alpha: float,
) -> Float[Tensor, ""]:
    """Σ ½ (H(q, p₁) + H(q, p₂)) + α/4 (KL(p₁‖p₂) + KL(p₂‖p₁)) in nats: half of Liang et al. 2021, eq. 4.

    p₁ and p₂ are softmax(hidden Wᵀ + b) of the two passes over a position, and q is the smoothed target as in
    `projected_cross_entropy`; without dropout the loss equals that one.

    Args:
        hidden: what is projected, the same positions twice.
        weight: of the output layer.
        bias: of the output layer.
        target: the correct token of each position.
        smoothing: ε.
        alpha: α, weight of the divergence.
    """

    def loss_of(logits: Tensor, positions: slice) -> tuple[Tensor, Callable[[], Tensor]]:
        right = target[None, positions, None].expand(2, -1, 1)
        p, cross = cross_entropy(logits, right, smoothing)
        # z₁ - z₂ and z₂ - z₁, times α / 4: they differ from log(p₁ / p₂) and log(p₂ / p₁) by a constant
        apart = (logits - logits.flip(0)).mul_(alpha / 4)
        # KL(p₁‖p₂) + KL(p₂‖p₁) = Σ (p₁ - p₂) log(p₁ / p₂), in which a constant would cancel
        expected = (p * apart).sum(-1, keepdim=True)

        def gradient() -> Tensor:
            # ½ (p₁ - q) + α/4 (p₁ - p₂ + p₁ (z₁ - z₂ - its mean under p₁)), and with 1 and 2 exchanged
            logits_grad = apart.sub_(expected - (alpha / 4 + 0.5)).mul_(p).sub_(p.flip(0), alpha=alpha / 4)
            return subtract_target(logits_grad, right, smoothing, 0.5)

        return cross.sum() / 2 + expected.sum(), gradient

    return _projected(hidden, weight, bias, loss_of)


class Loss(NamedTuple):
    """Loss of a batch."""

    nats: Tensor  # summed; differentiable
    tokens: Tensor  # number of tokens summed over
    memory: Any = None  # what is passed on to the batch that continues this one: tensors without gradient


# loss of a network, a batch, and the memory of the batch that this one continues
Objective = Callable[[Any, Any, Any], Loss]


def mean_loss(loss_of: Callable[[Any, Any], Loss], batches: Iterable[Any]) -> float:
    """Return the nats per target token over all batches, in order: the same however the text was batched.

    Args:
        loss_of: gives the loss of a batch, from the batch and the memory of the one before.
        batches: of a text.
    """
    nats, tokens, memory = torch.zeros(()), torch.zeros(()), None
    for batch in batches:
        loss = loss_of(batch, memory)
        nats, tokens, memory = nats + loss.nats, tokens + loss.tokens, loss.memory
    return (nats / tokens).item()


def token_loss(
    hidden: Float[Tensor, "B T D"], output: nn.Linear, target: Int[Tensor, "B T"], smoothing: float = 0.0
) -> Loss:
    """Return the loss of the correct tokens, `hidden` projected by `output`; where `target` is padding, none counts."""
    real = target != PAD_ID
    if target.device.type == "cpu":
        nats = projected_cross_entropy(hidden[real], output.weight, output.bias, target[real], smoothing)
    else:  # selecting positions would make the CPU wait for the GPU to report their number
        rows, right, counted = (x.flatten(0, 1) for x in (hidden, target, real))
        nats = projected_cross_entropy(rows, output.weight, output.bias, right, smoothing, counted)
    return Loss(nats, real.sum())


class TranslationObjective:
    """Cross-entropy of the next target token at every position that is not padding.

    Args:
        smoothing: ε of label smoothing, in training mode only; the loss of a network in eval mode is not smoothed.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def __call__(self, net: Transformer, batch: Batch, _memory: None = None) -> Loss:
        """Return the summed loss in nats and the number of target tokens."""
        hidden = net.hidden(batch.src, batch.tgt[:, :-1])
        return token_loss(hidden, net.output, batch.tgt[:, 1:], self.smoothing if net.training else 0.0)


class RDropObjective:
    """Cross-entropy of two passes with different dropout, plus their divergence (R-Drop, Liang et al. 2021).

    Both passes run as one with twice the rows, so that a batch takes twice the time and memory.

    Args:
        smoothing: ε of label smoothing.
        alpha: α, weight of the divergence; the loss of a network in eval mode is plain cross-entropy.
    """

    def __init__(self, smoothing: float, alpha: float) -> None:
        self.smoothing = smoothing
        self.alpha = alpha

    def __call__(self, net: Transformer, batch: Batch, _memory: None = None) -> Loss:
        """Return the summed loss in nats and the number of target tokens, each counted once."""
        if not net.training:
            return TranslationObjective()(net, batch)
        src, tgt = batch.src.repeat(2, 1), batch.tgt.repeat(2, 1)
        hidden = net.hidden(src, tgt[:, :-1]).unflatten(0, (2, -1))
        target = batch.tgt[:, 1:]
        real = target != PAD_ID
        nats = projected_r_drop(
            hidden[:, real], net.output.weight, net.output.bias, target[real], self.smoothing, self.alpha
        )
        return Loss(nats, real.sum())


def build_objective(label_smoothing: float = 0.0, r_drop: float = 0.0) -> Objective:
    """Build the objective of a translator from its settings."""
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing={label_smoothing}: give at least 0 (none) and below 1, such as 0.1")
    if not 0 <= r_drop < math.inf:
        raise ValueError(f"r_drop={r_drop}: give 0 (a single pass) or more, such as 5")
    return RDropObjective(label_smoothing, r_drop) if r_drop else TranslationObjective(label_smoothing)


class MaskedLanguageObjective:
    """Cross-entropy of masked tokens and, in training mode, of next sentences (Devlin et al. 2019, 3.1).

    An example's next-sentence loss is weighted by its number of masked tokens, so that the sum does not depend on how
    examples were batched.
    """

    def __call__(self, net: BertForPreTraining, batch: MaskedBatch, _memory: None = None) -> Loss:
        """Return the summed loss in nats and the number of masked tokens."""
        x, target = net.bert(batch.ids, batch.segments), batch.target
        hidden = target != PAD_ID
        read = x
        if target.device.type == "cpu":
            read, target = x[hidden][None], target[hidden][None]
        loss = token_loss(net.head.hidden(read), net.head.output, target)
        if not net.training or not batch.follows.numel():
            return loss
        follows: Tensor = net.next_sentence(net.pooler(x))
        apart = F.cross_entropy(follows.float(), batch.follows, reduction="none")
        return loss._replace(nats=loss.nats + (apart * hidden.sum(1)).sum())


class ClassificationObjective:
    """Cross-entropy of the class of each text; every text counts the same, however long it is."""

    def __call__(self, net: BertClassifier, batch: LabelledBatch, _memory: None = None) -> Loss:
        """Return the summed loss in nats and the number of texts."""
        nats = F.cross_entropy(net(batch.ids).float(), batch.label, reduction="sum")
        return Loss(nats, torch.tensor(len(batch.label), device=nats.device))


class RecurrentObjective:
    """Cross-entropy of the next token, given earlier segments (Dai et al. 2019, 3.2); the memory is passed on.

    Args:
        memory_length: positions that a network in eval mode remembers; None: as many as in training.
    """

    def __init__(self, memory_length: int | None = None) -> None:
        self.memory_length = memory_length

    def __call__(self, net: TransformerXL, batch: SegmentBatch, memory: Sequence[Any] | None = None) -> Loss:
        """Return the summed loss in nats, the number of tokens, and the memory, given that of the batch before."""
        before = net.start(len(batch.ids), batch.ids.device) if memory is None else Memory(*memory)
        kept = None if net.training else self.memory_length
        hidden, after = net(batch.ids, before, batch.document, memory_length=kept)
        # a non-finite value skips an update, and must not spoil the next ones through the memory
        sound = tuple(torch.where(layer.isfinite(), layer, 0.0) for layer in after.hidden)
        return token_loss(hidden, net.output, batch.target)._replace(memory=after._replace(hidden=sound))
