from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from docs.figures import draw_positions, learned_table
from layers.positional_encoding import sinusoid
from models.bert import BertConfig, BertForPreTraining
from tests.tiny import MODEL, translating
from utils.training.checkpoint import write_weights


def written(net: nn.Module, folder: Path) -> Path:
    write_weights(net.state_dict(), folder / "model.safetensors", 0.0)
    return folder / "model.safetensors"


def test_a_translators_table_is_that_of_its_source(tmp_path: Path) -> None:
    net = translating(replace(MODEL, positions="learned"))
    table = learned_table(written(net, tmp_path))
    assert table.equal(net.src_positions.table.weight)  # type: ignore[union-attr, arg-type]


def test_a_bert_has_one(tmp_path: Path) -> None:
    net = BertForPreTraining(BertConfig(d_model=8, n_heads=2, d_ff=8, n_layers=1, max_length=6), 9)
    assert learned_table(written(net, tmp_path)).equal(net.bert.positions.table.weight)


def test_without_one_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no learned positions: train with --model\.positions learned$"):
        learned_table(written(translating(), tmp_path))


def test_a_row_for_each_table_with_its_cosines(tmp_path: Path, figures: list[Figure]) -> None:
    tables = {"waves": sinusoid(6, 4), "learned": torch.randn(5, 8, generator=torch.Generator().manual_seed(0))}
    draw_positions(tables, tmp_path / "positions.png")
    (figure,) = figures
    panels = [axes for axes in figure.axes if axes.images and axes.get_xlabel()]
    shown = [np.asarray(axes.images[0].get_array()) for axes in panels]
    assert [axes.get_title() for axes in panels[::2]] == list(tables)
    for (values, cosines), table in zip(zip(shown[::2], shown[1::2], strict=True), tables.values(), strict=True):
        np.testing.assert_allclose(values, table)
        expected = [[nn.functional.cosine_similarity(a, b, dim=0) for b in table] for a in table]
        np.testing.assert_allclose(cosines, np.array(expected), atol=1e-6)
