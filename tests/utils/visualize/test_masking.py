from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from const.token import BOS, EOS
from docs.figures import DRAWN, MASK, Fate, draw_masking, masked_examples
from utils.dataset.masked import MaskingConfig

SENTENCES = ("a b c d e f g h i j", "k l m", "n o p q")
SINGLE = MaskingConfig(rate=0.3, next_sentence=False)


def test_what_is_shown_fits_what_became_of_it() -> None:
    whole = [BOS, *SENTENCES[0].split(), EOS]
    examples = masked_examples(SENTENCES, 40, SINGLE)
    found = set()
    for tokens, fates in examples:
        assert len(tokens) == len(fates) == len(whole)
        assert sum(fate is not Fate.READ for fate in fates) == 3
        for token, fate, right in zip(tokens, fates, whole, strict=True):
            assert (token == MASK) == (fate is Fate.HIDDEN)
            assert (token == right) == (fate in (Fate.READ, Fate.KEPT))
            found.add(fate)
    assert found == set(Fate)


def test_epochs_differ_and_come_again() -> None:
    examples = masked_examples(SENTENCES, 6, SINGLE)
    assert len({tuple(example.fates) for example in examples}) > 3
    assert examples == masked_examples(SENTENCES, 6, SINGLE)


def test_a_cell_for_each_token_in_the_colour_of_its_fate(tmp_path: Path, figures: list[Figure]) -> None:
    draw_masking(SENTENCES, 8, 1, tmp_path / "masking.png")
    (figure,) = figures
    (axes,) = figure.axes
    examples = masked_examples(SENTENCES, 8, MaskingConfig(next_sentence=False))
    assert [text.get_text() for text in axes.texts] == [token for example in examples for token in example.tokens]
    (image,) = axes.images
    assert np.asarray(image.get_array()).tolist() == [list(example.fates) for example in examples]
    legend = axes.get_legend()
    assert legend is not None
    colors = [patch.get_facecolor() for patch in legend.get_patches()]
    np.testing.assert_allclose(image.to_rgba(np.arange(len(Fate))), np.array(colors))
    assert len(set(colors)) == len(Fate)


def test_the_picture_of_the_guide_has_the_shares_of_the_paper(tmp_path: Path, figures: list[Figure]) -> None:
    DRAWN["bert_masking"](tmp_path / "masking.png")
    (image,) = figures[0].axes[0].images
    fates = Counter(np.asarray(image.get_array()).ravel().tolist())
    assert [fates[fate] for fate in (Fate.HIDDEN, Fate.REPLACED, Fate.KEPT)] == [16, 2, 2]
