import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray
from PIL import Image

from const.token import BOS_ID, EOS, EOS_ID
from layers.recorded_weights import recorded_weights
from models.transformer import Transformer
from tests.tiny import MODEL, TEXT, tokenizers, translating
from utils.visualize.attention import cross_attention, draw_cross_attention

EXPLICIT = replace(MODEL, fused=False)
SRC, TGT = [5, 6, 7, 8, 9], [10, 11, 12]


def hooks(model: Transformer) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_each_target_token_spreads_one_over_the_source() -> None:
    weights = cross_attention(translating(EXPLICIT), SRC, TGT)
    assert weights.shape == (2, 2, 4, 6)  # layers, heads, target and </s>, source and </s>
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 4))
    assert weights.std() > 0.01


def test_a_row_is_of_the_step_that_chose_its_token() -> None:
    """Row t was made before token t was known: by one cached step for each token before it."""
    model = translating(EXPLICIT)
    weights = cross_attention(model, SRC, TGT)
    attentions = [block.cross_attention.attention for block in model.decoder]  # type: ignore[union-attr]
    with torch.no_grad(), recorded_weights(attentions) as steps:  # type: ignore[arg-type]
        state = model.start(torch.tensor([[*SRC, EOS_ID]]))
        for token in (BOS_ID, *TGT):
            _, state = model.step(torch.tensor([token]), state)
    by_step = torch.stack([torch.cat(steps[t : t + 2])[:, :, 0] for t in range(0, len(steps), 2)], dim=2)
    torch.testing.assert_close(weights, by_step)


def test_it_leaves_the_network_as_it_was() -> None:
    model = translating(EXPLICIT)
    cross_attention(model, SRC, TGT)
    assert hooks(model) == 0


def test_dropout_does_not_show() -> None:
    model = translating(replace(EXPLICIT, dropout=0.5, attention_dropout=0.5)).train()
    assert cross_attention(model, SRC, TGT).equal(cross_attention(model.train(), SRC, TGT))


def test_a_fused_network_is_refused_with_the_remedy() -> None:
    model = translating()
    with pytest.raises(ValueError, match=r"no weights to show: use .*, fused=False$"):
        cross_attention(model, SRC, TGT)
    assert hooks(model) == 0


def test_the_picture_is_large_enough_and_has_a_glyph_for_every_token(tmp_path: Path) -> None:
    picture = tmp_path / "attention.png"
    src, tgt = tokenizers()
    src_tokens = [*src.tokens(src.encode(TEXT.src[:1])[0]), "鬱", "ヴ", EOS]
    tgt_tokens = [*tgt.tokens(tgt.encode(TEXT.tgt[:1])[0]), EOS]
    assert any("▁" in token for token in src_tokens)
    weights = torch.rand(2, 2, len(tgt_tokens), len(src_tokens))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            draw_cross_attention(weights, src_tokens, tgt_tokens, picture)
    with Image.open(picture) as image:
        image.load()
        assert image.format == "PNG"
        assert image.width > 2 * 25 * len(src_tokens)  # legible: so many pixels a token and layer
        assert image.height > 25 * len(tgt_tokens)
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 100
    assert [file.name for file in tmp_path.iterdir()] == ["attention.png"]
    assert not plt.get_fignums()


def test_a_picture_shows_the_mean_over_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[NDArray[np.float32]] = []
    imshow = Axes.imshow

    def watched(ax, x, **rest):  # type: ignore[no-untyped-def]
        shown.append(x)
        return imshow(ax, x, **rest)

    monkeypatch.setattr(Axes, "imshow", watched)
    weights = torch.rand(2, 2, 2, 3)
    draw_cross_attention(weights, ["a", "b", EOS], ["c", EOS], tmp_path / "attention.png")
    np.testing.assert_allclose(np.stack(shown), (weights[:, 0] + weights[:, 1]) / 2, rtol=1e-5)


def test_an_empty_translation_can_be_drawn(tmp_path: Path) -> None:
    weights = cross_attention(translating(EXPLICIT), SRC, [])
    assert weights.shape == (2, 2, 1, 6)
    draw_cross_attention(weights, [*"abcde", EOS], [EOS], tmp_path / "attention.png")
    assert (tmp_path / "attention.png").stat().st_size > 1000
