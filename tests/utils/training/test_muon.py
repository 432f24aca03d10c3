"""Steps that are orthogonal: against the singular value decomposition, and against torch's own Muon."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from models.bert import BertConfig, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL, TransformerXLConfig
from tests.tiny import MODEL
from utils.training import muon as module
from utils.training.distributed import Processes
from utils.training.muon import Cut, Muon, hidden_matrices, orthogonal
from utils.training.optimizer import MovingAverage

FINITE, ONE = torch.tensor(True), torch.ones(())


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def polar(x: Tensor, _dtype: torch.dtype = torch.float32) -> Tensor:
    """U Vᵀ, decomposed."""
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    return u @ v


def whole(x: Tensor) -> Tensor:
    return x[None]


def muon_of(*matrices: Tensor, momentum: float = 0.0, weight_decay: float = 0.0) -> Muon:
    return Muon(dict.fromkeys(matrices, whole), momentum, weight_decay, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "smallest", "tolerance"), [(torch.float32, -2.5, 1e-3), (torch.bfloat16, -1.5, 0.03)]
)
def test_singular_values_come_near_one_and_their_vectors_stay(
    dtype: torch.dtype, smallest: float, tolerance: float
) -> None:
    values = torch.logspace(smallest, 0, 8)  # of a whole that is little longer than the largest
    u, v = polar(draw(3, 8, 8)), polar(draw(3, 8, 20, seed=1))
    x = 7 * u @ values.diag() @ v
    made = orthogonal(x, dtype).float()
    found = (u.mT @ made @ v.mT).diagonal(dim1=1, dim2=2)
    assert ((found > 0.85) & (found < 1.15)).all()
    rest = made - u @ torch.diag_embed(found) @ v
    assert rest.abs().max() < tolerance


def test_its_length_says_nothing_and_nothing_stays_nothing() -> None:
    x = draw(2, 4, 6)
    torch.testing.assert_close(orthogonal(1000 * x), orthogonal(x))
    assert not orthogonal(torch.zeros(1, 4, 6)).any()


def test_it_steps_as_its_authors_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jordan et al. 2024, with Nesterov's momentum; the size of Liu et al. 2025, section 2.2; a shrink before it."""
    monkeypatch.setattr(module, "orthogonal", polar)
    weight = nn.Parameter(draw(4, 6))
    muon = muon_of(weight, momentum=0.9, weight_decay=0.5)
    expected, mean = weight.detach().clone(), torch.zeros(4, 6)
    for seed, rate in ((1, 0.1), (2, 0.3), (3, 0.2)):
        weight.grad = draw(4, 6, seed=seed)
        mean = 0.9 * mean + 0.1 * weight.grad / 5
        ahead = 0.9 * mean + 0.1 * weight.grad / 5
        expected = expected * (1 - 0.5 * rate) - rate * 0.2 * math.sqrt(6) * polar(ahead)
        muon.step(rate, torch.tensor(5.0), FINITE)
        torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("shape", [(24, 48), (32, 32)])
def test_it_goes_where_torchs_muon_goes(shape: tuple[int, int]) -> None:
    """Whose polynomials leave singular values between 0.7 and 1.2."""
    ours, theirs = nn.Parameter(draw(*shape)), nn.Parameter(draw(*shape))
    muon = muon_of(ours, momentum=0.95)
    reference = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for seed in range(1, 5):
        before = ours.detach().clone(), theirs.detach().clone()
        ours.grad, theirs.grad = draw(*shape, seed=seed), draw(*shape, seed=seed)
        muon.step(0.02, ONE, FINITE)
        reference.step()
        moved = (ours - before[0]).flatten(), (theirs - before[1]).flatten()
        assert torch.cosine_similarity(*moved, dim=0) > 0.97
        assert moved[0].norm().item() == pytest.approx(moved[1].norm().item(), rel=0.25)


def test_a_step_is_a_fifth_of_the_rate_whatever_the_shape() -> None:
    wide, high = nn.Parameter(torch.zeros(8, 32)), nn.Parameter(torch.zeros(32, 8))
    muon = Muon(hidden_like(wide, high), 0.0, 0.0, torch.float32)
    wide.grad, high.grad = draw(8, 32), draw(32, 8, seed=1)
    muon.step(0.5, ONE, FINITE)
    for weight in (wide, high):
        assert weight.square().mean().sqrt().item() == pytest.approx(0.1, rel=0.1)


def hidden_like(*matrices: Tensor) -> dict[Tensor, Cut]:
    """Cut as those of a feed-forward layer are."""
    net = bert()
    return dict.fromkeys(matrices, hidden_matrices(net)[net.get_parameter("bert.encoder.0.feed_forward.widen.weight")])


def bert() -> BertForPreTraining:
    return BertForPreTraining(BertConfig(16, 2, 64, 2, max_length=40), 50)


def translator(**options: object) -> Transformer:
    return Transformer(replace(MODEL, **options), 40, 40)  # type: ignore[arg-type]


def language_model() -> TransformerXL:
    return TransformerXL(TransformerXLConfig(16, 4, 32, 2, memory_length=10), 50)


