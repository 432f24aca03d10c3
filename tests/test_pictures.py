"""Pictures: each is a PNG, equal data give equal bytes, and what is drawn is what the network or the log says."""

import base64
import json
import math
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from torch import nn

from config.data import TokenizerConfig
from config.model import BertConfig, TransformerConfig, TransformerXLConfig
from config.search import SearchConfig
from const.path import FIGURE, PICKLES, ROOT
from const.token import BOS_ID, EOS, EOS_ID
from docs import figures as guide
from docs import vocabulary
from docs.architecture import draw_architecture
from docs.figures import DRAWN, ELSEWHERE, FROM_RUNS
from layers.probe import recorded_weights
from models.bert import BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from tests import tiny
from tests.samples import ENGLISH, HOSTILE, HOSTILE_PAIR, PAIR, page_data, recorded
from tests.tiny import MODEL, TEXT, no_warning, translating
from utils.config import LanguageConfig, MaskedLanguageConfig, TranslationConfig
from utils.dataset.text import ParallelText
from utils.evaluation.analysis import ReferenceText
from utils.evaluation.heads import Head, Importance, draw_head_importance
from utils.evaluation.metric import System
from utils.evaluation.score import Trial, draw_beam_width, draw_bleu_by_length
from utils.load import Run, load_bert, load_run
from utils.search.forced import AttentionMap, attention_entropy, attention_weights, token_log_probs
from utils.search.translation import Translation
from utils.task.bert import MaskFiller, show_bert_attention
from utils.text.tokenizer import id_of_each
from utils.training.report import JsonlLog, Sample, StepReport, Validation, read_log
from utils.training.schedule import Progress
from utils.visualize.attention import Pair, draw_attention, draw_cross_attention, show_attention, show_map
from utils.visualize.curve import CurvePicture, draw_runs, sheet
from utils.visualize.explain import Watch, easy_to_follow, show_explanation
from utils.visualize.japanese import LABELS, in_japanese

CPU = torch.device("cpu")
# U+2028 stands inside sentences of real corpora, and is no end of a line
VALIDATION = Validation(2.0, {"bleu": 12.0, "chrf": 45.0}, {}, [Sample("都\u2028です", "capital", "capital")])
HEADS = Importance(
    2.3,
    [
        *(Head("encoder", layer, head, 0.1 * layer - 0.15 * head, 0.2 * head) for layer in (1, 2) for head in (1, 2)),
        *(Head("cross", layer, head, 0.01 * head, 1.5 + layer) for layer in (1, 2) for head in (1, 2, 3)[: layer + 1]),
    ],
)
COSTS = [vocabulary.Cost(4000, 30.5, 2.5), vocabulary.Cost(8000, 25.0, 0.0)]
TRIALS = [Trial(w, a, 20 + w * a, 0.9 + a / 100) for w in (5, 1, 100) for a in (0.6, 0.0)]
WIDE = recorded([*(f"▁京都{i}" for i in range(20)), EOS], ["▁WWWWWWWW", "US$5$x_1", EOS])


def logged(folder: Path, slope: float = 0.1) -> Path:
    """The log of a run of six reports and two validations, of which a loss was not finite."""
    log = JsonlLog(folder / "log.jsonl", 0)
    for step in range(10, 61, 10):
        loss, norm = (math.nan, math.inf) if step == 20 else (9 - step * slope, 1.0 + step)
        log.on_step(Progress(step), StepReport(loss + 1, loss, norm, step * 0.1, 100, 10.0, 0.1, 0))
        if step % 30 == 0:
            log.on_validation(Progress(step), VALIDATION._replace(scores={"bleu": step / 3}, loss=step / 50))
    log.close()
    return folder / "log.jsonl"


def draw_japanese(picture: Path) -> None:
    with sheet(picture, (3, 2)) as (axes,):
        axes.plot([0, 1], [-1, 1], label="京都 ▁ ε √K f′ 鬱 ヴ")
        axes.legend()


