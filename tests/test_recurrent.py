"""The recurrent translator: its attention pair by pair, and what is shown of it; all else is in test_translators.py."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from config.training import OptimizerConfig
from const.token import BOS_ID, EOS, EOS_ID
from layers.additive_attention import AdditiveAttention
from tests.test_translators import RECURRENT, lively, untrained_run
from tests.tiny import TEXT
from utils.config import RecurrentTranslationConfig
from utils.load import load_run
from utils.search.forced import align, attention_weights, layer_guesses
from utils.task.task import prepare
from utils.visualize.attention import show_attention
from utils.visualize.explain import show_explanation


def test_additive_attention_is_the_formula_pair_by_pair() -> None:
    torch.manual_seed(0)
    attention = AdditiveAttention(5, 7, 3).double()
    query, memory = torch.randn(2, 4, 5).double(), torch.randn(2, 6, 7).double()
    mask = torch.tensor([[[True] * 6], [[True] * 2 + [False] * 4]])
    mixed, weights = attention.attend(query, attention.project(memory), memory, mask)
    w, u, v = attention.query, attention.key.weight, attention.score.weight[0]
    for b, s_len in enumerate((6, 2)):
        for t in range(4):
            scores = [v @ torch.tanh(w(query[b, t]) + u @ memory[b, s]) for s in range(s_len)]
            total = sum(score.exp() for score in scores)
            expected = torch.stack([score.exp() / total for score in scores])
            torch.testing.assert_close(weights[b, t], F.pad(expected, (0, 6 - s_len)))
            torch.testing.assert_close(mixed[b, t], expected @ memory[b, :s_len])


def test_its_attention_is_one_head_of_cross_attention_and_its_decoder_one_layer() -> None:
    model = lively(RECURRENT).float()
    src, tgt = [4, 5, 6], [7, 8]
    (weights,) = attention_weights(model, src, tgt)["cross"]
    assert weights.shape == (1, 3, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 3))
    state = model.start(torch.tensor([[*src, EOS_ID]]))
    for token, row in zip((BOS_ID, *tgt), weights[0], strict=True):
        query = state.hidden[:, None]
        _, expected = model.decoder.attention.attend(query, state.key, state.memory, state.mask)
        torch.testing.assert_close(row, expected[0, 0].detach())
        _, state = model.step(torch.tensor([token]), state)
    (only,) = layer_guesses(model, src, tgt)
    torch.testing.assert_close(only, model(torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]]))[0])
    (links,) = align([model], [src], [tgt])
    assert links == [(int(row[:-1].argmax()), t) for t, row in enumerate(weights[0, :-1])]


def test_its_attention_is_drawn_and_its_layers_are_not_explained(tmp_path: Path) -> None:
    run = load_run(untrained_run(RECURRENT, tmp_path / "pickles"), torch.device("cpu"))
    translator = run.translator()
    for name in ("a.png", "a.html"):
        show_attention(run, translator, TEXT.src[0], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert EOS.replace("<", "\\u003c").replace(">", "\\u003e") in page
    assert '"kind":"encoder"' not in page
    with pytest.raises(ValueError, match=r"is of task recurrent_translation: give the run of a Transformer"):
        show_explanation(run, translator, TEXT.src[0], tmp_path / "e.html")
    muon = replace(run.config, optimizer=OptimizerConfig(kind="muon"))
    assert isinstance(muon, RecurrentTranslationConfig)
    with pytest.raises(ValueError, match=r"optimizer\.kind=muon is for a Transformer's blocks: give --optimizer\.kind"):
        prepare(muon, None, print)
