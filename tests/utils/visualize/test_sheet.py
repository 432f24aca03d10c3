from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from PIL import Image

from tests.strict import no_warning
from utils.visualize.attention import draw_cross_attention
from utils.visualize.curve import sheet


def draw(picture: Path) -> bytes:
    with sheet(picture, (3, 2)) as (axes,):
        axes.plot([0, 1], [-1, 1], label="京都 ▁ ε √K f′")
        axes.legend()
    return picture.read_bytes()


def test_the_same_numbers_give_the_same_bytes_whatever_was_drawn_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = draw(tmp_path / "a.png")
    draw_cross_attention(torch.ones(1, 1, 1, 1), ["a"], ["b"], tmp_path / "other.png")  # with fonts of its own
    monkeypatch.setitem(plt.rcParams, "font.size", 20)
    monkeypatch.setitem(plt.rcParams, "axes.facecolor", "black")
    assert draw(tmp_path / "b.png") == first


def test_settings_are_left_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plt.rcParams, "font.family", ["serif"])
    monkeypatch.setitem(plt.rcParams, "lines.linewidth", 7.0)
    draw(tmp_path / "a.png")
    assert plt.rcParams["font.family"] == ["serif"]
    assert plt.rcParams["lines.linewidth"] == 7.0


@no_warning
def test_every_character_has_a_glyph(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")


def test_axes_come_row_by_row_and_as_wide_as_wanted(tmp_path: Path) -> None:
    with sheet(tmp_path / "a.png", (4, 3), rows=2, columns=2, widths=(3, 1)) as axes:
        places = [ax.get_subplotspec() for ax in axes]
    assert [(p.rowspan.start, p.colspan.start) for p in places if p] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert axes[0].get_position().width > 1.5 * axes[1].get_position().width
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (400, 300)


def test_a_picture_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), sheet(tmp_path / "a.png", (2, 2)) as (axes,):
        axes.plot([1 / 0])
    assert list(tmp_path.iterdir()) == []
    assert not plt.get_fignums()