DRAWINGS: dict[str, Callable[[Path], None]] = DRAWN | {
    "vocabulary": lambda picture: vocabulary.draw_costs({"Japanese": dict.fromkeys("abcd", COSTS)}, picture),
    "japanese": draw_japanese,
    "curves": lambda picture: draw_runs([logged(picture.parent / f"{i}", i / 20).parent for i in range(4)], picture),
    "cross-attention": lambda picture: draw_cross_attention(WIDE.weights["cross"][:1], *WIDE[:2], picture),
    "attention": lambda picture: draw_attention(WIDE, picture),
    "head importance": lambda picture: draw_head_importance(HEADS, "京都, dev", picture),
    "beam width": lambda picture: draw_beam_width(TRIALS, "KFTT dev", picture),
}


QUICK = ("japanese", "curves", "attention", "bert_masking")


@no_warning
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DRAWINGS]
)
def test_a_picture_is_a_png_without_a_warning(name: str, tmp_path: Path) -> None:
    DRAWINGS[name](tmp_path / "new" / "picture.png")
    assert not plt.get_fignums()
    with Image.open(tmp_path / "new" / "picture.png") as image:
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DRAWINGS]
)
def test_a_picture_that_is_called_so_has_its_labels_in_japanese(
    name: str, tmp_path: Path, figure: Callable[[], Figure]
) -> None:
    DRAWINGS[name](tmp_path / "picture.ja.png")
    figure().canvas.draw()  # which names the ticks
    for label in {text.get_text() for text in figure().findobj(Text)}:
        assert not re.search(r"[a-z]{2,} [a-z]{2,}", label), label
        assert label not in LABELS


def test_a_picture_that_is_there_in_japanese_is_drawn_so_again(tmp_path: Path) -> None:
    alone, beside = tmp_path / "alone.png", tmp_path / "beside.png"
    (tmp_path / "beside.ja.png").touch()
    for picture in (alone, beside):
        DRAWINGS["japanese"](picture)
    DRAWINGS["japanese"](tmp_path / "only.ja.png")
    assert beside.read_bytes() == alone.read_bytes()
    assert (tmp_path / "beside.ja.png").stat().st_size > 1000
    assert not (tmp_path / "alone.ja.png").exists()
    assert not (tmp_path / "only.ja.ja.png").exists()


def test_a_label_keeps_its_numbers() -> None:
    for label, ours in LABELS.items():
        assert label.count("#") == ours.count("#")
    assert in_japanese("14,892,480 parameters") == "パラメーター数 14,892,480"
    assert in_japanese("multi30k: norm last") == "multi30k: Post-LN"
    assert in_japanese("encoder, layer 6, head 1") == "エンコーダー、層 6、ヘッド 1"
    assert in_japanese("peak_lr 0.001, warmup_steps 1000") == "peak_lr 0.001, warmup_steps 1000"


def test_equal_data_give_equal_bytes_whatever_the_readers_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_japanese(tmp_path / "first.png")
    others: dict[str, Any] = {"font.size": 20, "axes.facecolor": "black", "font.family": ["serif"]}
    for setting, value in others.items():
        monkeypatch.setitem(plt.rcParams, setting, value)  # type: ignore[misc]
    draw_japanese(tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "first.png").read_bytes()
    assert plt.rcParams["font.family"] == ["serif"]


@pytest.fixture
def figure(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Figure]:
    """Returns the figure that was drawn last."""
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "close", figures.append)
    return lambda: figures[-1]


def lines(figure: Figure, place: int) -> dict[str, list[list[float]]]:
    """The points of each line of a panel."""
    return {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in figure.axes[place].get_lines()}


def maps(figure: Figure) -> list[Any]:
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def test_the_lines_are_those_of_the_log(tmp_path: Path, figure: Callable[[], Figure]) -> None:
    CurvePicture(logged(tmp_path), tmp_path / "curve.png").on_validation(Progress(60), VALIDATION)
    loss, scores, rate, norm = (lines(figure(), i) for i in range(4))
    train = [[step, 9 - step * 0.1] for step in range(10, 61, 10)]
    assert loss.keys() == {"train", "dev"}  # not what was minimised, which is no loss to compare
    assert loss["train"][0] == train[0]
    assert math.isnan(loss["train"][1][1])  # null in the log: a gap
    assert loss["train"][2:] == train[2:]
    assert loss["dev"] == [[30, 0.6], [60, 1.2]]
    assert scores == {"BLEU": [[30, 10], [60, 20]]}
    assert rate["learning rate"] == [[step, step * 0.1] for step in range(10, 61, 10)]
    assert norm["gradient norm"][2:] == [[step, 1 + step] for step in range(30, 61, 10)]


