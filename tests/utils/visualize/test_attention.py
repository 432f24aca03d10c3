from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from const.token import BOS_ID, EOS, EOS_ID
from layers.probe import recorded_weights
from models.transformer import Transformer
from tests.strict import no_warning
from tests.tiny import MODEL, TEXT, tokenizers, translating
from utils.search.inspection import AttentionMap, Kind, attention_entropy
from utils.visualize import attention
from utils.visualize.attention import Attended, cross_attention, draw_attention, draw_cross_attention, draw_heads

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
    """Row t was computed before token t was known: by one cached step for each earlier token."""
    model = translating(EXPLICIT)
    weights = cross_attention(model, SRC, TGT)
    attentions = [block.cross_attention for block in model.decoder]
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


def test_a_fused_network_shows_the_same() -> None:
    torch.testing.assert_close(
        cross_attention(translating(), SRC, TGT), cross_attention(translating(EXPLICIT), SRC, TGT), atol=1e-5, rtol=1e-4
    )


@no_warning
def test_the_picture_is_large_enough_and_has_a_glyph_for_every_token(tmp_path: Path) -> None:
    picture = tmp_path / "attention.png"
    src, tgt = tokenizers()
    src_tokens = [*src.tokens(src.encode(TEXT.src[:1])[0]), "鬱", "ヴ", EOS]
    tgt_tokens = [*tgt.tokens(tgt.encode(TEXT.tgt[:1])[0]), EOS]
    assert any("▁" in token for token in src_tokens)
    weights = torch.rand(2, 2, len(tgt_tokens), len(src_tokens))
    for _ in range(2):
        draw_cross_attention(weights, src_tokens, tgt_tokens, picture)
    with Image.open(picture) as image:
        image.load()
        assert image.format == "PNG"
        assert image.width > 2 * 25 * len(src_tokens)  # legible: enough pixels per token and layer
        assert image.height > 25 * len(tgt_tokens)
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 100
    assert [file.name for file in tmp_path.iterdir()] == ["attention.png"]
    assert not plt.get_fignums()


Map = tuple[Axes, NDArray[np.float32]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Map]:
    """All that is drawn while the test runs, and where."""
    shown: list[Map] = []
    imshow = Axes.imshow

    def watched(ax, x, **rest):  # type: ignore[no-untyped-def]
        shown.append((ax, np.asarray(x)))
        return imshow(ax, x, **rest)

    monkeypatch.setattr(Axes, "imshow", watched)
    return shown


def test_a_picture_shows_the_mean_over_heads(tmp_path: Path, shown: list[Map]) -> None:
    weights = torch.rand(2, 2, 2, 3)
    draw_cross_attention(weights, ["a", "b", EOS], ["c", EOS], tmp_path / "attention.png")
    np.testing.assert_allclose(np.stack([x for _, x in shown]), (weights[:, 0] + weights[:, 1]) / 2, rtol=1e-5)


def test_an_empty_translation_can_be_drawn(tmp_path: Path) -> None:
    weights = cross_attention(translating(EXPLICIT), SRC, [])
    assert weights.shape == (2, 2, 1, 6)
    draw_cross_attention(weights, [*"abcde", EOS], [EOS], tmp_path / "attention.png")
    assert (tmp_path / "attention.png").stat().st_size > 1000


def attended(n_heads: int, n_src: int, n_tgt: int) -> Attended:
    src, tgt = ([*(f"{word}{i}" for i in range(1, n)), EOS] for word, n in (("▁京都", n_src), ("▁Kyoto", n_tgt)))
    return Attended(torch.rand(n_heads, n_tgt, n_src), src, tgt)


def test_every_head_of_every_sentence_has_a_map_with_its_tokens(tmp_path: Path, shown: list[Map]) -> None:
    sentences = [attended(6, 4, 3), attended(6, 2, 5)]
    draw_heads(sentences, tmp_path / "heads.png")
    heads = [(sentence, i) for sentence in sentences for i in range(6)]
    assert len(shown) == len(heads)
    for (ax, x), (sentence, i) in zip(shown, heads, strict=True):
        np.testing.assert_array_equal(x, sentence.weights[i].numpy())
        assert ax.get_title() == f"head {i + 1}"
        assert ax.images[0].get_clim() == (0, 1)
        # labels stand at the left of the first map of a row and under the last one of a column
        src_labels, tgt_labels = (
            [label.get_text() for label in axis.get_ticklabels()] for axis in (ax.xaxis, ax.yaxis)
        )
        assert src_labels == (sentence.src_tokens if i >= 2 else [])
        assert tgt_labels == (sentence.tgt_tokens if i in (0, 4) else [])


def test_heads_are_read_as_a_page_is(tmp_path: Path, shown: list[Map]) -> None:
    draw_heads([attended(6, 2, 2), attended(6, 2, 2)], tmp_path / "heads.png")
    corners = [tuple(ax.get_window_extent().p0.round()) for ax, _ in shown]
    assert [sum(y == other for _, other in corners) for y in sorted({y for _, y in corners}, reverse=True)] == [
        4,
        2,
    ] * 2
    assert corners == sorted(corners, key=lambda corner: (-corner[1], corner[0]))


