from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from utils.evaluation.heads import Head, Importance, draw_head_importance, importance_table

HEADS = [
    *(Head("encoder", layer, head, 0.1 * layer - 0.15 * head, 0.2 * head) for layer in (1, 2, 3) for head in (1, 2)),
    *(Head("cross", layer, head, 0.01 * head, 1.5 + layer) for layer in (1, 2) for head in (1, 2, 3)),
]
FOUND = Importance(2.34567, HEADS)
WITH_BLEU = Importance(2.34567, [replace(head, bleu_change=-float(i)) for i, head in enumerate(HEADS)], 31.256)


def test_the_table_has_a_line_for_each_head() -> None:
    whole, blank, _, names, *rows = importance_table(FOUND)
    assert whole == "with all heads: loss 2.3457 nats per target token"
    assert blank == ""
    assert names.split() == ["attention", "layer", "head", "loss", "entropy"]
    assert rows[0].split() == ["encoder", "self-attention", "1", "1", "-0.0500", "0.200"]
    assert rows[-1].split() == ["cross-attention", "2", "3", "+0.0300", "3.500"]
    assert len(rows) == 12


def test_bleu_stands_where_it_was_asked_for() -> None:
    whole, _, _, names, *rows = importance_table(WITH_BLEU)
    assert whole.endswith(", BLEU 31.26")
    assert names.split() == ["attention", "layer", "head", "loss", "BLEU", "entropy"]
    assert rows[3].split()[-3:] == ["-0.1000", "-3.00", "0.400"]


def test_what_bleu_loses_is_the_difference() -> None:
    found = FOUND.with_bleu(30.0, [30.0 - i for i in range(12)])
    assert found.bleu == 30
    assert [head.bleu_change for head in found.heads] == [-i for i in range(12)]
    assert [replace(head, bleu_change=None) for head in found.heads] == FOUND.heads


def test_the_picture_has_a_map_of_each_kind_with_a_cell_for_each_head(tmp_path: Path, figures: list[Figure]) -> None:
    draw_head_importance(FOUND, "a run, dev", tmp_path / "new" / "heads.png")
    with Image.open(tmp_path / "new" / "heads.png") as image:
        image.load()
        assert image.format == "PNG"
    (figure,) = figures
    maps = [ax for ax in figure.axes if ax.images]
    assert [ax.get_title() for ax in maps[:2]] == ["encoder self-attention", "cross-attention"]
    shown = [np.asarray(ax.images[0].get_array()) for ax in maps]
    expected = [
        [[getattr(head, field) for head in HEADS if (head.kind, head.layer) == (kind, layer)] for layer in layers]
        for field in ("loss_rise", "entropy")
        for kind, layers in (("encoder", (1, 2, 3)), ("cross", (1, 2)))
    ]
    for ours, theirs in zip(shown, expected, strict=True):
        np.testing.assert_allclose(ours, theirs)
    assert [text.get_text() for text in maps[3].texts] == ["2.50"] * 3 + ["3.50"] * 3
    for ax in maps[:2]:
        least, most = ax.images[0].get_clim()
        assert -least == most == pytest.approx(0.2)  # no change is white
    assert not plt.get_fignums()


def test_layers_may_have_heads_of_unlike_number(tmp_path: Path, figures: list[Figure]) -> None:
    heads = [*HEADS[:6], Head("encoder", 4, 3, 0.5, 1.0)]
    draw_head_importance(Importance(1.0, heads), "", tmp_path / "heads.png")
    assert np.isnan(np.asarray(figures[0].axes[0].images[0].get_array().filled(np.nan))).sum() == 5  # type: ignore[union-attr]
