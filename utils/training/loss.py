"""What training minimises, as sums over tokens: means would depend on how the tokens were batched."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from const.token import PAD_ID
from models.bert import BertClassifier, BertForPreTraining
from models.transformer_xl import Memory, TransformerXL
from models.translation_model import TranslationModel
from utils.dataset.batch import Batch
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.dataset.monolingual import SegmentBatch


class Loss(NamedTuple):
    """Loss of a batch."""

    nats: Tensor  # what is minimised, summed; differentiable
    tokens: Tensor  # number of tokens summed over
    nll: Tensor  # negative log-likelihood of the target, summed, in nats: without label smoothing and the like
    memory: Any = None  # what is passed on to the batch that continues this one: tensors without gradient

    def plus(self, other: "Loss") -> "Loss":
        """Add the sums of a later batch, whose memory takes the place of this one's."""
        return Loss(self.nats + other.nats, self.tokens + other.tokens, self.nll + other.nll, other.memory)


# loss of a network, a batch, and the memory of the batch that this one continues
Objective = Callable[[Any, Any, Any], Loss]


def mean_loss(loss_of: Callable[[Any, Any], Loss], batches: Iterable[Any]) -> float:
    """Return the nats per target token over all batches, in order: the same however the text was batched.

    `loss_of` gives the loss of a batch, from the batch and the memory of the one before.
    """
    total = Loss(*torch.zeros(3))
    for batch in batches:
        total = total.plus(loss_of(batch, total.memory))
    return (total.nats / total.tokens).item()


class TranslationObjective:
    """Cross-entropy of the next target token at every position that is not padding.

    With R-Drop (Liang et al. 2021), of two passes with different dropout, plus their divergence: both run as one with
    twice the rows, so that a batch takes twice the time and memory. A network in eval mode has the plain loss.

    `smoothing` is ε of label smoothing, `r_drop` α, the weight of the divergence; 0: a single pass.
    """

    def __init__(self, smoothing: float = 0.0, r_drop: float = 0.0) -> None:
        self.smoothing, self.r_drop = smoothing, r_drop

    def __call__(self, net: TranslationModel, batch: Batch, _memory: None = None) -> Loss:
        """Return the summed loss in nats, the number of target tokens, each counted once, and their NLL."""
        read, target = batch.tgt[:, :-1], batch.tgt[:, 1:]
        smoothing, alpha = (self.smoothing, self.r_drop) if net.training else (0.0, 0.0)
        passes = 2 if alpha else 1
        hidden = net.hidden(batch.src.repeat(passes, 1), read.repeat(passes, 1)).unflatten(0, (passes, -1))
        return token_loss(hidden, net.output, target, smoothing, alpha)


def masked_language_loss(net: BertForPreTraining, batch: MaskedBatch, _memory: None = None) -> Loss:
    """Cross-entropy of masked tokens and, in training mode, of next sentences (Devlin et al. 2019, 3.1).

    An example's next-sentence loss is weighted by its number of masked tokens, so that the sum does not depend on how
    examples were batched. It is no part of the NLL. What is counted are masked tokens.
    """
    x, target = net.bert(batch.ids, batch.segments), batch.target
    masked = target != PAD_ID
    read = x
    if target.device.type == "cpu":
        read, target = x[masked][None], target[masked][None]
    loss = token_loss(net.head.hidden(read)[None], net.head.output, target)
    if not net.training or not batch.follows.numel():
        return loss
    follows: Tensor = net.next_sentence(net.pooler(x))
    apart = F.cross_entropy(follows.float(), batch.follows, reduction="none")
    return loss._replace(nats=loss.nats + (apart * masked.sum(1)).sum())


def classification_loss(net: BertClassifier, batch: LabelledBatch, _memory: None = None) -> Loss:
    """Cross-entropy of the class of each text, also as NLL; every text counts the same, however long it is."""
    nats = F.cross_entropy(net(batch.ids).float(), batch.label, reduction="sum")
    return Loss(nats, nats.new_full((), len(batch.label), dtype=torch.long), nats.detach())


