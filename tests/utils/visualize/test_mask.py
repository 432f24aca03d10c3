from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from const.token import BOS, EOS, PAD
from docs.figures import draw_masks, draw_memory_mask, memory_mask
from layers.probe import recorded_weights
from models.transformer_xl import TransformerXL, TransformerXLConfig

SOURCES = (("京都", "です", EOS), ("雨", EOS, PAD))
TARGETS = ((BOS, "Kyoto"), (BOS, "Rain"))


def drawn(figure: Figure) -> list[list[list[int]]]:
    return [np.asarray(axes.images[0].get_array()).astype(int).tolist() for axes in figure.axes]


def test_each_panel_shows_its_mask(tmp_path: Path, figures: list[Figure]) -> None:
    draw_masks(SOURCES, TARGETS, tmp_path / "masks.png")
    (figure,) = figures
    batch, encoder, decoder, cross = drawn(figure)
    assert batch == [[1, 1, 1], [1, 1, 0]]
    assert encoder == [[1, 1, 0]] * 3
    assert decoder == [[1, 0], [1, 1]]
    assert cross == [[1, 1, 0]] * 2
    assert [text.get_text() for text in figure.axes[0].texts] == [token for row in SOURCES for token in row]
    labels = [tick.get_text() for tick in figure.axes[3].get_xticklabels()]
    assert labels == list(SOURCES[1])
    assert [tick.get_text() for tick in figure.axes[3].get_yticklabels()] == list(TARGETS[1])


def seen(memory: list[int], segment: list[int]) -> Tensor:
    """Positions where a real Transformer-XL has weights above 0."""
    config = TransformerXLConfig(d_model=4, n_heads=1, d_ff=4, n_layers=1, dropout=0.0, memory_length=8, fused=False)
    model = TransformerXL(config, vocab=8).eval()
    attention = model.blocks[0].self_attention.attention  # type: ignore[union-attr]
    state = model.start(1, torch.device("cpu"))
    with torch.inference_mode(), recorded_weights([attention]) as weights:  # type: ignore[list-item]
        for documents in (memory, segment):
            _, state = model(torch.full((1, len(documents)), 5), state, torch.tensor([documents]))
    return weights[-1][0, 0] > 0


@pytest.mark.parametrize(("memory", "segment"), [([0] * 4, [0] * 3), ([0, 1], [1, 1, 2, 2]), ([3], [4])])
def test_a_memory_is_seen_as_transformer_xl_sees_it(memory: list[int], segment: list[int]) -> None:
    assert memory_mask(memory, segment).equal(seen(memory, segment))


def test_the_second_panel_begins_a_document(tmp_path: Path, figures: list[Figure]) -> None:
    draw_memory_mask(["a", "b"], ["c", "d", "e"], 1, tmp_path / "memory.png")
    (figure,) = figures
    assert drawn(figure) == [
        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
        [[1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]],
    ]
    assert figure.axes[1].get_title().endswith("“d”")
