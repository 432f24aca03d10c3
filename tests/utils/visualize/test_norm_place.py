from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from docs.figures import draw_norm_place, gradient_norms


def test_with_the_norm_last_the_top_of_a_deep_stack_begins_with_the_larger_gradients() -> None:
    first, last = (
        np.mean([gradient_norms(norm_first, seed=seed) for seed in range(2)], 0) for norm_first in (True, False)
    )
    assert first[-1] < 0.7 * first[0]
    assert last[-1] > last[0]
    at_top = last[-1] / first[-1]  # of the order of √12
    assert at_top > max(2, gradient_norms(False, n_layers=2)[-1] / gradient_norms(True, n_layers=2)[-1])


def test_gradients_reach_every_block_and_come_out_the_same_again() -> None:
    state = torch.get_rng_state()
    norms = gradient_norms(True, n_layers=3)
    assert len(norms) == 3
    assert min(norms) > 0
    assert norms == gradient_norms(True, n_layers=3)
    assert norms != gradient_norms(True, n_layers=3, seed=2)
    assert torch.get_rng_state().equal(state)


def test_a_line_for_each_place_is_the_mean_of_its_draws(tmp_path: Path, figures: list[Figure]) -> None:
    draw_norm_place(tmp_path / "norm_place.png")
    (figure,) = figures
    first, last = figure.axes[0].get_lines()
    assert "norm first" in str(first.get_label())
    for line, norm_first in ((first, True), (last, False)):
        draws = [gradient_norms(norm_first, seed=seed) for seed in range(4)]
        np.testing.assert_allclose(np.asarray(line.get_ydata()), np.mean(draws, 0), rtol=1e-5)