@pytest.mark.parametrize("net", [translator(), translator(tie="none"), bert(), language_model()])
def test_matrices_of_blocks_are_cut_and_nothing_else(net: nn.Module) -> None:
    names: dict[Tensor, str] = {parameter: name for name, parameter in net.named_parameters()}
    cut = {names[weight] for weight in hidden_matrices(net)}
    expected = {
        name
        for name, parameter in net.named_parameters()
        if parameter.dim() == 2 and name.endswith(".weight") and any(part.isdigit() for part in name.split("."))
    }
    assert cut == expected
    assert len(cut) >= 10
    assert not any(word in name for name in cut for word in ("embedding", "pool", "classifier"))


def test_heads_are_matrices_of_their_own() -> None:
    """As slices of what they multiply: W_Qⁱ, W_Kⁱ and W_Vⁱ are rows, W_Oⁱ columns."""
    net = language_model()
    attention = net.get_submodule("blocks.0.self_attention")
    cuts = hidden_matrices(net)
    by_name = {name: cuts[p](p) for name, p in net.named_parameters() if p in cuts and "blocks.0" in name}
    for name in ("query", "key_value", "score_bias.distance_key"):
        weight = attention.get_parameter(f"{name}.weight")
        found = by_name[f"blocks.0.self_attention.{name}.weight"]
        assert found.shape == (len(weight) // 4, 4, 16)
        torch.testing.assert_close(found[1], weight[4:8])
    output = attention.get_parameter("output.weight")
    torch.testing.assert_close(by_name["blocks.0.self_attention.output.weight"][1], output[:, 4:8].mT)


def test_every_matrix_takes_its_own_step() -> None:
    """Together, in batches of a shape, they move as each would alone."""
    together, alone = translator(), translator()
    alone.load_state_dict(together.state_dict())
    start = [parameter.detach().clone() for parameter in alone.parameters()]
    for seed, (one, other) in enumerate(zip(together.parameters(), alone.parameters(), strict=True)):
        one.grad = other.grad = draw(*one.shape, seed=seed)
    Muon(hidden_matrices(together), 0.9, 0.1, torch.float32).step(0.1, ONE, FINITE)
    for weight, cut in hidden_matrices(alone).items():
        Muon({weight: cut}, 0.9, 0.1, torch.float32).step(0.1, ONE, FINITE)
    torch.testing.assert_close(together.state_dict(), alone.state_dict())
    moved = {p for p, before in zip(alone.parameters(), start, strict=True) if not p.equal(before)}
    assert moved == set(hidden_matrices(alone))


class Recorder(Processes):
    """One of three, who hears nothing of the others and writes down what it would tell them."""

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        self.told = [tensor.clone() for tensor in tensors]


def test_processes_share_the_work() -> None:
    """Four, then two matrices of another shape for three: what each tells is its own, and together it is all."""

    def told(processes: Recorder) -> list[Tensor]:
        weights = [nn.Parameter(draw(8, 32, seed=i)) for i in range(4)] + [nn.Parameter(draw(6, 6)) for _ in range(2)]
        muon = Muon(hidden_like(*weights), 0.9, 0.0, torch.float32, processes)
        for i, weight in enumerate(weights):
            weight.grad = draw(*weight.shape, seed=10 + i)
        muon.step(0.1, ONE, FINITE)
        return processes.told

    alone, shares = told(Recorder()), [told(Recorder(rank, 3)) for rank in range(3)]
    for whole, *parts in zip(alone, *shares, strict=True):
        torch.testing.assert_close(sum(parts), whole)
        made = torch.stack([part.flatten(1).any(1) for part in parts])
        assert made.sum(0).eq(1).all()
        assert made.sum(1).max() == math.ceil(len(whole) / 3)


def test_what_is_not_finite_moves_nothing_and_is_forgotten() -> None:
    weight, twin = nn.Parameter(draw(4, 6)), nn.Parameter(draw(4, 6))
    muon, other = (muon_of(each, momentum=0.9, weight_decay=0.1) for each in (weight, twin))
    for seed, bad in ((1, None), (2, math.nan), (3, math.inf), (4, None)):
        gradient = draw(4, 6, seed=seed)
        if bad is None:
            twin.grad = gradient
            other.step(0.1, ONE, FINITE)
        else:
            gradient[1, 2] = bad
        weight.grad = gradient
        muon.step(0.1, ONE, torch.tensor(bad is None))
        assert weight.equal(twin)


def test_a_state_brings_the_momentum_back() -> None:
    weight, twin = nn.Parameter(draw(4, 6)), nn.Parameter(draw(4, 6))
    muon, second = muon_of(weight, momentum=0.9), muon_of(twin, momentum=0.9)
    weight.grad = draw(4, 6, seed=1)
    muon.step(0.1, ONE, FINITE)
    second.load_state_dict(muon.state_dict())
    with torch.no_grad():
        twin.copy_(weight)
    for each, of in ((muon, weight), (second, twin)):
        of.grad = draw(4, 6, seed=2)
        each.step(0.1, ONE, FINITE)
    assert weight.equal(twin)


def test_a_parameter_without_a_gradient_stays() -> None:
    weight = nn.Parameter(draw(4, 6))
    muon_of(weight, momentum=0.9).step(0.1, ONE, FINITE)
    assert weight.equal(draw(4, 6))


def test_it_moves_the_weights_themselves_after_their_average_was_used() -> None:
    net = nn.Linear(6, 4, bias=False)
    muon, average = muon_of(net.weight), MovingAverage(net, 0.9)
    with average.swapped():
        pass
    before = net.weight.detach().clone()
    net.weight.grad = draw(4, 6)
    muon.step(0.1, ONE, FINITE)
    assert not net.weight.equal(before)