def recurrent_loss(net: TransformerXL, batch: SegmentBatch, memory: Sequence[Any] | None = None) -> Loss:
    """Cross-entropy of the next token, given earlier segments (Dai et al. 2019, 3.2), and the memory of this one."""
    before = net.start(len(batch.ids), batch.ids.device) if memory is None else Memory(*memory)
    hidden, after = net(batch.ids, before, batch.document)
    # a non-finite value skips an update, and must not spoil the next ones through the memory
    sound = tuple(torch.where(layer.isfinite(), layer, 0.0) for layer in after.hidden)
    return token_loss(hidden[None], net.output, batch.target)._replace(memory=after._replace(hidden=sound))


def token_loss(
    hidden: Float[Tensor, "P B T D"],
    output: nn.Linear,
    target: Int[Tensor, "B T"],
    smoothing: float = 0.0,
    alpha: float = 0.0,
) -> Loss:
    """Return the loss of the correct tokens, of one pass or two, as `projected_cross_entropy` says.

    `hidden` is projected by `output`; where `target` is padding, none counts.
    """
    real, counted = target != PAD_ID, None
    if target.device.type == "cpu":
        hidden, target = hidden[:, real], target[real]
    else:  # selecting positions would make the CPU wait for the GPU to report their number
        hidden, target, counted = hidden.flatten(1, 2), target.flatten(), real.flatten()
    nats, nll = projected_cross_entropy(hidden, output.weight, output.bias, target, smoothing, alpha, counted)
    return Loss(nats, real.sum(), nll)


# Cross-entropy without the logits of a whole batch, by far the largest tensors of a training step: at 2,000 positions
# and 8,000 tokens, 64 MB each for logits, log-probabilities and gradients. Here they are computed a slice of the
# positions at a time, each with its gradient at once, so that neither forward nor backward ever holds more. On a CPU a
# slice is large enough for matrix products at full speed, while element-wise operations run on smaller pieces that stay
# in a core's own cache.

_SLICE = {"cpu": 2**23, "cuda": 2**27}  # logits per matrix product
_PIECE = {"cpu": 2**19, "cuda": 2**27}  # logits per element-wise operation


