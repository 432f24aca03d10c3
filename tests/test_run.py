"""A run's folder: made, found, loaded, refused when it is damaged; and where a figure comes from."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors import safe_open
from torch import nn

from config.data import BatchConfig, DataConfig, TokenizerConfig
from config.model import TransformerConfig
from config.training import InferencePrecision
from const.corpora import VERSION
from const.path import CORPUS, FIGURE, PICKLES, ROOT
from layers.packed import Int8Linear, PackedLinear
from models.transformer import Transformer
from tests.tiny import lively
from utils import device
from utils import run as run_folder
from utils.config import AnyConfig, LanguageConfig, MaskedLanguageConfig, TranslationConfig
from utils.device import packing
from utils.export import CARD
from utils.file import read_json
from utils.load import Run, build_translator, load_run
from utils.provenance import commit, machine, portable
from utils.run import (
    CONFIG,
    SHIPPED,
    TEST,
    WEIGHTS,
    create_run,
    find_run,
    newest_run,
    run_reading,
    runs_named,
    trained_alone,
    translators,
)
from utils.search.searcher import BeamSearch
from utils.text.loop import is_loop
from utils.text.tokenizer import TokenizerPair, WordTokenizer, train_tokenizers
from utils.text.words import WordPair, Words
from utils.training.checkpoint import write_weights
from utils.training.schedule import Rank

CPU = torch.device("cpu")
Kind = Literal["unigram", "bpe", "word"]
SRC, TGT = WordTokenizer("都京の古い", lowercase=False), WordTokenizer(["capital", "the", "old"], lowercase=False)
SMALL = TransformerConfig(d_model=8, n_heads=2, d_ff=8, n_encoder_layers=1, n_decoder_layers=2, max_length=20)
ids = torch.tensor([[4, 5, 3], [6, 3, 0]])


class Noon(datetime):
    @classmethod
    def now(cls, tz: object = None) -> "Noon":  # noqa: ARG003 (datetime's signature)
        return cls(2026, 1, 2, 12, 0, 0)


def run_of(root: Path, tie: Literal["none", "target", "all"] = "target") -> tuple[Path, Transformer]:
    """A run whose weights are saved."""
    torch.manual_seed(0)
    tokenizers = TokenizerPair(SRC, SRC if tie == "all" else TGT)
    config = TranslationConfig(name="toy", model=replace(SMALL, tie=tie))
    model = Transformer(config.model, len(tokenizers.src), len(tokenizers.tgt))
    folder = create_run(config, tokenizers, root=root)
    write_weights(model.state_dict(), folder / WEIGHTS, Rank(0.0))
    return folder, model.eval()


def test_a_new_run_has_its_settings_and_tokenizers_and_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "datetime", Noon)
    config = TranslationConfig(name="a", model=SMALL)
    folders = [create_run(config, TokenizerPair(SRC, TGT), root=tmp_path / "pickles") for _ in range(3)]
    with trained_alone(folders[0]), trained_alone(folders[1]), pytest.raises(ValueError, match="another process: wait"):
        trained_alone(folders[0]).__enter__()
    assert [folder.name for folder in folders] == [f"a-20260102-120000{end}" for end in ("", "-2", "-3")]
    assert TranslationConfig.load(folders[2] / "config.yaml") == config
    files = ["config.yaml", "tokenizer_src.json", "tokenizer_tgt.json"]
    assert sorted(file.name for file in folders[2].iterdir()) == files


def saved(root: Path, name: str, time: int, config: AnyConfig | None = None, file: str = WEIGHTS) -> Path:
    """A run that has only its settings and a file, which was written then."""
    (root / name).mkdir()
    (config or TranslationConfig()).save(root / name / CONFIG)
    (root / name / file).touch()
    os.utime(root / name / file, (time, time))
    return root / name


def test_the_newest_run_is_the_one_whose_file_was_written_last(tmp_path: Path) -> None:
    c, a, b = (saved(tmp_path, name, time) for time, name in enumerate("cab"))
    saved(tmp_path, "d", 3, file="log.jsonl")
    (b / WEIGHTS).rename(b / "last.pt")
    (tmp_path / "no run").mkdir()
    (tmp_path / "no run" / WEIGHTS).touch()  # what was exported to here, say
    assert newest_run(WEIGHTS, tmp_path) == a
    assert newest_run("last.pt", tmp_path) == b
    os.utime(c / WEIGHTS, (99, 99))
    assert newest_run(WEIGHTS, tmp_path) == c
    (c / CONFIG).write_text("task: summary\n")  # of a version that knows more
    assert newest_run(WEIGHTS, tmp_path) == a
    for root, config_type, remedy in (
        (tmp_path / "none", TranslationConfig, "--config demo"),
        (tmp_path, LanguageConfig, "--config transformer_xl_en"),
    ):
        with pytest.raises(ValueError, match=rf"^no run of task \w+ with a {WEIGHTS} in .* `python train.py {remedy}`"):
            newest_run(WEIGHTS, root, config_type)


def test_a_run_is_found_by_path_by_name_or_as_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "datetime", Noon)
    root, name = tmp_path / "pickles", Path("toy")
    first, newest = (run_of(root)[0] for _ in range(2))
    os.utime(first / WEIGHTS, (1, 1))
    assert find_run(None, root=root) == find_run(name, root=root) == newest
    assert find_run(Path(first.name), root=root) == find_run(first, root=root) == first
    (newest / WEIGHTS).unlink()  # still training
    assert find_run(name, root=root) == first
    later = [root / f"toy-20260102-120000-{n}" for n in (10, 9)]
    for folder in (*later, root / "toy-2-20260103-120000", root / "toy-20260104"):
        folder.mkdir()
    assert runs_named("toy", root) == [*later, newest, first]
    with pytest.raises(ValueError, match=rf"^no run {first.name[:-1]}: did you mean {first.name}\?$"):
        find_run(Path(first.name[:-1]), root=root)
    with pytest.raises(ValueError, match=rf"^no run x: give a folder under {root}$"):
        find_run(Path("x"), root=root)
    monkeypatch.chdir(tmp_path)
    Path(first.name).mkdir()
    assert find_run(Path(first.name), root=root) == Path(first.name)  # what is here comes first


def test_the_runs_of_the_project_are_used_where_no_run_of_ones_own_fits(tmp_path: Path) -> None:
    def made(name: str, src_lang: str, tgt_lang: str, time: int) -> Path:
        return saved(tmp_path, name, time, TranslationConfig(data=DataConfig(src_lang=src_lang, tgt_lang=tgt_lang)))

    ja_en, en_ja = made("kftt_ja_en", "ja", "en", 8), made("kftt_en_ja", "en", "ja", 9)
    saved(tmp_path, "other", 10, MaskedLanguageConfig())
    assert find_run(None, root=tmp_path) == run_reading("", tmp_path).folder == ja_en
    assert [run_reading(text, tmp_path).folder for text in ("京都", "Kyoto", "1868")] == [ja_en, en_ja, ja_en]
    assert find_run(Path("kftt_ja_en"), root=tmp_path) == ja_en
    own = made("mine-20260101-000000", "en", "de", 2)
    older = made("kftt_ja_en-20260101-000000", "ja", "en", 1)
    assert find_run(None, root=tmp_path) == own
    assert [run_reading(text, tmp_path).folder for text in ("京都", "Kyoto", "1868", "서울")] == [older, own, own, own]
    assert find_run(Path("kftt_ja_en"), root=tmp_path) == older  # of one's own, as it is the newest of this name
    assert find_run(ja_en, root=tmp_path) == ja_en
    assert [folder for folder, *_ in translators(tmp_path)] == [own, older, ja_en, en_ja]


TEMPLES = [
    f"{place}の{thing}は{year}年に建立された。" for place in "東西南北" for thing in "寺塔門" for year in range(9)
]
TRAINS = [f"{place}行きの{thing}は{n}時に出ますか。" for place in "東西南北" for thing in "車船便" for n in range(9)]
BOTH = ["a train leaves at nine.", "an old temple was built."] * 9
TRAIN, TEMPLE = TRAINS[5], TEMPLES[5]


def reading(root: Path, name: str, time: int, lines: list[str], kind: Kind = "unigram") -> Path:
    """A run that only has its settings and a vocabulary, which is learned from these lines."""
    data, joint = DataConfig(src_lang="ja", tgt_lang="en"), kind == "unigram"
    folder = saved(root, name, time, TranslationConfig(data=data, tokenizer=TokenizerConfig(joint=joint)))
    config = TokenizerConfig(kind=kind, vocab_size=60, joint=joint, min_freq=1, tag=joint, character_coverage=1.0)
    train_tokenizers(config, lines, BOTH, ("ja", "en")).save(folder)
    return folder


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_of_several_runs_the_one_that_reads_a_text_best_answers_whatever_its_age(tmp_path: Path, kind: Kind) -> None:
    def answer(text: str) -> Path:
        return run_reading(text, tmp_path).folder

    temples = reading(tmp_path, "kftt_ja_en", 1, TEMPLES)
    assert run_reading(TRAIN, tmp_path) == (temples, "")
    trains = reading(tmp_path, "own-20260101-000000", 2, TRAINS, kind)
    assert [answer(text) for text in (TEMPLE, TRAIN, "1868", f"{TEMPLE}{TEMPLE}{TRAIN}")] == [
        temples,
        trains,
        trains,
        temples,
    ]
    assert run_reading(TEMPLE, tmp_path).reason == "reads this text best of 2 runs"
    copy = reading(tmp_path, "mine-20260101-000000", 3, TEMPLES[:-1])  # hardly worse, newer
    assert [answer(text) for text in (TEMPLE, TRAIN)] == [copy, trains]
    assert "nearly as well as the best" in run_reading(TEMPLE, tmp_path).reason
    os.utime(copy / WEIGHTS, (0, 0))
    assert answer(TEMPLE) == copy  # what comes with the project comes last, all the same
    for file in copy.glob("tokenizer*.model"):
        file.write_bytes(b"")
    assert answer(TEMPLE) == temples


def test_spaces_and_words_are_read_as_in_the_training_text(tmp_path: Path) -> None:
    reading(tmp_path, "kftt_ja_en", 1, TEMPLES)
    words = reading(tmp_path, "own-20260101-000000", 2, [" ".join(line) for line in TRAINS], kind="word")
    WordPair(Words.learn("ja", map(" ".join, TRAINS)), Words.learn("en", BOTH)).save(words)
    assert [run_reading(text, tmp_path).folder.name[:3] for text in (TRAIN, TEMPLE)] == ["own", "kft"]


def test_of_many_runs_the_newest_of_each_name_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "_MANY", 3)
    older, newer = (reading(tmp_path, f"a-2026010{i}-000000", i, (TEMPLES, TRAINS)[i - 1]) for i in (1, 2))
    other, shipped = reading(tmp_path, "b-20260101-000000", 0, TRAINS), reading(tmp_path, "kftt_ja_en", 9, TRAINS)
    assert run_reading(TRAIN, tmp_path) == (newer, "reads this text best of 3 runs")
    for folder in (newer, other, shipped):
        shutil.rmtree(folder)
    assert run_reading(TEMPLE, tmp_path).folder == older


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_a_loaded_run_computes_what_the_saved_one_did(tmp_path: Path, tie: Literal["none", "target", "all"]) -> None:
    folder, model = run_of(tmp_path, tie)
    before = torch.manual_seed(1).get_state()  # other weights than those saved, were they not loaded
    loaded = load_run(folder, CPU)
    assert torch.get_rng_state().equal(before)  # none are drawn, only to be overwritten
    assert loaded.model(ids, ids).equal(model(ids, ids))
    assert not loaded.model.training
    assert (loaded.model.output.weight is loaded.model.tgt_embedding.weight) is (tie != "none")
    assert (loaded.model.src_embedding.weight is loaded.model.tgt_embedding.weight) is (tie == "all")
    assert (loaded.tokenizers.src is loaded.tokenizers.tgt) is (tie == "all")
    size = (folder / WEIGHTS).stat().st_size
    assert size < 4 * sum(p.numel() for p in model.parameters()) + 8192  # tied weights are written once


@pytest.mark.parametrize("name", SHIPPED)
def test_a_run_of_the_project_is_whole_and_translates_as_its_card_says(name: str) -> None:
    folder = PICKLES / name
    files, is_kftt = {CARD, CONFIG, WEIGHTS, TEST, "tokenizer.model"}, name.startswith("kftt")
    assert {file.name for file in folder.iterdir()} == files | ({"tokenizer_tag.txt"} if is_kftt else set())
    assert sum(file.stat().st_size for file in folder.iterdir()) < 17e6
    with safe_open(folder / WEIGHTS, "pt") as file:
        assert "sha256" in file.metadata()  # which `load_run` checks
    run, result = load_run(folder, CPU), read_json(folder / TEST)
    assert all(tensor.isfinite().all() for tensor in run.model.state_dict().values())
    samples = result["samples"]
    translations = run.translator(precision="fp32").translate([sample["source"] for sample in samples])
    same = [ours.text == sample["translation"] for ours, sample in zip(translations, samples, strict=True)]
    assert len(same) == 20
    assert sum(same) >= 19  # two equally good translations may change places on another processor
    card = (folder / CARD).read_text(encoding="utf-8")
    assert f"BLEU {result['bleu']:.2f} " in card
    assert not is_kftt or result["bleu"] == read_json(FIGURE / "results" / f"{name}_1.json")["bleu"]
    english, japanese = card.split("\n## 日本語\n")
    assert "CC BY-SA 3.0" in english
    assert "CC BY-SA 3.0" in japanese


OFTEN = 2  # as it is outside of the tests
LED_ASTRAY = {  # each into a loop, when it was written
    "kftt_ja_en": [
        "詳しくは @yyi を見てください。",
        "^BoK|=Bo{@u$",
        "・また、能因本は江戸時代初期（……",
        "%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%",
        "喜連川喜連川喜連川喜連川喜連川喜連川喜連川",
        "9号バ | も少なくなり | 記 | るいは比 | き",
    ],
    "kftt_en_ja": [
        "・Overview of the samu------",
        "no no lol!?lolhahelolno xo!?hexoxohehehehano",
        "！！！！！！！！！！！",
    ],
}


@pytest.mark.parametrize("name", LED_ASTRAY)
def test_a_run_of_the_project_repeats_nothing_again_and_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.text.loop.OFTEN", OFTEN)
    found = load_run(PICKLES / name, CPU).translator(precision="fp32").translate(LED_ASTRAY[name])
    assert not any(is_loop(piece.best.text, piece.source) for text in found for piece in text.pieces if piece.ids)
    assert any(text.loop for text in found)


# Translating.


def run_with(
    model: Transformer, name: str = "toy", max_tokens: int = 128, tokenizers: TokenizerPair | None = None
) -> Run:
    config = TranslationConfig(name=name, model=model.config, batch=BatchConfig(max_tokens=max_tokens))
    return Run(Path("pickles") / name, config, tokenizers or TokenizerPair(SRC, TGT), model)


def toy(seed: int = 0, max_length: int = 20, width: int = SMALL.d_model) -> Transformer:
    return lively(replace(SMALL, tie="target", max_length=max_length, d_model=width, d_ff=32), len(SRC), len(TGT), seed)


def test_the_window_is_what_model_and_training_have_seen() -> None:
    for max_tokens, window in (7, 7), (20, 20), (99, 20):
        run = run_with(toy(), max_tokens=max_tokens)
        assert run.window == run.translator().window == window
        assert run.translator().longest == 20
    runs = [run_with(toy(max_length=30), max_tokens=9), run_with(toy(max_length=20), max_tokens=99)]
    for order in runs, runs[::-1]:
        ensemble = build_translator(order)
        assert (ensemble.window, ensemble.longest) == (9, 20)


@pytest.mark.processor
@pytest.mark.parametrize(
    ("precision", "of_bf16", "of_int8", "dtype", "int8"),
    [
        ("fp32", 2.0, 2.0, torch.float32, False),
        ("bf16", 0.5, 2.0, torch.bfloat16, False),
        ("auto", 2.0, 3.0, torch.bfloat16, False),
        ("auto", 0.5, 2.0, torch.float32, True),
        ("auto", 1.1, 1.1, torch.float32, False),
        ("int8", 2.0, 0.5, torch.float32, True),
        ("int8", 0.5, 0.5, torch.float32, True),
    ],
)
def test_a_translator_computes_in_the_precision_that_was_asked_for_whatever_it_was_trained_in(
    precision: InferencePrecision,
    of_bf16: float,
    of_int8: float,
    dtype: torch.dtype,
    int8: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speedups = {"bf16": of_bf16, "int8": of_int8}
    monkeypatch.setattr(device, "speedup", lambda other, _width, learning: 0 if learning else speedups[other])
    monkeypatch.setattr(device, "multiplies_int8", lambda: True)
    run = run_with(toy(width=32))
    trained = replace(run.config, training=replace(run.config.training, precision="fp16"))
    for ours in build_translator([run], precision=precision), run._replace(config=trained).translator(None, precision):
        assert isinstance(ours.searcher, BeamSearch)
        model = ours.searcher.model
        assert isinstance(model, Transformer)
        layers = [part for part in model.modules() if isinstance(part, PackedLinear)]
        assert {layer.dtype for layer in layers} == {dtype}
        assert all(isinstance(layer, Int8Linear) == int8 for layer in layers)
        # each decoder block has one more, for query, key and value at once
        n_linears = sum(isinstance(part, nn.Linear) for part in run.model.modules())
        assert len(layers) == n_linears + len(run.transformer.decoder)
        logits, _ = model.step(ids[:, 0], model.start(ids))
        assert logits.dtype == dtype


@pytest.mark.processor
def test_integers_that_are_not_multiplied_exactly_are_for_who_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "speedup", lambda kind, _width, learning: 2.0 if kind == "int8" else 1.0)  # noqa: ARG005
    monkeypatch.setattr(device, "multiplies_int8", lambda: False)
    assert packing("auto", CPU, 32) == (torch.float32, False)
    assert packing("int8", CPU, 32) == (torch.float32, True)


def test_a_translator_keeps_the_weights_that_it_was_built_with() -> None:
    model, texts = toy(), ["京 都", "古 い の 都"]
    run = run_with(model.train())
    built = [build_translator(runs, precision="fp32") for runs in ([run], [run, run_with(toy(1))])]
    before = [ours.translate(texts) for ours in built]
    assert model.training
    model.load_state_dict(toy(2).state_dict())
    assert [ours.translate(texts) for ours in built] == before
    assert run.translator().translate(texts) != before[0]


def test_an_ensemble_translates_with_all_of_its_models() -> None:
    runs, texts = [run_with(toy(seed)) for seed in range(3)], ["京 都", "古 い の 都"]
    scores = [
        tuple(t.candidates[0].score for t in build_translator(chosen, precision="fp32").translate(texts))
        for chosen in (runs[:1], runs[1:2], runs[2:], runs[:2], runs)
    ]
    assert len(set(scores)) == 5
    backwards = build_translator(runs[::-1], precision="fp32").translate(texts)[0]
    assert backwards.candidates[0].score == pytest.approx(scores[-1][0])


def test_an_ensemble_of_other_vocabularies_is_refused_with_both_folders() -> None:
    other = TokenizerPair(SRC, WordTokenizer(["capital", "old", "the"], lowercase=False))  # in another order
    stranger = run_with(toy(), "b", tokenizers=other)
    with pytest.raises(ValueError, match=r"^pickles/a and pickles/b have different vocabularies"):
        build_translator([run_with(toy(), "a"), run_with(toy(), "c"), stranger])


# Damage.


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-5] ^= 8
    (folder / WEIGHTS).write_bytes(content)


WIDER = TranslationConfig(model=replace(SMALL, tie="target", d_model=16))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: (folder / WEIGHTS).write_bytes(b""), r"\S+ cannot be read \(.+\): train the run again"),
        (flip_a_bit, r"\S+ is damaged: its checksum is wrong: train the run again"),
        (lambda folder: WIDER.save(folder / CONFIG), r"\S+ does not fit config.yaml: .{10,200}"),
        (lambda folder: WordTokenizer(["a"], False).save(folder / "tokenizer_tgt"), r"\S+ does not fit config.yaml: "),
        (lambda folder: (folder / WEIGHTS).unlink(), r"\S+ has no model.safetensors yet: it appears with the first"),
        (lambda folder: (folder / "tokenizer_tgt.json").unlink(), r"no tokenizer in "),
        (lambda folder: (folder / "config.yaml").unlink(), r"no settings \S+: give the folder of a run$"),
        (lambda folder: folder.rename(folder.with_name("moved")), r"no run \S+: give a folder under "),
    ],
)
def test_a_damaged_run_is_refused_in_one_line(tmp_path: Path, damage: Callable[[Path], object], complaint: str) -> None:
    folder, _ = run_of(tmp_path)
    damage(folder)
    with pytest.raises(ValueError, match=f"^{complaint}") as caught:
        load_run(folder, CPU)
    assert "\n" not in str(caught.value)


class Intruder:
    """What a hostile file would run, were it unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", [WEIGHTS, "config.yaml", "tokenizer_src.json"])
