import os
import pickle
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn

from config.model import TransformerConfig
from config.search import SamplingConfig, SearchConfig
from config.training import Precision
from layers.packed import PackedLinear
from models.transformer import Transformer
from tests.tiny import lively
from utils import device
from utils import run as run_folder
from utils.config import LanguageConfig, TranslationConfig
from utils.run import (
    WEIGHTS,
    Run,
    build_translator,
    create_run,
    find_run,
    load_run,
    newest_run,
    runs_named,
    trained_alone,
)
from utils.text.tokenizer import TokenizerPair, WordTokenizer
from utils.training.checkpoint import write_weights

CPU = torch.device("cpu")
SRC, TGT = WordTokenizer("都京の古い", lowercase=False), WordTokenizer(["capital", "the", "old"], lowercase=False)
SMALL = TransformerConfig(d_model=8, n_heads=2, d_ff=8, n_encoder_layers=1, n_decoder_layers=2, max_length=20)
ids = torch.tensor([[4, 5, 3], [6, 3, 0]])


class Noon(datetime):
    @classmethod
    def now(cls, tz: object = None) -> "Noon":  # noqa: ARG003 (datetime's signature)
        return cls(2026, 1, 2, 12, 0, 0)


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes."""
    monkeypatch.setattr(run_folder, "datetime", Noon)


def run_of(root: Path, tie: Literal["none", "target", "all"] = "target") -> tuple[Path, Transformer, TokenizerPair]:
    """A run whose weights are saved."""
    torch.manual_seed(0)
    tokenizers = TokenizerPair(SRC, SRC if tie == "all" else TGT)
    config = TranslationConfig(name="toy", model=replace(SMALL, tie=tie))
    model = Transformer(config.model, len(tokenizers.src), len(tokenizers.tgt))
    folder = create_run(config, tokenizers, root)
    write_weights(model.state_dict(), folder / WEIGHTS, 0.0)
    return folder, model.eval(), tokenizers


def test_a_new_run_has_its_settings_and_tokenizers(tmp_path: Path) -> None:
    config = TranslationConfig(name="toy", model=SMALL)
    folder = create_run(config, TokenizerPair(SRC, TGT), tmp_path / "pickles")
    assert folder == tmp_path / "pickles" / "toy-20260102-120000"
    assert TranslationConfig.load(folder / "config.yaml") == config
    assert sorted(file.name for file in folder.iterdir()) == ["config.yaml", "tokenizer_src.json", "tokenizer_tgt.json"]


def test_runs_of_one_second_have_a_folder_each(tmp_path: Path) -> None:
    folders = [
        create_run(TranslationConfig(name=name), TokenizerPair(SRC, SRC), tmp_path) for name in ("a", "a", "b", "a")
    ]
    names = ["a-20260102-120000", "a-20260102-120000-2", "b-20260102-120000", "a-20260102-120000-3"]
    assert [folder.name for folder in folders] == names
    assert [TranslationConfig.load(folder / "config.yaml").name for folder in folders] == ["a", "a", "b", "a"]


def test_the_newest_run_is_the_one_whose_file_was_written_last(tmp_path: Path) -> None:
    for time, (name, file) in enumerate([("c", WEIGHTS), ("a", WEIGHTS), ("b", "last.pt"), ("d", "log.jsonl")]):
        (tmp_path / name).mkdir()
        TranslationConfig().save(tmp_path / name / "config.yaml")
        (tmp_path / name / file).touch()
        os.utime(tmp_path / name / file, (time, time))
    (tmp_path / "no run").mkdir()
    (tmp_path / "no run" / WEIGHTS).touch()  # what was exported to here, say
    assert newest_run(WEIGHTS, tmp_path) == tmp_path / "a"
    assert newest_run("last.pt", tmp_path) == tmp_path / "b"
    os.utime(tmp_path / "c" / WEIGHTS, (99, 99))
    assert newest_run(WEIGHTS, tmp_path) == tmp_path / "c"
    (tmp_path / "c" / "config.yaml").write_text("task: summary\n")  # of a version that knows more
    assert newest_run(WEIGHTS, tmp_path) == tmp_path / "a"


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    message = f"^{tmp_path} is being trained by another process: wait, or --resume "
    with trained_alone(tmp_path), trained_alone(other), pytest.raises(ValueError, match=message):
        trained_alone(tmp_path).__enter__()
    with trained_alone(tmp_path):
        pass


def test_a_run_is_found_by_path_by_name_or_as_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "pickles"
    first, newest = (run_of(root)[0] for _ in range(2))
    os.utime(first / WEIGHTS, (1, 1))
    assert find_run(None, root=root) == newest
    assert find_run(Path(first.name), root=root) == find_run(first, root=root) == first
    assert find_run(Path(first.name[: -len("-20260102-120000")]), root=root).name > first.name  # the newest so named
    (newest / WEIGHTS).unlink()  # still training
    assert find_run(Path(first.name[: -len("-20260102-120000")]), root=root) == first
    with pytest.raises(ValueError, match=rf"^no run {first.name[:-1]}: did you mean {first.name}\?$"):
        find_run(Path(first.name[:-1]), root=root)
    with pytest.raises(ValueError, match=rf"^no run x: give a folder under {root}$"):
        find_run(Path("x"), root=root)
    with pytest.raises(ValueError, match=r"^no run of task language "):
        find_run(None, LanguageConfig, root)
    monkeypatch.chdir(tmp_path)
    Path(first.name).mkdir()
    assert find_run(Path(first.name), root=root) == Path(first.name)  # what is here comes first


def test_runs_of_a_name_are_ordered_by_their_time(tmp_path: Path) -> None:
    ordered = [f"mine-20260102-120000{end}" for end in ("-10", "-9", "-2", "")]
    for name in (*reversed(ordered), "mine-20260101-130000", "mine-2-20260103-120000", "mine", "mine-20260104"):
        (tmp_path / name).mkdir()
    assert [run.name for run in runs_named("mine", tmp_path)] == [*ordered, "mine-20260101-130000"]


@pytest.mark.parametrize("there", [True, False])
def test_without_a_run_the_remedy_is_told(tmp_path: Path, there: bool) -> None:
    root = tmp_path if there else tmp_path / "none"
    message = (
        rf"^no run of task translation with a model\.safetensors in {root}: train one first, "
        r"for example `python train\.py --config [\w./]+`$"
    )
    with pytest.raises(ValueError, match=message):
        newest_run(WEIGHTS, root)


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_a_loaded_run_computes_what_the_saved_one_did(tmp_path: Path, tie: Literal["none", "target", "all"]) -> None:
    folder, model, tokenizers = run_of(tmp_path, tie)
    torch.manual_seed(1)  # other weights than those saved, were they not loaded
    loaded = load_run(folder, CPU)
    assert loaded.model(ids, ids).equal(model(ids, ids))
    assert not loaded.model.training
    assert (loaded.model.output.weight is loaded.model.tgt_embedding.weight) is (tie != "none")
    assert (loaded.model.src_embedding.weight is loaded.model.tgt_embedding.weight) is (tie == "all")
    assert (loaded.tokenizers.src is loaded.tokenizers.tgt) is (tie == "all")
    assert loaded.tokenizers.tgt.encode(["the old capital"]) == tokenizers.tgt.encode(["the old capital"])
    assert loaded.folder == folder
    assert loaded.config.model.tie == tie


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    sizes = [(run_of(tmp_path / tie, tie)[0] / WEIGHTS).stat().st_size for tie in ("none", "target")]
    matrix = 4 * len(TGT) * SMALL.d_model
    assert sizes[0] - sizes[1] >= matrix


# translating


def run_with(
    model: Transformer, name: str = "toy", max_tokens: int = 128, tokenizers: TokenizerPair | None = None
) -> Run:
    config = TranslationConfig(name=name, model=model.config)
    batch = replace(config.batch, max_tokens=max_tokens)
    return Run(Path("pickles") / name, replace(config, batch=batch), tokenizers or TokenizerPair(SRC, TGT), model)


def toy(seed: int = 0, max_length: int = 20) -> Transformer:
    return lively(replace(SMALL, tie="target", max_length=max_length), len(SRC), len(TGT), seed)


def test_the_window_is_what_model_and_training_have_seen() -> None:
    for max_tokens, window in (7, 7), (20, 20), (99, 20):
        run = run_with(toy(), max_tokens=max_tokens)
        assert run.window == run.translator().window == window
        assert run.translator().longest == 20


def test_an_ensemble_reads_and_writes_what_all_of_its_models_can() -> None:
    runs = [run_with(toy(max_length=30), max_tokens=9), run_with(toy(max_length=20), max_tokens=99)]
    for order in runs, runs[::-1]:
        ours = build_translator(order)
        assert (ours.window, ours.longest) == (9, 20)


def test_the_translator_searches_as_the_run_does_unless_told_otherwise(tmp_path: Path) -> None:
    run = load_run(run_of(tmp_path)[0], CPU)
    assert run.translator().search == run.config.search
    assert run.translator(SearchConfig(beam_size=1)).search == SearchConfig(beam_size=1)
    assert run.translator().tgt_lang == "en"
    sampling = SamplingConfig(n_samples=3)
    ours = build_translator([run], sampling=sampling, minimum_bayes_risk=True)
    assert (ours.search, ours.sampling, ours.minimum_bayes_risk) == (run.config.search, sampling, True)
    assert (run.translator().sampling, run.translator().minimum_bayes_risk) == (None, False)


@pytest.mark.parametrize(
    ("precision", "fast", "dtype"),
    [("fp32", True, torch.float32), ("bf16", False, torch.bfloat16), ("auto", True, torch.bfloat16)],
)
def test_a_translator_computes_in_the_precision_that_was_asked_for(
    precision: Precision, fast: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "has_fast_bf16", lambda _: fast)
    run = run_with(toy())
    trained = replace(run.config, training=replace(run.config.training, precision=precision))
    for ours in build_translator([run], precision=precision), run._replace(config=trained).translator():
        assert isinstance(ours.model, Transformer)
        layers = [part for part in ours.model.modules() if isinstance(part, PackedLinear)]
        assert {layer.dtype for layer in layers} == {dtype}
        # each decoder block has one more, for query, key and value at once
        n_linears = sum(isinstance(part, nn.Linear) for part in run.model.modules())
        assert len(layers) == n_linears + len(run.model.decoder)
        logits, _ = ours.model.step(ids[:, 0], ours.model.start(ids))
        assert logits.dtype == dtype


@pytest.mark.parametrize("trained", ["fp32", "bf16", "auto"])
def test_what_a_gpu_trained_in_half_precision_translates_on_a_cpu(trained: Precision) -> None:
    run = run_with(toy())

    def trained_in(precision: Precision) -> Run:
        return run._replace(config=replace(run.config, training=replace(run.config.training, precision=precision)))

    assert trained_in("fp16").precision == "auto"
    assert trained_in("fp16").translator().translate(["京 都"])
    assert trained_in(trained).precision == trained
    on_gpu = trained_in("fp16")._replace(model=Transformer(SMALL, 9, 9).to("meta"))  # what is no CPU
    assert on_gpu.precision == "fp16"


def test_a_translator_keeps_the_weights_that_it_was_built_with() -> None:
    model, texts = toy(), ["京 都", "古 い の 都"]
    run = run_with(model.train())
    single, both = (
        build_translator([run], precision="fp32"),
        build_translator([run, run_with(toy(1))], precision="fp32"),
    )
    before = [ours.translate(texts) for ours in (single, both)]
    assert model.training
    model.load_state_dict(toy(2).state_dict())
    assert [ours.translate(texts) for ours in (single, both)] == before
    assert run.translator().translate(texts) != before[0]


def test_an_ensemble_translates_with_all_of_its_models() -> None:
    runs, texts = [run_with(toy(seed)) for seed in range(3)], ["京 都", "古 い の 都"]
    scores = [
        tuple(t.score for t in build_translator(chosen, precision="fp32").translate(texts))
        for chosen in (runs[:1], runs[1:2], runs[2:], runs[:2], runs)
    ]
    assert len(set(scores)) == 5
    assert build_translator(runs[::-1], precision="fp32").translate(texts)[0].score == pytest.approx(scores[-1][0])


@pytest.mark.parametrize(
    "other",
    [
        TokenizerPair(SRC, WordTokenizer(["capital", "old", "the"], lowercase=False)),
        TokenizerPair(SRC, WordTokenizer(["capital", "the", "old", "new"], lowercase=False)),
        TokenizerPair(WordTokenizer("京都の古い", lowercase=False), TGT),
        TokenizerPair(WordTokenizer("都京の古", lowercase=False), TGT),
    ],
    ids=["other order", "one more", "other source", "one less"],
)
def test_an_ensemble_of_other_vocabularies_is_refused_with_both_folders(other: TokenizerPair) -> None:
    stranger = run_with(lively(replace(SMALL, tie="target"), len(other.src), len(other.tgt)), "b", tokenizers=other)
    message = r"^pickles/a and pickles/b have different vocabularies: an ensemble needs the same$"
    for runs in [run_with(toy(), "a"), stranger], [run_with(toy(), "a"), run_with(toy(), "c"), stranger]:
        with pytest.raises(ValueError, match=message):
            build_translator(runs)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_weights_are_refused_in_one_line(tmp_path: Path, keep: int) -> None:
    folder, *_ = run_of(tmp_path)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"^{folder / WEIGHTS} cannot be read \([^\n]+\): train the run again$"):
        load_run(folder, CPU)


def test_weights_with_a_flipped_bit_are_refused(tmp_path: Path) -> None:
    folder, *_ = run_of(tmp_path)
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-5] ^= 8
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged: its checksum is wrong: train the run again$"):
        load_run(folder, CPU)


def test_random_bytes_are_refused_in_one_line(tmp_path: Path) -> None:
    folder, *_ = run_of(tmp_path)
    (folder / WEIGHTS).write_bytes(bytes(range(256)) * 9)
    with pytest.raises(ValueError, match=rf"^{folder / WEIGHTS} cannot be read \([^\n]+\): train the run again$"):
        load_run(folder, CPU)


class Intruder:
    """What a hostile file would run, were it unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", [WEIGHTS, "config.yaml", "tokenizer_src.json"])