@pytest.mark.parametrize("resumed_at", [60, 30])
def test_what_was_minimised_is_drawn_where_a_log_has_no_nll(
    resumed_at: int, tmp_path: Path, figure: Callable[[], Figure]
) -> None:
    """The log of an older version, which ended or was resumed at this step."""
    log = logged(tmp_path)
    records = [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]
    for record in records:
        if record["step"] <= resumed_at:
            record.pop("nll", None)
    log.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    draw_runs([tmp_path], tmp_path / "curves.png")
    loss = lines(figure(), 0)
    assert loss.keys() == {"dev", "train, as minimised", *(["train"] if resumed_at < 60 else [])}
    drawn = [[step, value] for step, value in loss["train, as minimised"] if not math.isnan(value)]
    assert drawn == [[step, 10 - step * 0.1] for step in range(10, resumed_at + 1, 10) if step != 20]
    drawn = [[step, value] for step, value in loss.get("train", []) if not math.isnan(value)]
    assert drawn == [[step, 9 - step * 0.1] for step in range(resumed_at + 10, 61, 10)]


def test_runs_are_drawn_by_the_names_of_their_folders(tmp_path: Path, figure: Callable[[], Figure]) -> None:
    folders = [tmp_path / "wide-20260102-030405", tmp_path / "deep"]
    for folder, slope in zip(folders, (0.1, 0.05), strict=True):
        logged(folder, slope)
    (folders[1] / "log.jsonl").write_bytes((folders[1] / "log.jsonl").read_bytes()[:-40])  # half a line
    draw_runs(folders, tmp_path / "all.png")
    (legend,) = figure().legends
    colours = {t.get_text(): h.get_color() for t, h in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    ends = {line.get_color(): np.asarray(line.get_ydata())[-1] for line in figure().axes[0].get_lines()[::2]}
    assert ends == {colours["wide"]: 3.0, colours["deep"]: 6.0}


# attention


def test_a_row_is_of_the_step_that_chose_its_token() -> None:
    """Row t was computed before token t was known: by one cached step for each earlier token."""
    src, tgt = [5, 6, 7, 8, 9], [10, 11, 12]
    model = translating(replace(MODEL, fused=False, dropout=0.5, attention_dropout=0.5))
    weights = torch.stack(attention_weights(model.train(), src, tgt)["cross"])
    again = torch.stack(attention_weights(translating(), src, tgt)["cross"])
    torch.testing.assert_close(again, weights, atol=1e-5, rtol=1e-4)
    attentions = [block.cross_attention for block in model.eval().decoder]
    with torch.no_grad(), recorded_weights(attentions) as steps:  # type: ignore[arg-type]
        state = model.start(torch.tensor([[*src, EOS_ID]]))
        for token in (BOS_ID, *tgt):
            _, state = model.step(torch.tensor([token]), state)
    by_step = torch.stack([torch.cat(steps[t : t + 2])[:, :, 0] for t in range(0, len(steps), 2)], dim=2)
    torch.testing.assert_close(weights, by_step)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_map_shows_the_weights_of_its_head(tmp_path: Path, figure: Callable[[], Figure]) -> None:
    attention = recorded()
    draw_attention(attention, tmp_path / "all.png")
    heads = [head for layers in attention.weights.values() for layer in layers for head in layer]
    axes = [ax for ax in figure().axes if ax.images]
    for ax, shown, head in zip(axes, maps(figure()), heads, strict=True):
        np.testing.assert_array_equal(shown, head.numpy())
        assert ax.get_title().endswith(f": {attention_entropy(head[None]).item():.2f}")


def assert_asks_nobody(page: str) -> None:
    assert "default-src 'none'" in page
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|<link|<img|\bsrc=|@import|url\(|fetch\(", without_namespace)


def page_of(folder: Path, attention: AttentionMap, pair: Pair = PAIR) -> tuple[str, dict[str, Any]]:
    show_map(attention, pair, folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8"), page_data(folder / "page.html")


def test_the_page_has_every_weight_and_the_entropy_of_every_head(tmp_path: Path) -> None:
    attention = recorded()
    page, data = page_of(tmp_path, attention)
    for kind in data["kinds"]:
        assert kind["rows"]["tokens"] == attention.rows(kind["kind"])
        assert kind["columns"]["tokens"] == attention.columns(kind["kind"])
        layers = attention.weights[kind["kind"]]
        for shown, entropy, weights in zip(kind["weights"], kind["entropy"], layers, strict=True):
            torch.testing.assert_close(torch.tensor(shown) / data["parts"], weights, atol=0.00051, rtol=0)
            assert entropy == pytest.approx(attention_entropy(weights).tolist(), abs=0.001)
    languages = {kind["kind"]: (kind["rows"]["lang"], kind["columns"]["lang"]) for kind in data["kinds"]}
    assert languages == {"encoder": ("ja", "ja"), "decoder": ("en", "en"), "cross": ("en", "ja")}
    assert_asks_nobody(page)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page, data = page_of(tmp_path, recorded([HOSTILE, EOS], [HOSTILE, "<!--", EOS]), HOSTILE_PAIR)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<!--" not in page.removeprefix("<!DOCTYPE html>")
    assert (data["source"]["tokens"], data["target"]["tokens"]) == ([HOSTILE], [HOSTILE, "<!--"])


def test_the_page_of_a_run_shows_the_weights_of_its_network(tmp_path: Path) -> None:
    run = load_run(tiny.run(tmp_path), CPU)
    show_attention(run, run.translator(), TEXT.src[0], tmp_path / "page.html", TEXT.tgt[0])
    data = page_data(tmp_path / "page.html")
    src, tgt = run.tokenizers
    ids = src.encode(TEXT.src[:1])[0], tgt.encode(TEXT.tgt[:1])[0]
    weights = torch.stack(attention_weights(run.model, *ids)["cross"])
    torch.testing.assert_close(torch.tensor(data["kinds"][2]["weights"]) / 1000, weights, atol=0.00051, rtol=0)
    links = weights[-1].mean(0)[:-1, :-1].argmax(-1).tolist()  # of the last layer, without </s> on either side
    assert [[s, t] for s, t, _ in data["links"]] == [[place, t] for t, place in enumerate(links)]


@torch.no_grad()
def test_the_page_of_a_bert_shows_the_weights_of_its_network(tmp_path: Path) -> None:
    folder = tiny.bert_run(tmp_path)
    filler = MaskFiller.of_run(folder)
    show_bert_attention(filler, "京都に[MASK]がある", folder.name, tmp_path / "page.html")
    data = page_data(tmp_path / "page.html")
    ids = filler.fill("京都に[MASK]がある", 1).ids
    (kind,) = data["kinds"]
    assert kind["rows"] == kind["columns"] == {"tokens": [filler.shown(i) for i in ids], "lang": "ja"}
    assert kind["rows"]["tokens"][ids.index(filler.mask)] == "[MASK]"
    explicit = BertForPreTraining(replace(tiny.BERT, fused=False), filler.mask + 1).eval()
    explicit.load_state_dict(filler.net.state_dict())
    with recorded_weights([block.get_submodule("self_attention.attention") for block in explicit.bert.encoder]) as maps:
        explicit.bert(torch.tensor([ids]))
    torch.testing.assert_close(torch.tensor(kind["weights"]) / 1000, torch.cat(maps), atol=0.00051, rtol=0)
    assert data["links"] == []  # nothing is translated


# the page that explains


def numbers(packed: dict[str, Any], *shape: int) -> torch.Tensor:
    """What the page multiplies out."""
    integers = np.frombuffer(base64.b64decode(packed["data"]), "<i2").astype(np.float32)
    return torch.from_numpy(integers * packed["scale"]).view(shape)


def explained(run: Run, path: Path, search: SearchConfig | None = None) -> tuple[dict[str, Any], Translation]:
    """What a page of a text shows, and how the text is translated."""
    show_explanation(run, run.translator(search, "fp32"), TEXT.src[0], path)
    (translation,) = run.translator(search, "fp32").translate(TEXT.src[:1])
    return page_data(path), translation


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
@torch.inference_mode()
def test_the_queries_and_keys_of_the_page_make_the_weights_of_the_network(positions: Any, tmp_path: Path) -> None:
    config = replace(MODEL, positions=positions, norm_first=positions != "learned", scale_attention=positions != "none")
    run = load_run(tiny.run(tmp_path, config), CPU)
    data, translation = explained(run, tmp_path / "page.html")
    source, target = data["source"]["ids"], data["target"]["ids"]
    assert translation.candidates[0].tokens == data["target"]["tokens"][1:] == data["said"]["tokens"][:-1]
    assert translation.pieces[0].ids == source[:-1]
    lengths = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    heads, width = config.n_heads, config.d_model // config.n_heads
    for kind, layers in attention_weights(run.model, source[:-1], target[1:]).items():
        t, s = map(len, lengths[kind])
        for shown, weights in zip(data["attention"][kind], layers, strict=True):
            query, key, _ = (numbers(x, heads, n, width) for x, n in zip(shown, (t, s, s), strict=True))
            scores = query @ key.transpose(1, 2) / (math.sqrt(width) if config.scale_attention else 1)
            if kind == "decoder":
                scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -math.inf)
            torch.testing.assert_close(scores.softmax(-1), weights, atol=2e-3, rtol=0)
    # embedding plus position are what the first layers read; of the encoder's output are the decoder's values
    model = run.transformer
    blocks: list[Any] = [model.encoder[0], model.decoder[0]]
    for block, part, side in zip(blocks, ("encoder", "decoder"), ("source", "target"), strict=True):
        n = len(data[side]["ids"])
        x = numbers(data["embedded"][side], 1, n, config.d_model)
        if positions == "rotary":
            turned = numbers(data["positions"][side], n, width // 2, 2)
            expected = torch.view_as_real(block.self_attention.rotary.table[:n])
            torch.testing.assert_close(turned, expected, atol=1e-3, rtol=0)
        else:
            x = x + numbers(data["positions"][side], 1, n, config.d_model)
        key = block.self_attention.project(block.around_self.norm(x) if config.norm_first else x).key[0]
        shown_key = numbers(data["attention"][part][0][1], heads, n, width)
        torch.testing.assert_close(shown_key, key, atol=2e-3, rtol=1e-3)
    value = blocks[1].cross_attention.project(model.encode(torch.tensor([source]))).value[0]
    shown_value = numbers(data["attention"]["cross"][0][2], heads, len(source), width)
    torch.testing.assert_close(shown_value, value, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_tree_of_the_page_ends_in_the_translation(width: int, tmp_path: Path) -> None:
    search = SearchConfig(beam_size=width, max_ratio=1.0)
    run = load_run(tiny.run(tmp_path), CPU)
    data, translation = explained(run, tmp_path / "page.html", search)
    best, steps = translation.candidates[0], data["beam"]["steps"]
    ends = [(score, p, row, t) for t, step in enumerate(steps) for row, p, score in step["ends"]]
    score, p, row, t = max(ends)
    assert score == pytest.approx(best.score, abs=1e-4)
    assert score == pytest.approx(p / data["beam"]["penalties"][t], abs=1e-4)
    said = []
    for step in reversed(steps[:t]):
        row, token, _ = step["kept"][row]
        said.append(token)
    assert said[::-1] == best.tokens
    for step in steps[:-1]:
        likely = [prefix[2] for prefix in (*step["kept"], *step["dropped"]) if prefix]
        assert likely == sorted(likely, reverse=True)
        assert len(step["kept"]) == len(step["dropped"]) == width
    # what the last layer finds likeliest is what greedy search says, but for its last token, which had to be </s>
    last = data["guesses"][-1]
    assert len(data["guesses"]) == 2
    if width == 1:
        assert [listed[0][0] for listed in last[:-1]] == best.tokens
    written = [listed[-1] for listed in last]
    assert [token for token, _ in written] == [*best.tokens, EOS]
    (log_probs,) = token_log_probs(run.model, [data["source"]["ids"][:-1]], [data["target"]["ids"][1:]])
    assert [q for _, q in written] == pytest.approx([math.exp(q) for q in log_probs], abs=1e-4)


def test_a_page_of_thirty_tokens_by_the_shipped_translator_is_small_and_asks_nobody(tmp_path: Path) -> None:
    run = load_run(PICKLES / "kftt_ja_en", CPU)
    text = "京都は、794年に平安京が置かれてから明治維新まで、千年以上にわたって日本の都であった古い町である。"
    show_explanation(run, run.translator(), text, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(page_data(tmp_path / "page.html")["source"]["tokens"]) >= 30
    assert len(page) < 3e6
    assert_asks_nobody(page)


def test_a_bert_that_reads_the_source_is_not_explained(tmp_path: Path) -> None:
    run = load_run(tiny.run(tmp_path, replace(MODEL, bert=replace(tiny.BERT, d_model=16, max_length=48))), CPU)
    with pytest.raises(ValueError, match=r"reads with a BERT, .*: give --attention instead$"):
        show_explanation(run, run.translator(), TEXT.src[0], tmp_path / "page.html")


# the page of a training


def test_a_training_is_watched_on_from_the_step_that_it_is_resumed_from(tmp_path: Path) -> None:
    run = load_run(tiny.run(tmp_path), CPU)

    def watch(step: int, n: int, *validated: int) -> tuple[list[int], list[int]]:
        """Steps of the file and of the page after a training from `step`, validated at these."""
        text = easy_to_follow(TEXT, n)
        with closing(Watch(tmp_path, step, text, lambda: run.translator(precision="fp32"), ("ja", "en"))) as watched:
            for at in validated:
                watched.on_validation(Progress(at), VALIDATION)
        kept, page = (record for _, record in read_log(tmp_path / "watch.jsonl")), page_data(tmp_path / "watch.html")
        assert all(len(frame["sentences"]) == n for frame in page["frames"])
        return [record["step"] for record in kept], [frame["step"] for frame in page["frames"]]

    assert watch(0, 2) == ([0], [0])  # stopped before its first update
    assert watch(0, 2, 10, 20, 30) == ([0, 10, 20, 30],) * 2
    assert watch(20, 2, 35) == ([0, 10, 20, 35],) * 2
    assert watch(35, 3, 40, 50) == ([0, 10, 20, 35, 40, 50], [40, 50])  # those of other sentences are kept, not shown


def test_watched_is_what_the_network_says_of_short_sentences(tmp_path: Path) -> None:
    run = load_run(tiny.run(tmp_path), CPU)
    text = easy_to_follow(ParallelText([*TEXT.src, " "], [*TEXT.tgt, " "]), 4)
    lengths = sorted(map(len, TEXT.src))
    assert list(map(len, text.src)) == [lengths[i] for i in (0, 15, 30, 45)]
    assert all(
        TEXT.tgt[TEXT.src.index(source)] == reference for source, reference in zip(text.src, text.tgt, strict=True)
    )
    Watch(tmp_path, 0, text, lambda: run.translator(SearchConfig(beam_size=1), "fp32"), ("ja", "en")).close()
    data = page_data(tmp_path / "watch.html")
    ((*sentences,),) = (frame["sentences"] for frame in data["frames"])
    translations = run.translator(SearchConfig(beam_size=1), "fp32").translate(text.src)
    for sentence, translation in zip(sentences, translations, strict=True):
        assert (sentence["translation"], sentence["said"][:-1]) == (translation.text, translation.candidates[0].tokens)
        (piece,), target = (
            translation.pieces,
            [id_of_each(run.tokenizers.tgt)[token] for token in sentence["said"][:-1]],
        )
        weights = attention_weights(run.model, piece.ids, target)["cross"]
        shown = torch.tensor(sentence["cross"]) / data["parts"]
        torch.testing.assert_close(shown, torch.stack(weights).mean(1), atol=0.00051, rtol=0)
        log_probs = torch.tensor(token_log_probs(run.model, [piece.ids], [target])[0])
        last = torch.tensor([p for *_, (_, p) in sentence["guesses"][-1]])
        torch.testing.assert_close(last, log_probs.exp(), atol=6e-5, rtol=0)


def test_heads_and_beams_are_drawn_where_they_belong(tmp_path: Path, figure: Callable[[], Figure]) -> None:
    draw_head_importance(HEADS, "a run, dev", tmp_path / "heads.png")
    rise, cross, *_ = maps(figure())
    np.testing.assert_allclose(rise, [[-0.05, -0.2], [0.05, -0.1]])
    np.testing.assert_allclose(np.ma.filled(cross, np.nan), [[0.01, 0.02, np.nan], [0.01, 0.02, 0.03]])
    low, high = figure().axes[0].images[0].get_clim()
    assert -low == high == pytest.approx(0.2)  # no change is white
    draw_beam_width(TRIALS, "KFTT dev", tmp_path / "beam.png")
    assert lines(figure(), 0)["length penalty 0.6"] == [[1, 20.6], [5, 23], [100, 80]]


def test_bleu_by_length_has_a_line_for_each_system_and_counts_for_all(
    tmp_path: Path, figure: Callable[[], Figure]
) -> None:
    sources = ["a " * (4 if i % 2 else 12) for i in range(40)]
    text = ReferenceText("test.en", "en", "13a", sources, ENGLISH.references, None)
    systems = System("results/rnn_1.txt", ENGLISH.bad), System("pickles/transformer", ENGLISH.good)
    evaluations = [text.evaluation(system, []) for system in systems]
    draw_bleu_by_length(evaluations, tmp_path / "length.png")
    drawn = lines(figure(), 0)
    for name, evaluation in zip(("rnn_1", "transformer"), evaluations, strict=True):
        assert drawn[name] == [[i, group.score] for i, group in enumerate(evaluation.analysis.bleu_by_length)]
    assert [label.get_text() for label in figure().axes[0].get_xticklabels()] == ["0-5\n20", "11-20\n20"]
    assert figure().axes[0].get_xlabel().startswith("source tokens")


# the guide's


WORDS = TokenizerConfig(vocab_size=20)
PRE = TransformerConfig(d_model=8, n_heads=2, d_ff=32, n_encoder_layers=3, n_decoder_layers=2, positions="rotary")
POST = replace(PRE, norm_first=False, positions="learned", tie="none")
PLAIN = replace(PRE, positions="none", tie="target", scale_attention=False)
BERT, XL = BertConfig(8, 2, 32, n_layers=3), TransformerXLConfig(8, 2, 32, n_layers=3)


def texts(figure: Figure) -> list[tuple[float, float, str]]:
    """Place and words of all texts of a picture, from the bottom up."""
    return sorted(((*text.get_position(), text.get_text()) for text in figure.axes[0].texts), key=lambda text: text[1])


@pytest.mark.parametrize(
    ("config", "network"),
    [
        (TranslationConfig(model=PRE, tokenizer=WORDS), lambda: Transformer(PRE, 20, 20)),
        (TranslationConfig(model=POST, tokenizer=WORDS), lambda: Transformer(POST, 20, 20)),
        (TranslationConfig(model=PLAIN, tokenizer=WORDS), lambda: Transformer(PLAIN, 20, 20)),
        (MaskedLanguageConfig(model=BERT, tokenizer=WORDS), lambda: BertForPreTraining(BERT, 21)),
        (LanguageConfig(model=XL, tokenizer=WORDS), lambda: TransformerXL(XL, 20)),
    ],
    ids=["transformer", "post-norm transformer", "plain transformer", "bert", "transformer-xl"],
)
def test_the_numbers_of_an_architecture_add_up_to_the_network(
    config: Any, network: Callable[[], nn.Module], tmp_path: Path, figure: Callable[[], Figure]
) -> None:
    draw_architecture(config, tmp_path / "architecture.png")
    drawn = texts(figure())
    total = sum(parameter.numel() for parameter in network().parameters())
    assert f"{total:,} parameters" in {text for *_, text in drawn}
    # a block is drawn once; beside it are how many there are, and the number of one
    times = {x: int(text[2:]) for x, _, text in drawn if re.fullmatch(r"× \d+", text)}
    inside = [x for x, _, text in drawn if text == "Multi-head attention"]  # this part is drawn a second time
    for x, _, text in drawn:
        if (number := re.search(r"(?:^|   |: )([\d,]+)$", text)) and (":" in text or x < min(inside, default=math.inf)):
            total -= int(number[1].replace(",", "")) * (times[x] - 1 if x in times else 1)
    assert total == 0


@pytest.mark.parametrize(("memory", "segment"), [([0] * 4, [0] * 3), ([0, 1], [1, 1, 2, 2])])
def test_a_memory_is_seen_as_transformer_xl_sees_it(memory: list[int], segment: list[int]) -> None:
    config = TransformerXLConfig(d_model=4, n_heads=1, d_ff=4, n_layers=1, dropout=0.0, memory_length=8, fused=False)
    model = TransformerXL(config, vocab=8).eval()
    attention = model.blocks[0].self_attention.attention  # type: ignore[union-attr]
    state = model.start(1, CPU)
    with torch.inference_mode(), recorded_weights([attention]) as weights:  # type: ignore[list-item]
        for documents in (memory, segment):
            _, state = model(torch.full((1, len(documents)), 5), state, torch.tensor([documents]))
    assert guide.memory_mask(memory, segment).equal(weights[-1][0, 0] > 0)


@torch.no_grad()
def test_a_word_is_compared_with_itself_layer_by_layer(tmp_path: Path) -> None:
    bert = load_bert(tiny.bert_run(tmp_path))
    texts, word = ["寺の橋", "京都の寺"], "寺"
    similarity = guide.similarity_by_layer(bert, texts, word)
    assert similarity.shape == (1 + tiny.BERT.n_layers, 2, 2)
    torch.testing.assert_close(similarity.diagonal(dim1=1, dim2=2), torch.ones(len(similarity), 2))
    vectors: dict[int, list[torch.Tensor]] = {0: [], -1: []}
    for ids in bert.vocabulary.encode(texts):
        read = torch.tensor([[BOS_ID, *ids, EOS_ID]])
        place = bert.vocabulary.tokens(read[0].tolist()).index(word)
        vectors[0].append(bert.net.bert.embed(read, None)[0, place])
        vectors[-1].append(bert.net.bert(read)[0, place])
    for layer, (first, second) in vectors.items():
        torch.testing.assert_close(similarity[layer, 0, 1], torch.cosine_similarity(first, second, dim=0))


def test_a_vocabulary_costs_tokens_and_unknown_ones() -> None:
    assert vocabulary.cost(9, [[True, False], [True, True], []]) == vocabulary.Cost(9, 4 / 3, 25)
    words = [f"w{i}" for i in range(1500) for _ in range(2 if i < 1000 else 1)]
    few, every = vocabulary.costs_of_frequent([words], [["w999", "w1000", "w1499", "w1500"]])
    assert (few, every) == (vocabulary.Cost(1000, 4, 75), vocabulary.Cost(1500, 4, 25))


def test_a_vocabulary_of_pieces_is_tried_on_text_it_was_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "PIECES", [20, 28])
    train = ["the old temple", "the old garden", "the new temple"]
    fewer, more = vocabulary.costs_of_pieces("bpe", train, ["the old zoo", "the temple"])
    assert (fewer.size, more.size) == (20, 28)
    assert fewer.length > more.length
    assert 0 < fewer.unknown < more.unknown  # z is unknown, of fewer and fewer tokens


def test_curves_of_the_guide_are_those_of_their_formulas() -> None:
    for loss, p in zip(guide.smoothed_losses([0.3, 0.9], 0.1).tolist(), (0.3, 0.9), strict=True):
        right, wrong = -math.log(p), -math.log((1 - p) / 99)
        assert loss == pytest.approx((0.9 + 0.1 / 100) * right + 0.1 * 99 / 100 * wrong, rel=1e-5)
    for width in (4, 1024):  # the division takes the width out of the scores
        assert guide.sharpness(width, scaled=True)[0] == pytest.approx(1, rel=0.1)
        assert guide.sharpness(width, scaled=False)[0] == pytest.approx(math.sqrt(width), rel=0.1)
    first, last = (guide.gradient_norms(norm_first) for norm_first in (True, False))
    assert first[-1] < 0.7 * first[0]  # with the norm last, the top begins with the larger gradients
    assert last[-1] > max(last[0], 2 * first[-1])


@pytest.mark.parametrize("name", [*DRAWN, *FROM_RUNS, *ELSEWHERE])
def test_the_pictures_in_the_repository_are_modest_and_shown(name: str) -> None:
    pages = [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]
    for picture in (FIGURE / f"{name}.png", *FIGURE.glob(f"{name}.ja.png")):
        assert picture.stat().st_size < 150_000
        assert any(f"figure/{picture.name})" in page.read_text(encoding="utf-8") for page in pages)
