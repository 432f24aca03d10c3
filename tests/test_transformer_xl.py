"""Transformer-XL: against the paper's equations, its memory against one long sequence, and what must not matter."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from config.model import TransformerXLConfig
from layers.packed import packed
from layers.positional_encoding import sinusoid
from layers.relative_position_bias import RelativePositionBias
from models.transformer_xl import Memory, TransformerXL
from tests.tiny import assert_learned, drawn

TINY = TransformerXLConfig(d_model=8, n_heads=2, d_ff=12, n_layers=3, dropout=0.0, memory_length=20)
VOCAB = 11
B, L = 3, 9
CPU = torch.device("cpu")
IDS = torch.randint(4, VOCAB, (B, L), generator=torch.Generator().manual_seed(0))

fused_or_not = pytest.mark.parametrize("config", [TINY, replace(TINY, fused=False)], ids=["fused", "explicit"])
tied = pytest.mark.parametrize("config", [TINY, replace(TINY, tie=False)], ids=["tied", "untied"])


def lively(config: TransformerXLConfig = TINY) -> TransformerXL:
    """In float64 and with every weight drawn, so that a forgotten bias or a norm in the wrong place shows."""
    torch.manual_seed(0)
    return drawn(TransformerXL(config, VOCAB).double())


def read(
    model: TransformerXL,
    ids: Tensor,
    splits: Sequence[int] = (),
    document: Tensor | None = None,
    memory_length: int | None = None,
) -> tuple[Tensor, Memory]:
    """The hidden states of a text that is read in segments, split before these places."""
    memory, parts = model.start(len(ids), CPU), []
    for begin, end in zip((0, *splits), (*splits, ids.size(1)), strict=True):
        of = None if document is None else document[:, begin:end]
        hidden, memory = model(ids[:, begin:end], memory, of, memory_length)
        parts.append(hidden)
    return torch.cat(parts, 1), memory


# oracle


def by_the_paper(model: TransformerXL, ids: Tensor, sees: Tensor) -> Tensor:
    """Logits for one row of ids by Dai et al. 2019, 3.3, a pair of positions at a time; sees[i, j]: i looks at j."""
    weight: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    n_heads, width = weight["u"].shape
    x = weight["embedding.weight"][ids] * math.sqrt(model.config.d_model)
    distance = sinusoid(len(ids), model.config.d_model).double()
    for n in range(model.config.n_layers):
        own = {name.removeprefix(f"blocks.{n}."): value for name, value in weight.items()}

        def linear(name: str, x: Tensor, own: dict[str, Tensor] = own) -> Tensor:
            return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]

        q, (k, value) = linear("self_attention.query", x), linear("self_attention.key_value", x).chunk(2, -1)
        r = distance @ own["self_attention.score_bias.distance_key.weight"].T
        q, k, value, r = (part.unflatten(-1, (n_heads, width)) for part in (q, k, value, r))
        heads = torch.zeros_like(q)
        for i in range(len(ids)):
            for h in range(n_heads):
                places = [j for j in range(i + 1) if sees[i, j]]
                scores = torch.stack(
                    [
                        q[i, h] @ k[j, h]  # (a)
                        + q[i, h] @ r[i - j, h]  # (b)
                        + weight["u"][h] @ k[j, h]  # (c)
                        + weight["v"][h] @ r[i - j, h]  # (d)
                        for j in places
                    ]
                )
                heads[i, h] = (scores / math.sqrt(width)).softmax(0) @ value[places, h]
        norm = {name: (own[f"around_{name}.norm.weight"], own[f"around_{name}.norm.bias"]) for name in ("self", "feed")}
        x = F.layer_norm(x + linear("self_attention.output", heads.flatten(1)), (x.size(1),), *norm["self"])
        fed = linear("feed_forward.narrow", linear("feed_forward.widen", x).relu())
        x = F.layer_norm(x + fed, (x.size(1),), *norm["feed"])
    logits = x @ weight["output.weight"].T
    return logits if model.config.tie else logits + weight["output.bias"]


EVERYTHING = torch.ones(L, L).bool()


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("splits", [(), (5,), (2, 3), (1, 2, 8)], ids=str)
@torch.no_grad()
def test_segments_with_memory_are_the_papers_equations_over_the_whole(
    fused: bool, tie: bool, splits: tuple[int, ...]
) -> None:
    model = lively(replace(TINY, fused=fused, tie=tie))
    hidden, _ = read(model, IDS[:1], splits)
    expected = by_the_paper(model, IDS[0], EVERYTHING)
    torch.testing.assert_close(model.output(hidden)[0], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_documents_are_the_papers_equations_over_what_is_of_one_document() -> None:
    model, document = lively(), torch.tensor([[7, 7, 7, 4, 4, 4, 4, 9, 9]])
    hidden, _ = read(model, IDS[:1], (2, 6), document)
    expected = by_the_paper(model, IDS[0], document[0, :, None] == document[0])
    torch.testing.assert_close(model.output(hidden)[0], expected, atol=1e-5, rtol=0)


# twin path: segments and the whole


@fused_or_not
@pytest.mark.parametrize("splits", [(4,), (8,), (2, 3), (3, 4, 5), (*range(1, L),)], ids=str)
@pytest.mark.parametrize("learning", [False, True], ids=["inference", "learning"])
def test_segments_with_memory_are_one_long_sequence(
    config: TransformerXLConfig, splits: tuple[int, ...], learning: bool
) -> None:
    model = lively(config)
    with torch.set_grad_enabled(learning):
        whole, remembered = read(model, IDS)
        hidden, memory = read(model, IDS, splits)
        _, before_last = read(model, IDS[:, :-1], splits[:-1] if splits[-1] == L - 1 else splits)
        torch.testing.assert_close(model.step(IDS[:, -1], before_last)[0], model.output(whole[:, -1]))
    torch.testing.assert_close(hidden, whole)
    for ours, theirs in zip(memory.hidden, remembered.hidden, strict=True):
        assert ours.shape == (B, L, 8)
        torch.testing.assert_close(ours, theirs)


# the memory


@pytest.mark.parametrize("memory_length", [0, 1, 2, 5, 100])
@pytest.mark.parametrize("splits", [(), (3,), (2, 4, 5)], ids=str)
def test_it_holds_the_last_positions_as_each_layer_read_them(memory_length: int, splits: tuple[int, ...]) -> None:
    model, document = lively(), torch.arange(L).expand(B, -1) // 4
    _, memory = read(model, IDS, splits, document, memory_length)
    kept = min(memory_length, L)
    assert memory.document.equal(document[:, L - kept :])
    assert [x.shape for x in memory.hidden] == [(B, kept, 8)] * 3
    embedded = model.embedding(IDS[:, L - kept :])
    torch.testing.assert_close(memory.hidden[0], embedded)


@pytest.mark.parametrize("memory_length", [0, 1, 2, 4])
@torch.no_grad()
def test_a_shorter_memory_hides_what_lies_further_back(memory_length: int) -> None:
    """A segment after a short memory is one after a long memory of which the older positions are masked."""
    model, n, size = lively(), 5, 4
    _, long = read(model, IDS[:, :n])
    _, short = read(model, IDS[:, :n], memory_length=memory_length)
    hidden, _ = model(IDS[:, n:], short)
    older = (torch.arange(n) < n - memory_length).long()
    masked = long._replace(document=-7 * older.expand(B, -1))  # of another document, so that nobody looks there
    expected, _ = model(IDS[:, n:], masked, torch.zeros(B, size, dtype=torch.long))
    torch.testing.assert_close(hidden, expected)
    assert (hidden - model(IDS[:, n:], long)[0]).abs().max() > 1e-3


@torch.no_grad()
def test_without_another_wish_it_is_as_long_as_in_training() -> None:
    model = lively(replace(TINY, memory_length=4))
    assert read(model, IDS)[1].document.size(1) == 4
    assert model.step(IDS[:, 0], read(model, IDS)[1])[1].document.size(1) == 4
    assert model.step(IDS[:, 0], read(model, IDS)[1], 2)[1].document.size(1) == 2
    assert read(model, IDS, memory_length=6)[1].document.size(1) == 6
    assert read(lively(replace(TINY, memory_length=0)), IDS)[1].document.size(1) == 0


def test_no_gradient_flows_into_it() -> None:
    model = lively()
    embedded: list[Tensor] = []
    model.embedding.register_forward_hook(lambda _module, _inputs, output: embedded.append(output))
    before, memory = model(IDS[:, :4], model.start(B, CPU))
    after, _ = model(IDS[:, 4:], memory)
    assert not any(x.requires_grad for x in memory.hidden)
    assert before.requires_grad
    first, second = torch.autograd.grad(after.square().sum(), embedded, allow_unused=True)
    assert first is None
    assert second.abs().amax(-1).min() > 1e-6


def test_what_is_remembered_is_a_copy_that_keeps_nothing_else_alive() -> None:
    _, memory = read(lively(), IDS, (4,), memory_length=2)
    for x in (*memory.hidden, memory.document):
        assert x.untyped_storage().nbytes() == x.numel() * x.element_size()


def test_it_is_a_value_that_can_be_gone_on_from_twice_in_any_rows() -> None:
    model, rows = lively(), torch.tensor([2, 0, 2, 1])
    _, memory = read(model, IDS[:, :5])
    first, _ = model(IDS[:, 5:], memory)
    model(IDS[:, 3:], memory)
    model.step(IDS[:2, 1], memory.select(torch.tensor([1, 0])))
    assert model(IDS[:, 5:], memory)[0].equal(first)
    torch.testing.assert_close(model(IDS[rows, 5:], memory.select(rows))[0], first[rows])


# invariance


@pytest.mark.parametrize("splits", [(), (4,)], ids=str)
@pytest.mark.parametrize("changed", [1, 4, 8])
def test_the_future_changes_nothing_before_it(changed: int, splits: tuple[int, ...]) -> None:
    model, other = lively(), IDS.clone()
    other[:, changed] = 3
    before, after = (read(model, ids, splits)[0] for ids in (IDS, other))
    torch.testing.assert_close(before[:, :changed], after[:, :changed])
    assert (before[:, changed:] - after[:, changed:]).abs().amax(-1).min() > 1e-6


@pytest.mark.parametrize("splits", [(), (4,), (2, 5)], ids=str)
@fused_or_not
@torch.no_grad()
def test_documents_know_nothing_of_each_other(config: TransformerXLConfig, splits: tuple[int, ...]) -> None:
    model = lively(config)
    document = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [5] * 9, [1, 2, 2, 2, 2, 2, 2, 2, 2]])
    whole, _ = read(model, IDS, splits, document)
    other = torch.where(document == 1, 3, IDS)
    changed, _ = read(model, other, splits, document)
    torch.testing.assert_close(changed[document != 1], whole[document != 1])
    assert (changed - whole)[document == 1].abs().amax(-1).min() > 1e-6
    for row in range(B):
        for number in document[row].unique():
            own = document[row] == number
            alone, _ = read(model, IDS[row : row + 1, own])
            torch.testing.assert_close(whole[row, own], alone[0])


@torch.no_grad()
def test_without_numbers_the_document_that_was_read_last_goes_on() -> None:
    model, document = lively(), torch.tensor([[3, 3, 8, 8]]).expand(B, -1)
    _, memory = read(model, IDS[:, :4], document=document)
    named = torch.full((B, 5), 8)
    expected, remembered = model(IDS[:, 4:], memory, named)
    hidden, memory = model(IDS[:, 4:], memory)
    assert hidden.equal(expected)
    assert memory.document.equal(remembered.document)


@fused_or_not
@pytest.mark.parametrize("splits", [(), (4,), (6,)], ids=str)
def test_padding_behind_changes_nothing_and_makes_no_nan(config: TransformerXLConfig, splits: tuple[int, ...]) -> None:
    model, lengths = lively(config), [9, 5, 1]
    real = torch.arange(L) < torch.tensor(lengths)[:, None]
    hidden, _ = read(model, IDS * real, splits, torch.where(real, 6, -1))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(hidden[row, :length], read(model, IDS[row : row + 1, :length])[0][0])
    hidden.square().sum().backward()
    assert hidden.isfinite().all()
    assert_learned(model, -1)


# weights


@tied
@torch.no_grad()
def test_a_checkpoint_read_back_gives_the_same_and_shares_the_same(config: TransformerXLConfig) -> None:
    model, other = lively(config), TransformerXL(config, VOCAB).double()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    other.load_state_dict(state)
    assert read(other, IDS, (4,))[0].equal(read(model, IDS, (4,))[0])
    assert other.output(model.embedding(IDS)).equal(model.output(model.embedding(IDS)))
    assert (other.output.weight is other.embedding.weight) == config.tie
    assert all(part.u is other.u for part in other.modules() if isinstance(part, RelativePositionBias))
    assert all(state[name].equal(state["u"]) for name in state if name.endswith(".u"))


@tied
def test_the_gradient_reaches_every_parameter(config: TransformerXLConfig) -> None:
    torch.manual_seed(0)
    model = TransformerXL(config, VOCAB)
    for parameter in (model.u, model.v):  # which begin small and apart
        assert parameter.std().item() == pytest.approx(0.02, rel=0.5)
    assert not model.u.equal(model.v)
    _, memory = read(model, IDS[:, :4])
    hidden, _ = model(IDS[:, 4:-1], memory)
    F.cross_entropy(model.output(hidden).flatten(0, 1), IDS[:, 5:].flatten()).backward()
    assert_learned(model, 1e-6)


def test_parameter_count() -> None:
    """Five matrices an attention, the fifth without a bias; u and v once for all sixteen layers."""
    with torch.device("meta"):
        model = TransformerXL(TransformerXLConfig(), 32000)
    d, f = 410, 2100
    layer = 5 * d * d + 4 * d + (2 * d * f + f + d) + 4 * d
    assert sum(parameter.numel() for parameter in model.parameters()) == 32000 * d + 16 * layer + 2 * d


# dropout, precision, errors


def test_embeddings_and_output_are_dropped_and_the_memory_is_what_the_layers_read() -> None:
    torch.manual_seed(0)
    model = TransformerXL(replace(TINY, dropout=0.5), VOCAB)
    ids = torch.full((50, 4), 5)
    hidden, memory = read(model, ids)
    for x in (hidden, memory.hidden[0]):
        assert (x == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    model.eval()
    assert read(model, ids)[0].equal(read(model, ids)[0])


@torch.no_grad()
def test_packed_it_says_the_same_and_half_precision_stays_near_full_precision() -> None:
    torch.manual_seed(0)
    model = TransformerXL(TINY, VOCAB).eval()
    (full, _), copy = read(model, IDS), packed(model, torch.float32)
    hidden, memory = read(copy, IDS[:, :-1], (4,))
    torch.testing.assert_close(hidden, full[:, :-1])
    torch.testing.assert_close(copy.step(IDS[:, -1], memory)[0], model.output(full[:, -1]))
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = read(model, IDS, (4,))
    for low in half, read(packed(model, torch.bfloat16), IDS, (4,))[0]:
        torch.testing.assert_close(low.float(), full, atol=0.1, rtol=0)


# learning


def test_it_learns_what_only_a_memory_can_know() -> None:
    """Four random tokens again and again, read by twos: what comes next was never in the segment itself."""
    nats = {}
    for memory_length in (0, 4):
        torch.manual_seed(0)
        model = TransformerXL(replace(TINY, d_model=32, d_ff=64, n_layers=1, memory_length=memory_length), 12)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
        for _ in range(60):
            text = torch.randint(4, 12, (32, 4)).repeat(1, 3)
            hidden, _ = read(model, text[:, :8], (2, 4, 6))
            loss = F.cross_entropy(model.output(hidden[:, 4:]).flatten(0, 1), text[:, 5:9].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        nats[memory_length] = loss.item()
    assert nats[4] < 0.5
    assert nats[0] > 0.9 * math.log(8)