def test_nothing_in_a_run_is_unpickled(tmp_path: Path, name: str) -> None:
    folder, trace = run_of(tmp_path)[0], tmp_path / "trace"
    for hostile in pickle.dumps(Intruder(trace)), f"!!python/object/apply:os.mkdir ['{trace}']\n".encode():
        (folder / name).write_bytes(hostile)
        with pytest.raises(ValueError):  # noqa: PT011 (each file complains in its own words)
            load_run(folder, CPU)
        assert not trace.exists()


# Where a figure comes from.


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    return subprocess.run(["git", "-C", folder, *named, *words], capture_output=True, text=True, check=True).stdout


def test_a_commit_is_named_and_so_is_that_code_differs_from_it(tmp_path: Path) -> None:
    assert commit(tmp_path) == f"version {VERSION}"
    git(tmp_path, "init")
    for name in ("code", "README.md"):
        (tmp_path / name).touch()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    revision = git(tmp_path, "rev-parse", "HEAD").strip()
    for name in ("new", "README.md"):  # they change nothing that is computed
        (tmp_path / name).write_text("after")
    assert commit(tmp_path) == revision
    (tmp_path / "code").write_text("after")
    assert commit(tmp_path) == f"{revision}, changed"


def test_a_machine_is_named_with_the_instructions_that_products_are_held_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    before = machine(CPU)
    assert before.endswith(f", {torch.get_num_threads()} threads")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert machine(CPU) == (before.replace("), ", "; oneDNN: AVX2), ") if sys.platform == "linux" else before)


def test_a_path_is_written_as_on_any_machine(tmp_path: Path) -> None:
    assert portable(CORPUS / "kftt" / "train.ja") == "corpus/kftt/train.ja"
    assert portable(PICKLES / "bert-1") == "pickles/bert-1"
    assert portable(ROOT / "texts" / "my.ja") == "texts/my.ja"
    assert portable(tmp_path / "my.ja") == "my.ja"
    assert portable(Path("texts/my.ja")) == "texts/my.ja"
