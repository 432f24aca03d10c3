"""Training steps as CUDA would make them, on tensors that have a shape, a type and a device, but no values.

Torch checks them where no GPU is at hand: each operation must have all its tensors on one device, and nothing may ask
for a value, for which the CPU would have to wait for the GPU. The engine of `backward` needs a real GPU: gradients of
the right shape stand in for it.
"""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from config.model import BertConfig, ClassifierConfig, TransformerConfig, TransformerXLConfig
from config.training import OptimizerConfig, Precision, TrainingConfig
from layers.dropout import Dropout
from layers.feed_forward import FeedForward
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from train import Trainer
from utils.dataset.batch import AnyBatch, Batch
from utils.dataset.labelled import LabelledBatch
from utils.dataset.masked import MaskedBatch
from utils.dataset.stream import SegmentBatch
from utils.device import product_dtype
from utils.training import loss as loss_module
from utils.training.loss import (
    ClassificationObjective,
    MaskedLanguageObjective,
    Objective,
    RecurrentObjective,
    TranslationObjective,
)
from utils.training.optimizer import Optimizer

CUDA = torch.device("cuda")
VOCAB = 50
SMALL: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 32, "dropout": 0.1}


@pytest.fixture(autouse=True)
def _tensors_without_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def backward(loss: Tensor) -> None:
        assert loss.requires_grad
        assert loss.shape == ()
        for parameter in TRAINED:
            parameter.grad = torch.zeros_like(parameter)

    monkeypatch.setattr(Tensor, "backward", backward)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, **_: tensor)  # which looks at what it has drawn
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


TRAINED: list[nn.Parameter] = []


def ids(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.long, device=CUDA)


def translator() -> nn.Module:
    return Transformer(TransformerConfig(**SMALL, n_encoder_layers=1, n_decoder_layers=1), VOCAB, VOCAB)


def rotary() -> nn.Module:
    config = TransformerConfig(**SMALL, n_encoder_layers=1, n_decoder_layers=1, positions="rotary", norm_first=False)
    return Transformer(config, VOCAB, VOCAB)


def pairs() -> Batch:
    return Batch(ids(4, 7), ids(4, 9))


TASKS: dict[str, tuple[Any, Objective, Any]] = {
    "translation": (translator, TranslationObjective(0.1), pairs),
    "rotary": (rotary, TranslationObjective(0.1), pairs),
    "R-Drop": (translator, TranslationObjective(0.1, 1.0), pairs),
    "masked": (
        lambda: BertForPreTraining(BertConfig(**SMALL, n_layers=1), VOCAB),
        MaskedLanguageObjective(),
        lambda: MaskedBatch(ids(4, 8), ids(4, 8), ids(4, 8), ids(4)),
    ),
    "recurrent": (
        lambda: TransformerXL(TransformerXLConfig(**SMALL, n_layers=1, memory_length=5), VOCAB),
        RecurrentObjective(),
        lambda: SegmentBatch(ids(4, 6), ids(4, 6), ids(4, 6)),
    ),
    "classification": (
        lambda: BertClassifier(ClassifierConfig(**SMALL, n_layers=1), VOCAB, 3),
        ClassificationObjective(),
        lambda: LabelledBatch(ids(4, 8), ids(4)),
    ),
}


def trainer(task: str, kind: Any = "adam", precision: Precision = "bf16") -> tuple[Trainer, AnyBatch]:
    build, objective, batch = TASKS[task]
    with CUDA:
        net = build()
    TRAINED[:] = net.parameters()
    config = OptimizerConfig(kind=kind, ema_decay=0.9, weight_decay=0.1)
    return Trainer(
        net, objective, Optimizer(net, config, precision), TrainingConfig(precision=precision, graphs=False)
    ), batch()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("kind", "precision"), [("adam", "fp32"), ("adam", "fp16"), ("muon", "bf16")])
def test_no_step_waits_for_the_gpu_or_mixes_devices(task: str, kind: Any, precision: Precision) -> None:
    made, batch = trainer(task, kind, precision)
    seen: list[Tensor] = []
    next(part for part in made.net.modules() if isinstance(part, FeedForward)).widen.register_forward_hook(
        lambda _module, _inputs, output: seen.append(output)
    )
    for _ in range(2):  # the second with a memory
        update = made.train_step([batch, batch])
        made.meter.count(9, [], *update)
    assert {value.device.type for value in (*update, cast(Tensor, made.meter.sums.nats))} == {"cuda"}
    assert made.val_step(batch).nats.device.type == "cuda"
    products = {tensor.dtype for tensor in seen}
    assert products == {product_dtype(precision)}


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (Dropout, "forward", lambda self, x: x * torch.ones(())[None].expand(x.shape)),  # noqa: ARG005
        (loss_module, "token_loss", lambda hidden, *_: hidden.sum().item()),
        (loss_module, "token_loss", lambda hidden, *_: hidden[hidden > 0].sum()),
        (Optimizer, "step", lambda self, *_: float(self.skipped)),
    ],
    ids=["device", "item", "shape", "float"],
)
def test_such_a_fault_is_found(owner: Any, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, batch = trainer("translation")
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(Exception, match=r"at least two devices|aten\.\w+"):
        made.train_step([batch])