def test_nothing_in_a_run_is_unpickled(tmp_path: Path, name: str) -> None:
    folder, *_ = run_of(tmp_path)
    trace = tmp_path / "trace"
    pickle.loads(pickle.dumps(Intruder(trace)))
    trace.unlink()  # it would work
    for hostile in pickle.dumps(Intruder(trace)), f"!!python/object/apply:os.mkdir ['{trace}']\n".encode():
        (folder / name).write_bytes(hostile)
        with pytest.raises(ValueError):  # noqa: PT011 (each file complains in its own words)
            load_run(folder, CPU)
        assert not trace.exists()


@pytest.mark.parametrize(
    "change",
    [{"d_model": 16}, {"n_decoder_layers": 1}, {"n_decoder_layers": 3}, {"tie": "none"}, {"positions": "learned"}],
    ids=str,
)
def test_weights_of_another_architecture_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    folder, *_ = run_of(tmp_path)
    other = replace(SMALL, **{"tie": "target", **change})  # type: ignore[arg-type]
    TranslationConfig(model=other).save(folder / "config.yaml")
    with pytest.raises(ValueError, match=rf"^{folder / WEIGHTS} does not fit config.yaml: [^\n]{{10,200}}$"):
        load_run(folder, CPU)


def test_weights_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    folder, *_ = run_of(tmp_path)
    WordTokenizer(["capital"], lowercase=False).save(folder / "tokenizer_tgt")
    with pytest.raises(ValueError, match=r"does not fit config.yaml: [^\n]{10,200}$"):
        load_run(folder, CPU)


def test_a_run_that_has_learned_nothing_yet_says_so(tmp_path: Path) -> None:
    folder = create_run(TranslationConfig(model=replace(SMALL, tie="target")), TokenizerPair(SRC, TGT), tmp_path)
    with pytest.raises(ValueError, match=rf"^{folder} has no model\.safetensors yet: it appears with the first"):
        load_run(folder, CPU)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^no run {tmp_path / 'none'}: give a folder under "):
        load_run(tmp_path / "none", CPU)
    with pytest.raises(ValueError, match=rf"^no settings {tmp_path / 'config.yaml'}"):
        load_run(tmp_path, CPU)
    folder, *_ = run_of(tmp_path)
    (folder / "tokenizer_tgt.json").unlink()
    with pytest.raises(ValueError, match=rf"^no tokenizer in {folder}"):
        load_run(folder, CPU)
