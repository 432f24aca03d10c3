from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.transformer import Transformer
from tests.tiny import MODEL, translating, written_out
from utils.search import inspection
from utils.search.inspection import align, mean_cross_attention, pharaoh
from utils.visualize.attention import cross_attention

SOURCES = [[5, 9, 7, 20], [8], [6, 6, 30, 12, 9, 4, 11], [13, 10, 5]]
TARGETS = [[7, 8, 4], [22, 9, 30, 4, 5], [5, 6], [19]]


def last_layer(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    return cross_attention(written_out(model), source, target)[-1].mean(0)[: len(target), : len(source)]


@pytest.mark.parametrize("budget", [1, 12, 8192])
def test_a_target_token_is_linked_to_what_the_last_layer_looks_at_most(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "_TOKENS_PER_BATCH", budget)
    model = translating()
    found = align([model], SOURCES, TARGETS)
    for source, target, links in zip(SOURCES, TARGETS, found, strict=True):
        best = last_layer(model, source, target).argmax(-1).tolist()
        assert links == [(place, t) for t, place in enumerate(best)]
    assert len({source for links in found for source, _ in links}) > 2


def test_several_models_are_asked_for_their_mean() -> None:
    models = [translating(seed=1), translating(seed=2)]
    found = align(models, SOURCES, TARGETS)
    for source, target, links in zip(SOURCES, TARGETS, found, strict=True):
        mean = sum(last_layer(model, source, target) for model in models)
        assert isinstance(mean, Tensor)
        assert [place for place, _ in links] == mean.argmax(-1).tolist()
    assert found != align(models[:1], SOURCES, TARGETS)


@pytest.mark.parametrize("fused", [True, False])
def test_weights_are_those_of_the_pictures_and_rows_sum_to_one(fused: bool) -> None:
    model = translating(replace(MODEL, fused=fused))
    sources, targets = [*SOURCES, [7, 5], []], [*TARGETS, [], [8]]
    for weights, source, target in zip(mean_cross_attention([model], sources, targets), sources, targets, strict=True):
        of_heads = cross_attention(written_out(model), source, target)[-1]
        torch.testing.assert_close(weights, of_heads.mean(0)[:-1])  # the picture's last row chooses </s>
        assert weights.shape == (len(target), len(source) + 1)
        torch.testing.assert_close(weights.sum(1), torch.ones(len(target)))


def test_what_is_empty_has_no_links() -> None:
    assert align([translating()], [[], [5, 6], []], [[4], [], []]) == [[], [], []]
    assert align([translating()], [], []) == []


def test_the_model_is_left_as_it_was() -> None:
    model = translating()
    modules = dict(model.named_modules())
    src, tgt = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]])
    before = model(src, tgt)
    align([model], SOURCES, TARGETS)
    assert dict(model.named_modules()) == modules
    assert model(src, tgt).equal(before)


def test_links_are_written_as_pharaoh_did() -> None:
    assert pharaoh([(0, 0), (2, 1), (2, 2)]) == "0-0 2-1 2-2"
    assert pharaoh([]) == ""