def projected_cross_entropy(
    hidden: Float[Tensor, "P N D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    target: Int[Tensor, " N"],
    smoothing: float = 0.0,
    alpha: float = 0.0,
    counted: Bool[Tensor, " N"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Σ H(q, p) in nats, p = softmax(hidden Wᵀ + b), q = (1 - ε) one-hot(target) + ε / V (Szegedy et al. 2016, sec. 7).

    `hidden` is of P passes over N positions. For one pass, with all positions counted, this equals

        F.cross_entropy(F.linear(hidden[0], weight, bias), target, label_smoothing=smoothing, reduction="sum")

    and all that follows only saves memory and time.

    Of two passes over each position Σ ½ (H(q, p₁) + H(q, p₂)) + α/4 (KL(p₁‖p₂) + KL(p₂‖p₁)): half of Liang et al. 2021,
    eq. 4; without dropout it equals the loss of one. `smoothing` is ε; `counted` says which positions count, None: all.

    The second result is Σ -log p(target), the mean of the passes, without gradient: the first where ε = α = 0.
    """
    if not torch.is_grad_enabled():  # a Function is not told that, and would compute gradients that nobody asks for
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    sums: tuple[Tensor, Tensor] = _Projected.apply(hidden, weight, bias, target, smoothing, alpha, counted)
    return sums


class _Projected(torch.autograd.Function):
    """Loss and NLL of hidden Wᵀ + b, summed over all positions; `forward` saves the gradients that `backward` returns.

    Matrix products run in the precision of the surrounding autocast, everything else in single precision or better.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "P N D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, " V"] | None,
        target: Int[Tensor, " N"],
        smoothing: float,
        alpha: float,
        counted: Bool[Tensor, " N"] | None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        device, passes, vocab = hidden.device.type, len(hidden), len(weight)
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        summing = torch.promote_types(precision, torch.float32)
        hidden_low, weight_low = hidden.to(precision), weight.to(precision)
        needed = any(ctx.needs_input_grad)
        if needed:
            hidden_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight)
            bias_grad = None if bias is None else torch.zeros_like(bias)
        nats, nll = (torch.zeros((), device=hidden.device, dtype=summing) for _ in range(2))
        for part in _slices(hidden.size(1), passes * vocab, _SLICE[device]):
            rows = hidden_low[:, part].flatten(0, 1)
            logits = (rows @ weight_low.t()).unflatten(0, (passes, -1))
            for piece in _slices(logits.size(1), passes * vocab, _PIECE[device]):
                at = slice(part.start + piece.start, part.start + piece.stop)
                exact = logits[:, piece].to(summing)
                if bias is not None:
                    exact += bias
                *losses, gradient = _cross_entropy(exact, target[at], smoothing, alpha, needed)
                for total, loss in zip((nats, nll), losses, strict=True):
                    total += loss.sum() if counted is None else (loss * counted[at]).sum()
                if gradient is not None:
                    if counted is not None:
                        gradient *= counted[at, None]
                    if bias_grad is not None:
                        bias_grad += gradient.sum((0, 1))
                    logits[:, piece] = gradient
            if needed:
                flat = logits.flatten(0, 1)
                hidden_grad[:, part] = (flat @ weight_low).unflatten(0, (passes, -1))
                weight_grad += flat.t() @ rows
        if needed:
            ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.mark_non_differentiable(nll)
        return nats, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *(saved * grads[0] if saved is not None else None for saved in ctx.saved_tensors), *[None] * 4


def _cross_entropy(
    logits: Float[Tensor, "P n V"], target: Int[Tensor, " n"], smoothing: float, alpha: float, with_gradient: bool
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Float[Tensor, "P n V"] | None]:
    """Return loss and NLL of n of the N positions, and the loss's gradient; see `projected_cross_entropy`."""
    passes, vocab = len(logits), logits.size(2)
    right = target[None, :, None].expand(passes, -1, 1)
    p = logits.softmax(-1)
    # log Z from the most likely token, whose probability is at least 1 / V and so has a logarithm
    log_z = logits.amax(-1) - p.amax(-1).log()
    z = logits.gather(2, right)[..., 0]
    nll = (log_z - z).sum(0) / passes
    nats = (log_z - (1 - smoothing) * z - smoothing * logits.mean(-1)).sum(0) / passes
    if passes == 2:
        # z₁ - z₂ and z₂ - z₁, times α / 4: they differ from log(p₁ / p₂) and log(p₂ / p₁) by a constant
        apart = (logits - logits.flip(0)).mul_(alpha / 4)
        # KL(p₁‖p₂) + KL(p₂‖p₁) = Σ (p₁ - p₂) log(p₁ / p₂), in which a constant would cancel
        expected = (p * apart).sum(-1, keepdim=True)
        nats = nats + expected.sum((0, 2))
    if not with_gradient:
        return nats, nll, None
    gradient = p
    if passes == 2:
        # ½ (p₁ - q) + α/4 (p₁ - p₂ + p₁ (z₁ - z₂ - its mean under p₁)), and with 1 and 2 exchanged; here without q
        gradient = apart.sub_(expected - (alpha / 4 + 0.5)).mul_(p).sub_(p.flip(0), alpha=alpha / 4)
    gradient.sub_(smoothing / vocab / passes)
    return nats, nll, gradient.scatter_add_(2, right, torch.full_like(right, (smoothing - 1) / passes, dtype=p.dtype))


def require_true_gradients() -> None:
    """Refuse a loss whose gradient, written beside its value, is another: a training would follow it silently.

    Compared are eight positions of one pass and of two, in double precision: a millisecond.
    """
    target = torch.arange(8) % 5
    for passes, alpha in ((1, 0.0), (2, 3.0)):
        logits = torch.sin(torch.arange(passes * 8 * 5, dtype=torch.float64)).view(passes, 8, 5).requires_grad_()
        nats, *_ = _cross_entropy(logits, target, 0.1, alpha, with_gradient=False)
        (right,) = torch.autograd.grad(nats.sum(), logits)
        *_, written = _cross_entropy(logits.detach(), target, 0.1, alpha, with_gradient=True)
        if written is None or not torch.allclose(written, right):
            raise ValueError(
                "in utils/training/loss.py, the gradient that _cross_entropy returns is not that of its value: change "
                "both alike"
            )


def _slices(n_positions: int, width: int, max_logits: int) -> Iterator[slice]:
    step = max(1, max_logits // width)
    return (slice(begin, min(begin + step, n_positions)) for begin in range(0, n_positions, step))