@no_warning
@pytest.mark.parametrize(("n_heads", "lengths"), [(8, [(5, 5)]), (8, [(1, 1)]), (4, [(2, 30), (30, 3)])], ids=str)
def test_heads_are_legible_whatever_the_lengths(
    tmp_path: Path, shown: list[Map], n_heads: int, lengths: list[tuple[int, int]]
) -> None:
    picture = tmp_path / "heads.png"
    draw_heads([attended(n_heads, *pair) for pair in lengths], picture)
    with Image.open(picture) as image:
        image.load()
        assert image.format == "PNG"
    for ax, _ in shown:
        box = ax.get_window_extent()
        n_src, n_tgt = len(ax.get_xticks()), len(ax.get_yticks())
        assert box.width / n_src > 15  # pixels of a label of 9 points
        assert box.height / n_tgt > 15
    assert [file.name for file in tmp_path.iterdir()] == ["heads.png"]
    assert not plt.get_fignums()


# every head of every layer


def whole(n_src: int, n_tgt: int, n_layers: int = 2, n_heads: int = 3) -> AttentionMap:
    src, tgt = ([*(f"{word}{i}" for i in range(1, n)), EOS] for word, n in (("▁京都", n_src), ("▁Kyoto", n_tgt)))
    draw = torch.Generator().manual_seed(0)
    sizes: dict[Kind, tuple[int, int]] = {"encoder": (n_src, n_src), "decoder": (n_tgt, n_tgt), "cross": (n_tgt, n_src)}
    return AttentionMap(
        src,
        tgt,
        {
            kind: [torch.rand(n_heads, *size, generator=draw).mul(5).softmax(-1) for _ in range(n_layers)]
            for kind, size in sizes.items()
        },
    )


@no_warning
@pytest.mark.parametrize("longest", ["a", "▁mmmmmmmmmm", "▁WWWWWWWW", "▁KWMMWM", "▁UNESCO", "京都御所紫宸殿"])
def test_nothing_leaves_the_picture(tmp_path: Path, figures: list[Figure], longest: str) -> None:
    found = whole(3, 3, n_layers=1, n_heads=4)
    draw_attention(found._replace(src_tokens=[longest, "b", EOS], tgt_tokens=[longest, "c", EOS]), tmp_path / "all.png")
    (figure,) = figures
    labels = [label for ax in figure.axes for label in (*ax.get_xticklabels(), *ax.get_yticklabels())]
    for text in (*figure.texts, *(label for label in labels if label.get_visible() and label.get_text())):
        box = text.get_window_extent()
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text


@pytest.mark.parametrize("token", ["$$", "$_$", "US$5$x_1"])
def test_a_dollar_is_a_dollar(tmp_path: Path, figures: list[Figure], token: str) -> None:
    draw_heads([Attended(torch.rand(1, 2, 2), [token, EOS], [token, EOS])], tmp_path / "heads.png")
    label = figures[0].subfigs[0].axes[0].get_xticklabels()[0]
    assert label._preprocess_math(label.get_text()) == (token, False)  # type: ignore[attr-defined]


def test_every_head_of_every_layer_of_every_kind_has_a_map(tmp_path: Path, shown: list[Map]) -> None:
    found = whole(4, 3)
    draw_attention(found, tmp_path / "all.png")
    expected = [
        (kind, head, weights[head]) for kind, layers in found.weights.items() for weights in layers for head in range(3)
    ]
    assert len(shown) == len(expected)
    for (ax, x), (kind, head, weights) in zip(shown, expected, strict=True):
        np.testing.assert_array_equal(x, weights.numpy())
        assert ax.get_title() == f"head {head + 1}: {attention_entropy(weights):.2f}"
        assert ax.images[0].get_clim() == (0, 1)
        across, down = ([label.get_text() for label in axis.get_ticklabels()] for axis in (ax.xaxis, ax.yaxis))
        assert across == found.columns(kind)
        assert down == (found.rows(kind) if head == 0 else [])
    assert [file.name for file in tmp_path.iterdir()] == ["all.png"]
    assert not plt.get_fignums()


@no_warning
@pytest.mark.parametrize(("n_src", "n_tgt"), [(2, 2), (5, 6), (60, 12), (12, 60)])
def test_maps_are_legible_and_apart_whatever_the_lengths(
    tmp_path: Path, shown: list[Map], n_src: int, n_tgt: int
) -> None:
    draw_attention(whole(n_src, n_tgt, n_layers=1), tmp_path / "all.png")
    with Image.open(tmp_path / "all.png") as image:
        image.load()
        size = image.size
    scale = 110 / 100  # from matplotlib's pixels to the picture's
    boxes = [ax.get_window_extent() for ax, _ in shown]
    for (ax, x), box in zip(shown, boxes, strict=True):
        rows, columns = x.shape
        letters = float(ax.get_xticklabels()[0].get_fontsize()) * 110 / 72
        assert letters > 8
        assert scale * box.width / columns > letters
        assert scale * box.height / rows > letters
        assert box.x0 > 0
        assert box.y0 > 0
        assert scale * box.x1 < size[0]
        assert scale * box.y1 < size[1]
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


@no_warning
def test_a_picture_of_very_long_sentences_ends_somewhere(
    tmp_path: Path, shown: list[Map], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_MOST", 10)
    draw_attention(whole(40, 30, n_layers=1), tmp_path / "all.png")
    with Image.open(tmp_path / "all.png") as image:
        assert image.width * image.height < 110**2 * 100
    assert not any(label.get_text() for ax, _ in shown for label in ax.get_xticklabels() if label.get_visible())
