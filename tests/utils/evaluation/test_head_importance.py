"""The rise of the loss without a head, against networks with the head's weights zeroed."""

import copy

import pytest
import torch

from const.token import PAD_ID
from layers.multi_head_attention import MultiHeadAttention
from models.transformer import Transformer
from tests.tiny import TEXT, run, tokenizers, translating
from utils.dataset.batch import padded
from utils.dataset.text import ParallelText
from utils.evaluation import heads as module
from utils.evaluation.heads import bleu_without, count_heads, head_importance, text_batches
from utils.evaluation.metric import build_metrics
from utils.run import Run, build_translator, load_run
from utils.search.constraint import SearchConfig
from utils.search.inspection import attention_weights, attentions, row_entropy

CPU = torch.device("cpu")
PAIRS = ParallelText(["寺", *TEXT.src[:40:9]], ["A temple.", *TEXT.tgt[:40:9]])  # of different lengths


def cut(model: Transformer, place: int) -> Transformer:
    """The same network with the output projection of one head zeroed; heads are counted over kinds and layers."""
    twin = copy.deepcopy(model)
    every = [(attention, head) for of in attentions(twin).values() for attention in of for head in range(2)]
    attention, head = every[place]
    assert isinstance(attention, MultiHeadAttention)
    with torch.no_grad():
        attention.output.weight[:, 8 * head : 8 * head + 8] = 0
    return twin


@torch.no_grad()
def pair_by_pair(model: Transformer) -> float:
    """Nats per target token, computed pair by pair."""
    nats, n = 0.0, 0
    for source, target in zip(PAIRS.src, PAIRS.tgt, strict=True):
        src = padded(tokenizers().src.encode([source]))
        tgt = padded(tokenizers().tgt.encode([target]), bos=True)
        log_probs = model(src, tgt[:, :-1]).log_softmax(-1)
        nats -= log_probs.gather(-1, tgt[:, 1:, None]).sum().item()
        n += tgt.size(1) - 1
    return nats / n


@pytest.mark.parametrize("budget", [1, 60, 4096])
def test_a_head_is_worth_what_the_loss_rises_without_it(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TOKENS_PER_BATCH", budget)
    model, done = translating(), [0]
    batches = text_batches(PAIRS, tokenizers(), CPU)
    assert (len(batches) == 1) is (budget == 4096)
    found = head_importance(model, batches, lambda n: done.append(done[-1] + n))
    assert found.loss == pytest.approx(pair_by_pair(model), rel=1e-5)
    rises = [pair_by_pair(cut(model, i)) - pair_by_pair(model) for i in range(10)]
    assert [head.loss_rise for head in found.heads] == pytest.approx(rises, abs=1e-4)
    assert len({round(rise, 3) for rise in rises}) == 10
    assert done == list(range(11))
    assert count_heads(model) == 10


def test_heads_are_named_from_the_source_upwards_and_counted_from_one() -> None:
    found = head_importance(translating(), text_batches(PAIRS, tokenizers(), CPU))
    assert [(head.kind, head.layer, head.head) for head in found.heads] == [
        *(("encoder", 1, head) for head in (1, 2)),
        *(("decoder", layer, head) for layer in (1, 2) for head in (1, 2)),
        *(("cross", layer, head) for layer in (1, 2) for head in (1, 2)),
    ]


def test_entropy_is_the_mean_over_all_positions_that_are_no_padding() -> None:
    model = translating()
    found = head_importance(model, text_batches(PAIRS, tokenizers(), CPU))
    (src, tgt) = tokenizers().src.encode(PAIRS.src), tokenizers().tgt.encode(PAIRS.tgt)
    by_pair = [attention_weights(model, *pair) for pair in zip(src, tgt, strict=True)]
    for head in found.heads:
        rows = torch.cat([row_entropy(weights[head.kind][head.layer - 1][head.head - 1]) for weights in by_pair])
        assert head.entropy == pytest.approx(rows.mean().item(), rel=1e-4)


def test_the_network_is_left_as_it_was() -> None:
    model = translating()
    modules = dict(model.named_modules())
    head_importance(model, text_batches(PAIRS, tokenizers(), CPU))
    assert dict(model.named_modules()) == modules
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


# BLEU


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(run(tmp_path_factory.mktemp("pickles")), CPU)


def test_translations_are_found_without_the_head(trained: Run) -> None:
    bleu = build_metrics("en", "char")["BLEU"]  # its output is hardly a word long
    search = SearchConfig(2, max_ratio=1.0)

    def translations(run: Run) -> list[str]:
        return [found.text for found in build_translator([run], search, precision="fp32").translate(PAIRS.src)]

    # the run's output is the reference, so that BLEU is 100 with all heads
    pairs = ParallelText(PAIRS.src, translations(trained))
    whole, without = bleu_without(build_translator([trained], search, precision="fp32"), pairs, bleu)
    assert whole == pytest.approx(100)
    cuts = [trained._replace(model=cut(trained.model, i)) for i in range(10)]
    assert without == pytest.approx([bleu.corpus_score(translations(run), [pairs.tgt]).score for run in cuts])
    assert min(without) < 50


def test_an_ensemble_is_refused(trained: Run) -> None:
    with pytest.raises(ValueError, match=r"not those of an ensemble: give one run$"):
        bleu_without(build_translator([trained, trained]), PAIRS, build_metrics("en", "13a")["BLEU"])


def test_padding_is_what_it_is_taken_for() -> None:
    (batch,) = text_batches(PAIRS, tokenizers(), CPU)
    assert (batch.src == PAD_ID).any()
    assert (batch.tgt == PAD_ID).any()
