"""Settings: what is written in files and on the command line of train.py, and what becomes of it."""

import gzip
import math
import os
import re
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from threading import Thread
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from config.data import CleanConfig, DataConfig, LabelledConfig
from config.model import (
    BertConfig,
    ClassifierConfig,
    DecoderOnlyConfig,
    RecurrentConfig,
    TransformerConfig,
    TransformerXLConfig,
)
from config.reader import read, settings_from_options, settings_of
from config.search import SearchConfig
from config.training import OptimizerConfig, TranslationTrainingConfig
from const.path import PRESET
from models.bert import BertClassifier, BertForPreTraining
from models.transformer_xl import TransformerXL
from utils import arguments as arguments_module
from utils.arguments import Arguments, as_options, as_text, config_with, read_arguments
from utils.config import (
    CONFIG_TYPES,
    AnyConfig,
    ClassificationConfig,
    DecoderOnlyTranslationConfig,
    LanguageConfig,
    MaskedLanguageConfig,
    RecurrentTranslationConfig,
    RunConfig,
    TranslationConfig,
    find_settings,
)
from utils.dataset.corpus import prepare_corpus
from utils.dataset.text import read_pairs
from utils.load import build_network
from utils.recipe import BY_PAIRS, SIZES, recipe, training_pairs
from utils.run import find_run

paths = st.none() | st.sampled_from(["/my.ja", "/文 書/a b.ja", "/d/../x:y.ja", "/~/a#b"]).map(Path)
floats = st.floats(1e-12, 1e6) | st.sampled_from([7e-4, 1e-9, 1.0])
shares = st.floats(0, 1, exclude_max=True)
counts = st.none() | st.integers(1, 10**9)
configs = st.builds(
    TranslationConfig,
    name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8),
    data=st.builds(
        DataConfig,
        src_lang=st.sampled_from(["ja", "en", "no", "on"]),  # YAML 1.1 reads the last two as booleans
        archive=paths,
        src=paths,
        clean=st.builds(CleanConfig, max_chars=counts, drop_duplicates=st.booleans()),
    ),
    optimizer=st.builds(OptimizerConfig, peak_lr=floats, betas=st.tuples(shares, shares), eps=floats),
    training=st.builds(TranslationTrainingConfig, max_steps=counts, max_minutes=st.none() | floats),
    search=st.builds(SearchConfig, length_penalty=st.floats(-10, 10), max_ratio=st.floats(2, 9) | st.just(math.inf)),
)


def yaml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


@settings(max_examples=25)
@given(config=configs)
def test_what_is_saved_is_loaded_again(config: TranslationConfig, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    config.save(path)
    assert TranslationConfig.load(path) == config


# name: (task, text, whether one vocabulary is for both sides, parameters with a vocabulary of the size asked for)
GOLDEN = {
    "bert_ja": ("masked_language", "kftt ja", True, 5_381_699),
    "bert_tanaka_ja": ("masked_language", "tanaka ja", True, 4_061_555),
    "demo": ("translation", "embedded ja en", False, 1_156_608),
    "gpt_en": ("language", "kftt en", True, 5_469_696),
    "kftt_category_ja": ("classification", "kftt-category-ja/train.text", True, 5_310_735),
    "kftt_en_ja": ("translation", "kftt en ja", True, 14_892_480),
    "kftt_en_ja_small": ("translation", "kftt en ja", True, 7_578_624),
    "kftt_ja_en": ("translation", "kftt ja en", True, 14_892_480),
    "kftt_ja_en_small": ("translation", "kftt ja en", True, 7_578_624),
    "kftt_trunk": ("translation", "kftt ja en", True, 14_892_480),
    "multi30k_de_en": ("translation", "multi30k_tok de en", True, 2_605_568),
    "multi30k_de_en_rnn": ("recurrent_translation", "multi30k_tok de en", True, 2_618_744),
    "multi30k_de_en_words": ("translation", "multi30k_tok de en", False, 10_156_864),
    "multi30k_en_de": ("translation", "multi30k_tok en de", True, 2_605_568),
    "multi30k_en_de_decoder_only": ("decoder_only_translation", "multi30k_tok en de", True, 2_605_056),
    "tanaka_10k_ja_en": ("translation", "tanaka ja en", False, 7_596_288),
    "tanaka_en_ja": ("translation", "tanaka en ja", True, 7_066_624),
    "tanaka_en_ja_bpe": ("translation", "tanaka en ja", False, 13_524_800),
    "tanaka_en_ja_words": ("translation", "tanaka en ja", False, 4_073_792),
    "tanaka_ja_en": ("translation", "tanaka ja en", True, 7_066_624),
    "transformer_xl_en": ("language", "kftt en", True, 5_469_696),
}


def test_every_preset_is_what_its_name_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {}
    for name in ("normal_", "uniform_", "xavier_uniform_", "kaiming_uniform_"):  # their weights are only counted
        monkeypatch.setattr(nn.init, name, lambda weight, *_, **__: weight)
    for path in sorted(PRESET.iterdir()):
        config, vocab_size = RunConfig.load(path), RunConfig.load(path).tokenizer.vocab_size
        match config:
            case TranslationConfig(data=data):
                net: nn.Module = build_network(config, vocab_size, vocab_size)
                text = f"{data.corpus} {data.src_lang} {data.tgt_lang}"
                assert config.model.tie != "all" or config.tokenizer.joint
            case MaskedLanguageConfig(data=data):
                net, text = BertForPreTraining(config.model, vocab_size + 1), f"{data.corpus} {data.language}"
            case LanguageConfig(data=data):
                net, text = TransformerXL(config.model, vocab_size), f"{data.corpus} {data.language}"
            case ClassificationConfig(data=data):
                net, text = BertClassifier(config.model, vocab_size + 1, 15), "/".join(data.text.parts[-2:])
        size = sum(p.numel() for p in net.parameters())
        sizes[path.stem] = (config.task, text, config.tokenizer.joint, size)
        assert config.name == path.stem
        assert isinstance(config, LanguageConfig) or config.batch.max_tokens <= config.model.max_length
    assert sizes == GOLDEN


_FILES = [Path(f"/{i}.txt") for i in range(6)]
OF_EVERY_TASK: list[AnyConfig] = [
    TranslationConfig(model=TransformerConfig(bert=BertConfig(n_layers=3), init_encoder=Path("a"), tie="target")),
    RecurrentTranslationConfig(model=RecurrentConfig(d_hidden=7)),
    DecoderOnlyTranslationConfig(model=DecoderOnlyConfig(n_layers=7)),
    MaskedLanguageConfig(name="都"),
    LanguageConfig(name="都"),
    ClassificationConfig(data=LabelledConfig(*_FILES), model=ClassifierConfig(d_model=16, init_encoder=Path("a"))),
]


@pytest.mark.parametrize("config", OF_EVERY_TASK, ids=lambda config: config.task)
def test_the_settings_of_every_task_are_saved_and_loaded_again(config: AnyConfig, tmp_path: Path) -> None:
    assert {config.task for config in OF_EVERY_TASK} == CONFIG_TYPES.keys()
    config.save(tmp_path / "config.yaml")
    assert RunConfig.load(tmp_path / "config.yaml") == type(config).load(tmp_path / "config.yaml") == config


def test_a_task_can_be_asked_for_by_name_and_without_options_it_is_a_preset() -> None:
    bert = MaskedLanguageConfig(model=BertConfig(n_layers=3))
    assert read_arguments(["--task=masked_language", "--model.n_layers", "3"]).config == bert
    assert read_arguments([]) == Arguments(TranslationConfig.load(PRESET / "kftt_ja_en.yaml"))


def test_the_command_line_goes_before_the_file_before_the_defaults(tmp_path: Path) -> None:
    path = yaml(tmp_path, "batch:\n  accumulate: 7\n  max_tokens: 70\ndata:\n  clean:\n    max_chars: null\n")
    default = TranslationConfig()
    batch, clean = replace(default.batch, accumulate=7, max_tokens=70), replace(default.data.clean, max_chars=None)
    filed = replace(default, batch=batch, data=replace(default.data, clean=clean))
    assert read_arguments(["--config", str(path)]).config == TranslationConfig.load(path) == filed
    typed = read_arguments(["--config", str(path), "--batch.max_tokens", "77", "--model.bert.n-layers=9"]).config
    model = replace(default.model, bert=BertConfig(n_layers=9))
    assert typed == replace(filed, batch=replace(batch, max_tokens=77), model=model)


FREE = {"dropout": 0.5, "attention_dropout": 0.4, "fused": False}  # what no weights are made for


@pytest.mark.parametrize(
    ("config", "free", "other"),
    [
        (
            TransformerConfig(),
            FREE | {"init_encoder": Path("a"), "initialisation": "xavier_uniform", "max_length": 9},
            replace(
                TransformerConfig(32, 4, 64, 1, 1, 0.0, 0.0, False, "gelu", "learned", 48, tie="none"),
                scale_attention=False,
                scale_embedding=False,
                norm="rms",
            ),
        ),
        (
            TransformerXLConfig(),
            FREE | {"memory_length": 7},
            TransformerXLConfig(8, 4, 5, 1, activation="gelu", tie=False),
        ),
        (BertConfig(), FREE, BertConfig(32, 4, 48, 3, 0.0, 0.0, "relu", 13, 3, True, 1e-5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_what_weights_are_made_for_is_architecture(config: Any, free: dict[str, Any], other: Any) -> None:
    mine, others, changed = config.architecture(), other.architecture(), replace(config, **free)
    assert changed.architecture() == mine
    assert vars(config).keys() - {*mine, "bert"} == {*free}
    assert all(mine[name] != others[name] for name in mine)
    if isinstance(config, TransformerConfig):  # of a table of positions, its length; of a BERT, its own
        assert replace(changed, positions="learned").architecture()["max_length"] == 9
        assert replace(config, bert=BertConfig()).architecture()["bert"] == BertConfig().architecture()


# what a file says | what is said of it, behind the name of the file and, where there is one, the line
REFUSED_FILES = [
    ("model: [\n", 2, ""),
    ("", None, "no settings; see const/preset/ for examples"),
    ("name: a\nname: b\n", 2, "the key name appears twice"),
    ("[1, 2]: 1\n", 1, "a key that is a list or a group"),
    ("a: \x00\n", None, ""),
    ("\udc93", None, "not UTF-8: save it as UTF-8"),
    (
        "task: singing\n",
        None,
        "task=singing is not one of translation, recurrent_translation, decoder_",
    ),
    ("model: &a\n  bert: *a\n", None, "a group that is a part of itself"),
    ("optimizer:\n  betas: '[0.9'\n", 2, "optimizer.betas=[0.9: give a list of 2"),
    ("name: [[a]]\n", 1, "a list of lists or groups"),
    ("model: {n_layer: 3}\n", 1, "unknown setting model.n_layer: did you mean model.n_encoder_layers?"),
    ("data:\n  clean:\n    max_char: 3\n", 3, "unknown setting data.clean.max_char: did you mean data.clean.max_chars"),
    ("model: 3\n", 1, "model is a group of settings, not 3: give settings below it, or leave it out"),
    ("batch:\n  max_tokens: null\n", 2, "batch.max_tokens cannot be null: give it a value, or leave it out"),
    ("data:\n  clean:\n    max_length_ratio: 0.5\n", 3, "data.clean.max_length_ratio=0.5: give at least 1"),
]


@pytest.mark.parametrize(("text", "line", "message"), REFUSED_FILES)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    path = yaml(tmp_path, text)
    begin = f"{path}, line {line}: {message}" if line else f"{path}: {message}"
    for load in (TranslationConfig.load, lambda path: read_arguments(["--config", str(path)])):
        with pytest.raises(ValueError, match=f"^{re.escape(begin)}") as caught:
            load(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.d_model", "wide"], "model.d_model=wide: give a whole number"),
        (["--model.n_heads", "7"], "d_model=320 does not split into n_heads=7: choose a multiple of n_heads"),
        *(
            (
                ["--config", name, "--model.d_model", "9", "--model.n_heads", "2"],
                "d_model=9 does not split into n_heads=2",
            )
            for name in ("demo", "bert_ja", "transformer_xl_en", "kftt_category_ja")
        ),
        (["--model.d_model", "15", "--model.positions", "rotary"], "positions=rotary turns pairs, but a head has 3"),
        (["--model.norm_first", "perhaps"], "model.norm_first=perhaps: give true or false"),
        (["--tokenizer.kind", "sentence"], "tokenizer.kind=sentence: give unigram, bpe or word"),
        (["--optimizer.betas", "[0.9]"], "optimizer.betas=[0.9]: give a list of 2"),
        (["--optimizer.betas", "[0.9, 1.0]"], "betas=[0.9, 1.0]: give two numbers"),
        (["--training.max_minutes", "soon"], "training.max_minutes=soon: give a number or null"),
        (["--data.clean.max_chars", "0"], "data.clean.max_chars=0: give at least 1, or null"),
        (["--data.src_lang", "jp"], "src_lang=jp is no language code: did you mean ja?"),
        (["--search.min_length", "9", "--search.max_length", "8"], "min_length=9: give 0 to max_length=8"),
        (["--config", "dmo"], "no settings dmo: did you mean demo?"),
        (["--config", "rabbit"], "no settings rabbit: give a file, or a preset: bert_ja, "),
        (["--optimizer.schedule=cosine", "--training.max_steps=null"], "schedule=cosine needs the length of the"),
        (["--optimizer.schedule=trapezoid", "--optimizer.final_lr=0.2"], "final_lr=0.2 is above peak_lr"),
        (["--resume", "a", "--config", "demo"], "--config demo, but a run that is resumed has its own settings: leave"),
        (["--resume", "a", "--init-from", "b"], "--resume continues a run, --init-from and --branch start a new one"),
        *(([f"--name={name}"], f"name={name}: give letters") for name in ("", "../x", "-x", "a b")),
        ([f"--name={'都' * 67}"], f"name={'都' * 20}...: 201 bytes are too long for a folder: give 200 or less"),
        (["--tokenizer.lowercase=true"], "lowercase=true needs kind=word: with kind=unigram give"),
        (["--tokenizer.kind=word", "--tokenizer.sampling=0.1"], "sampling=0.1 splits words into pieces, kind=word"),
        (["--tokenizer.kind=word", "--tokenizer.tag=true"], "tag=true "),
        *(([f"--data.tag={tag}"], f"tag={tag} is no tag: give a name") for tag in ("s", "2en", "<bt>", "a b", "法")),
        (["--data.more_tag=bt"], "more_tag=bt is for further training text: also give --data.more_src and"),
        (["--model.n_encoder_layers=0"], "n_encoder_layers=0: give at least 1, or a BERT"),
        (["--optimizer.schedule=cosine", "--training.max_steps=9"], "warmup_steps=500 leaves none of max_steps=9 for"),
        (["--task=classification"], "data.text is missing: give it a value"),
        (["--training.seed=99999999999999999999"], "training.seed=99999999999999999999: give 0 to 4,294,967,295"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_arguments(arguments)


def test_a_run_is_read_without_the_settings_that_were_removed_since(tmp_path: Path) -> None:
    (path := tmp_path / "config.yaml").write_text("name: old\nsearch:\n  coverage_penalty: 0.2\n  beam_size: 3\n")
    config = TranslationConfig(name="old", search=SearchConfig(beam_size=3))
    for option in ("--config", str(path)), ("--init-from", str(tmp_path)), ("--resume", str(tmp_path)):
        assert read_arguments(option).config == config


@pytest.mark.parametrize("name", ["demo", "const/preset/demo.yaml"])
def test_a_preset_is_found_from_anywhere_and_a_file_from_here_comes_before_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path(name)
    assert find_settings(own) == PRESET / "demo.yaml"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("name: own\n", encoding="utf-8")
    assert find_settings(own) == own


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("data: {src_lang: no}", "data.src_lang", "no"),  # YAML 1.1 would read a boolean, and
        ("name: 2024", "name", "2024"),  # a number, and
        ("training: {seed: 010}", "training.seed", 10),  # 8
        ("optimizer: {peak_lr: 1e-3}", "optimizer.peak_lr", 0.001),  # a word
        ("search: {max_ratio: .inf}", "search.max_ratio", math.inf),
        ("name: 'null'", "name", "null"),
        ("optimizer: {betas: [0.5, 0.6]}", "optimizer.betas", (0.5, 0.6)),
        ("model: {norm_first: FALSE}", "model.norm_first", False),
    ],
)
def test_a_value_is_what_its_type_makes_of_what_is_written(tmp_path: Path, text: str, key: str, value: object) -> None:
    config = TranslationConfig.load(yaml(tmp_path, text))
    assert attrgetter(key)(config) == value
    if "'" not in text:
        written = text.split(": ", text.count(": "))[-1].rstrip("}")
        assert attrgetter(key)(read_arguments([f"--{key}", written]).config) == value


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: a translator's and a language model's."""
    for name, config in (("tiny-1", TranslationConfig(name="tiny")), ("story-1", LanguageConfig(name="story"))):
        (tmp_path / name).mkdir()
        config.save(tmp_path / name / "config.yaml")
    monkeypatch.setattr(arguments_module, "find_run", partial(find_run, root=tmp_path))
    return tmp_path


def shown_help(*options: str, captured: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        read_arguments([*options, "--help"])
    assert caught.value.code == 0
    return " ".join(captured.readouterr().out.split())


def test_the_help_has_the_type_and_the_value_of_every_setting(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown_help(captured=capsys)
    assert "--model.d_ff a whole number inner width of the feed-forward layers. (default: 1280)" in text
    assert "--training.max_steps a whole number | null stop after this many updates; null: no limit. (default" in text
    assert "--name text name of the run; its folder is pickles/<name>-<date>-<time>. (default: kftt_ja_en)" in text
    assert re.search(r"--data.corpus kftt \| [^(]*\(your own texts\)[^(]*\(default: kftt\)", text)
    text = shown_help("--config", "kftt_trunk", captured=capsys)
    assert "--model.d_model a whole number width of every position. (default: 320)" in text
    text = shown_help("--resume", str(runs / "tiny-1"), captured=capsys)
    assert "--model.bert.d_model a whole number width of every position. (default: 768)" in text
    assert "training text, one sentence per line. (required)" in shown_help("--task=classification", captured=capsys)


def test_a_run_gives_its_task_and_its_settings(runs: Path) -> None:
    for name, tree in (("tiny-1", TranslationConfig), ("story-1", LanguageConfig)):
        resumed = read_arguments(["--resume", name])
        begun = read_arguments(["--init-from", str(runs / name), "--name", "tuned"])
        assert (resumed.resume, begun.init_from) == (runs / name, runs / name)
        assert type(resumed.config) is type(begun.config) is tree
        assert (resumed.config.name, begun.config.name) == (name.removesuffix("-1"), "tuned")


def test_a_training_that_begins_with_the_weights_of_a_branch_does_not_fall_where_the_branch_fell(runs: Path) -> None:
    branch = OptimizerConfig(schedule="trapezoid", decay_from=80, decay_steps=20, peak_lr=0.003)
    TranslationConfig(optimizer=branch).save(runs / "tiny-1" / "config.yaml")
    begun = read_arguments(["--init-from", "tiny-1"]).config.optimizer
    assert begun == OptimizerConfig(schedule="trapezoid", peak_lr=0.003)
    assert read_arguments(["--init-from", "tiny-1", "--optimizer.decay_from", "9"]).config.optimizer.decay_from == 9
    assert read_arguments(["--resume", "tiny-1"]).config.optimizer == branch
    training = TranslationTrainingConfig(max_minutes=7.5, max_epochs=None, precision="bf16")
    TranslationConfig(optimizer=branch, training=training).save(runs / "tiny-1" / "config.yaml")
    copy = read_arguments(["--init-from", "tiny-1"])  # on another machine, perhaps
    assert copy.config.training.precision == "auto"
    assert copy.notice == "Settings of tiny-1 where none are given: ends after 7.5 minutes, peak rate 0.003"
    assert "after 90 updates or 7.5 m" in read_arguments(["--init-from", "tiny-1", "--training.max_steps=90"]).notice
    TranslationConfig(optimizer=replace(branch, decay_from=None)).save(runs / "tiny-1" / "config.yaml")
    assert read_arguments(["--init-from", "tiny-1"]).config.optimizer.decay_steps == 20


@pytest.mark.usefixtures("runs")
def test_a_resumed_run_is_told_which_scores_do_not_compare_with_another_search() -> None:
    for option, said in (
        ("--search.beam_size=1", "Scores of test do not compare with those from before: --search.beam_size=1"),
        ("--search.max_ratio=1.5", "Scores do not compare with those from before: --search.max_ratio=1.5"),
        ("--training.max_steps=90", ""),
    ):
        assert read_arguments(["--resume", "tiny-1", option]).notice == said


FALLING = TranslationTrainingConfig(max_steps=100, max_epochs=None)


def test_a_branch_that_goes_on_falls_to_its_new_end(runs: Path) -> None:
    branch = OptimizerConfig(schedule="trapezoid", decay_from=80, decay_steps=20)
    TranslationConfig(optimizer=branch, training=FALLING).save(runs / "tiny-1" / "config.yaml")
    longer = read_arguments(["--resume", "tiny-1", "--training.max_steps", "160"])
    assert (longer.config.training.max_steps, longer.config.optimizer.decay_steps, longer.notice) == (160, 80, "")
    typed = ["--resume", "tiny-1", "--training.max_steps", "160", "--optimizer.decay_steps", "30"]
    assert read_arguments(typed).config.training.max_steps == 110


def test_how_long_a_branch_falls_is_not_taken_over_from_its_trunk(runs: Path) -> None:
    trunk, folder = OptimizerConfig(schedule="trapezoid", warmup_steps=10, decay_steps=7), runs / "tiny-1"
    TranslationConfig(optimizer=trunk, training=replace(FALLING, max_minutes=5.0)).save(folder / "config.yaml")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "step-00000040.pt").touch()

    def rates(*options: str) -> tuple[int | None, float | None, int | None, int | None]:
        config = read_arguments(["--branch", "tiny-1", *options]).config
        training, optimizer = config.training, config.optimizer
        return training.max_steps, training.max_minutes, optimizer.decay_from, optimizer.decay_steps

    assert rates() == (50, None, 40, 10)
    assert rates("--optimizer.decay_steps", "5") == (45, None, 40, 5)
    assert rates("--training.max_minutes", "9") == (None, 9.0, None, None)
    with pytest.raises(ValueError, match="is still warming up, at update 40 of 60: train it further"):
        rates("--optimizer.warmup_steps", "60")


@pytest.mark.parametrize(
    ("settings", "last"),
    [
        ("cosine warmup_steps=5 decay_steps=20", 25),
        ("cosine warmup_steps=5 decay_steps=20 final_lr=1e-5", None),
        ("trapezoid decay_from=80 decay_steps=20", 100),
        ("trapezoid decay_steps=20", None),
        ("inverse_sqrt decay_steps=20", None),
    ],
)
def test_a_training_goes_no_further_than_there_is_a_rate_to_learn_at(settings: str, last: int | None) -> None:
    options = [f"--optimizer.schedule={settings.split()[0]}", *(f"--optimizer.{rest}" for rest in settings.split()[1:])]
    for limit in (None, 30, 2000):
        arguments = read_arguments(["--config", "tanaka_ja_en", *options, f"--training.max_steps={limit or 'null'}"])
        ends_early = last is not None and (limit is None or limit > last)
        assert arguments.config.training.max_steps == (last if ends_early else limit)
        assert (f"from update {last} on" in arguments.notice) is ends_early


A, B, C, D = (Path(f"/{name}") for name in ("a.ja", "a.en", "d.ja", "d.en"))
OWN_DATA = DataConfig(src=A, tgt=B, dev_src=C, dev_tgt=D, more_src=A, more_tgt=B, src_lang="xx", pre_tokenized=True)
TAGGED, MOVED = replace(OWN_DATA, tag="law", more_tag="bt"), replace(OWN_DATA, src=C, tgt=D)
TO_C_AND_D = "--data.src /d.ja --data.tgt /d.en"
ARCHIVED = "--data.corpus kftt --data.archive /kftt.tar.gz --data.test_src=/t.ja"


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        (OWN_DATA, "", OWN_DATA),
        (OWN_DATA, "--data.corpus kftt", DataConfig("kftt", "xx")),
        (OWN_DATA, "--config german.yaml", DataConfig("multi30k", "en", "de", test_src=Path("/t.en"))),
        (OWN_DATA, "--config held_out.yaml", replace(OWN_DATA, held_out=7)),
        # what is given beside it holds
        (OWN_DATA, ARCHIVED, DataConfig("kftt", "xx", archive=Path("/kftt.tar.gz"), test_src=Path("/t.ja"))),
        # another training text takes the place of the further one, too, unless the run goes on with it
        (OWN_DATA, TO_C_AND_D, replace(MOVED, more_src=None, more_tgt=None)),
        (OWN_DATA, f"--resume tiny-1 {TO_C_AND_D}", MOVED),
        (OWN_DATA, f"{TO_C_AND_D} --data.more_src /d.en --data.more-tgt /d.ja", replace(MOVED, more_src=D, more_tgt=C)),
        (
            OWN_DATA,
            "--data.src null --data.tgt null --data.pairs /d.ja",
            replace(OWN_DATA, src=None, tgt=None, pairs=C, more_src=None, more_tgt=None),
        ),
        (TAGGED, TO_C_AND_D, replace(MOVED, tag="law", more_src=None, more_tgt=None)),
        (TAGGED, "--data.held_out=9", replace(TAGGED, held_out=9)),
        (DataConfig(archive=A), TO_C_AND_D, DataConfig(src=C, tgt=D)),
        (DataConfig("files", pairs=A), f"--data.corpus=files {TO_C_AND_D}", DataConfig("files", src=C, tgt=D)),
    ],
)
def test_a_corpus_that_is_named_anew_takes_the_place_of_a_runs_own_files(
    before: DataConfig, options: str, after: DataConfig, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    Path("german.yaml").write_text("data: {corpus: multi30k, src_lang: en, tgt_lang: de, test_src: /t.en}\n")
    Path("held_out.yaml").write_text("data: {held_out: 7}\n")
    TranslationConfig(data=before).save(runs / "tiny-1" / "config.yaml")
    begin = "" if "--resume" in options else "--init-from tiny-1 "
    assert read_arguments((begin + options).split()).config.data == after


@pytest.mark.parametrize(
    ("option", "run", "setting", "was", "now"),
    [
        ("--init-from", "tiny-1", "tokenizer.kind", "unigram", "bpe"),
        ("--resume", "story-1", "data.held_out", "500", "700"),
        ("--resume", "tiny-1", "training.select_by", "bleu", "loss"),
    ],
)
def test_what_a_run_was_trained_with_stays(runs: Path, option: str, run: str, setting: str, was: str, now: str) -> None:
    assert read_arguments([option, run, f"--{setting}", was, "--tokenizer.sampling", "0.1"]).config.tokenizer.sampling
    message = f"{setting}={now}, but {runs / run} was trained with {was}: give --{setting} {was}, or train a new run"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_arguments([option, run, f"--{setting}", now])


def test_texts_are_found_from_here_or_from_the_project_also_when_the_run_is_used_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("project", "here"):
        (tmp_path / name / "texts").mkdir(parents=True)
    monkeypatch.setattr("utils.config.ROOT", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "here")
    for place in ("here", "project", "here"):  # of two that are not there, the one from here is told
        config = read_arguments(["--config", str(PRESET / "demo.yaml"), "--data.src", "texts/my.ja"]).config
        assert config.data.src == tmp_path / place / "texts/my.ja"  # type: ignore[union-attr]
        (tmp_path / ("project" if place == "here" else "here") / "texts/my.ja").touch()
    config.save(tmp_path / "config.yaml")
    monkeypatch.chdir(tmp_path)
    assert TranslationConfig.load(tmp_path / "config.yaml").data == config.data


def test_what_a_pipe_gives_is_kept_for_a_run_that_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.config.CORPUS", tmp_path / "corpus")
    os.mkfifo(tmp_path / "pipe")
    writer = Thread(target=(tmp_path / "pipe").write_text, args=("京都\n",))
    writer.start()
    arguments = ["--config", "demo", "--data.src", str(tmp_path / "pipe"), "--data.tgt", "my.en"]
    data = read_arguments(arguments).config.data
    writer.join()
    assert data.src.parent == tmp_path / "corpus" / "pipes"  # type: ignore[union-attr]
    assert data.src.read_text() == "京都\n"  # type: ignore[union-attr]
    monkeypatch.setenv("WORLD_SIZE", "2")
    os.mkfifo(tmp_path / "other")
    with pytest.raises(ValueError, match="/other is a pipe, which several processes cannot all read: give a file"):
        read_arguments([*arguments[:3], str(tmp_path / "other")])


# ---- a recipe for a text of one's own

PAIRS = "".join(f"彼はペンを{n}本持っている。\the has {n} pens.\n" for n in range(50))
UNIT = '<tu><tuv xml:lang="fr"><seg>a{n}</seg></tuv><tuv xml:lang="de-AT"><seg>b{n}</seg></tuv></tu>'
ROWS, ITEMS, UNITS = (
    "".join(row.replace("{n}", str(n)) for n in range(50))
    for row in ("{n},a{n},寺{n},b,temple {n}\n", '{"id": 7, "translation": {"de": "a{n}", "fr": "b{n}"}}\n', UNIT)
)
TMX = f'<tmx version="1.4"><body>{UNITS}</body></tmx>'
OF_THREE = TMX.replace("</tu>", '<tuv xml:lang="ja"><seg>寺</seg></tuv></tu>', 1)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_counts_the_pairs_that_will_be_prepared_and_writes_no_file(own: Path) -> None:
    lines = [line.split("\t") for line in PAIRS.splitlines()]
    others = [f"彼{n}\the has {n} pens.\n" for n in range(50)]  # of held-out pairs, other translations
    (own / "my.tsv").write_text(PAIRS + PAIRS[:99] + "".join(others), encoding="utf-8")
    (own / "dev.tsv").write_text("はい。\tYes.\n\tNo.\n", encoding="utf-8")
    (own / "more.tsv").write_text(
        f"はい。\tYeah.\n川\triver\n\t橋\n{PAIRS}{''.join(others).replace('has', 'had')}", encoding="utf-8"
    )
    for name, side in (("my.ja", 0), ("my.en", 1)):
        (own / name).write_text("".join(f"{line[side]}\n" for line in lines), encoding="utf-8")
    my, dev, more, ja, en = (own / name for name in ("my.tsv", "dev.tsv", "more.tsv", "my.ja", "my.en"))
    for data in (
        DataConfig("files", pairs=my, held_out=5),
        DataConfig("files", pairs=my, held_out=5, more_pairs=more),
        DataConfig("files", src=ja, tgt=en, held_out=3, dev_pairs=dev, more_pairs=more),
        DataConfig("files", src=ja, tgt=en, dev_pairs=dev, test_src=ja, test_tgt=en, more_pairs=more),
    ):
        before, pairs = {*own.rglob("*")}, [*training_pairs(data)]
        assert {*own.rglob("*")} == before
        assert pairs == [*read_pairs(prepare_corpus(data, own / "corpus").train)]


def test_a_recipe_has_the_sizes_of_the_presets_it_is_made_of() -> None:
    for preset, n_pairs in (("tanaka_ja_en", 50_000), ("kftt_ja_en_small", 200_000)):
        theirs = TranslationConfig.load(PRESET / f"{preset}.yaml")
        ours: Any = config_with(PRESET / "kftt_ja_en_small.yaml", recipe(n_pairs, 5_000, {"data.corpus": "kftt"}))
        for name in ("tokenizer.vocab_size", "model.d_model", "model.d_ff", "model.dropout"):
            assert attrgetter(name)(ours) == attrgetter(name)(theirs)
        # Muon takes fewer updates of larger batches than Tanaka's Adam
        read, wanted = (
            (config.training.max_steps or 0) * config.batch.accumulate * config.batch.tokens_per_batch
            for config in (ours, theirs)
        )
        assert read == pytest.approx(wanted, rel=0.05)
        assert preset == "tanaka_ja_en" or ours.training.max_steps == theirs.training.max_steps


@given(st.integers(1, 10**8))
def test_between_two_sizes_a_recipe_lies_between_them(n_pairs: int) -> None:
    chosen, below = recipe(n_pairs, 0, {}), max((size for size in SIZES if size <= n_pairs), default=SIZES[0])
    above = min((size for size in SIZES if size >= n_pairs), default=SIZES[-1])
    for name, row in BY_PAIRS.items():
        ends = [row[SIZES.index(size)] for size in (below, above)]
        assert min(ends) <= float(chosen[name]) <= max(ends)


def test_a_text_of_ones_own_has_settings_by_its_size_unless_they_are_given(own: Path) -> None:
    (own / "my.tsv").write_text("ja\ten\n" + PAIRS, encoding="utf-8")
    text = ["--data.pairs", "my.tsv", "--data.held_out", "5"]
    fitted = read_arguments(text)
    config: Any = fitted.config
    assert fitted.notice == (
        "my.tsv: 40 pairs, ja to en: vocabulary 2,000, 3+3 layers of 128, dropout 0.3, 2,000 updates of 1,000 tokens, "
        "warm-up 125, peak rate 0.004"
    )
    assert (config.name, config.training.max_steps, config.tokenizer.vocab_size) == ("ja_en", 2000, 2000)
    typed = {"tokenizer.vocab_size": "70", "model.d_model": "64", "training.max_steps": "320", "data.tgt_lang": "en-GB"}
    changed: Any = read_arguments([*text, "--name", "mine", *as_options(typed)]).config
    assert (changed.name, changed.tokenizer.vocab_size, changed.data.tgt_lang) == ("mine", 70, "en-GB")
    assert (changed.model.d_model, changed.model.d_ff, changed.optimizer.warmup_steps) == (64, 256, 20)
    assert read_arguments([*text, "--data.clean.max_pairs", "12"]).notice.startswith("my.tsv: 12 pairs,")
    assert "; cut short after 3 epochs" in read_arguments([*text, "--training.max_epochs", "3"]).notice
    by_the_clock = read_arguments([*text, "--training.max_minutes", "3"])
    assert by_the_clock.config.training.max_steps is None
    assert ", updates of 1,000 tokens, warm-up 100," in by_the_clock.notice
    for choice in (["--config", "demo"], ["--task", "translation"]):
        assert not read_arguments([*text, *choice]).notice
    assert int(recipe(2_000, 3_000, {})["tokenizer.vocab_size"]) > 3_000  # Chinese


@pytest.mark.parametrize(
    ("name", "text", "options", "expected"),
    [
        ("my.tsv", "en\tja\n" + PAIRS, "", "en ja"),
        ("my.tsv", "English\tJapanese\n" + PAIRS, "", "en ja"),
        ("my.csv", "number,note,ja,more,en\n" + ROWS, "", "ja en"),
        ("my.jsonl", ITEMS, "--data.src_lang=fr --data.tgt_lang=de", "fr de"),
        ("my.jsonl", ITEMS, "", "de fr"),
        ("my.tmx", TMX, "", "fr de-AT"),
        ("my.tmx", TMX.replace('"', "'"), "", "fr de-AT"),
        ("my.tmx", OF_THREE, "", "nothing tells both languages"),
        ("my.tsv", "src\ttgt\n" + PAIRS, "--data.tgt_lang=en", "ja en"),
        ("my.tsv", PAIRS, "--data.tgt_lang=en", "ja en"),
        ("my.tsv", "en\tja\n" + PAIRS, "--data.src_lang=ja", "ja en"),
        ("my.tsv", PAIRS, "", "nothing tells both languages of .*my.tsv: give --data.src_lang and --data.tgt_lang$"),
        ("my.tsv", "a\tb\n" * 20, "--data.src_lang=de", "nothing tells both languages"),
    ],
)
def test_the_languages_of_a_text_are_found_or_asked_for(
    own: Path, name: str, text: str, options: str, expected: str
) -> None:
    (own / name).write_text(text, encoding="utf-8")
    given = [f"--data.pairs={name}", "--data.held_out=5", *options.split()]
    if expected.startswith("nothing"):
        with pytest.raises(ValueError, match=expected):
            read_arguments(given)
    else:
        data: Any = read_arguments(given).config.data
        assert [data.src_lang, data.tgt_lang] == expected.split()


def test_two_files_tell_their_languages_by_their_names(own: Path) -> None:
    lines = [line.split("\t") for line in PAIRS.splitlines()]
    (own / "my.train.ja").write_text("".join(f"{ja}\n" for ja, _ in lines), encoding="utf-8")
    (own / "my.train.en.gz").write_bytes(gzip.compress("".join(f"{en}\n" for _, en in lines).encode()))
    fitted = read_arguments(["--data.src=my.train.ja", "--data.tgt=my.train.en.gz", "--data.held_out=5"])
    assert fitted.notice.startswith("my.train.ja and my.train.en.gz: 40 pairs, ja to en: ")


def test_settings_written_as_options_are_those_that_train_would_read() -> None:
    values = {"optimizer.peak_lr": 1.5e-05, "tokenizer.joint": True, "training.max_epochs": None, "name": "日"}
    config = config_with(PRESET / "demo.yaml", values)
    assert read_arguments(["--config", str(PRESET / "demo.yaml"), *as_options(values)]).config == config
    assert {name: attrgetter(name)(config) for name in values} == values
    with pytest.raises(ValueError, match=r"^unknown setting model\.dff: did you mean model\.d_ff\?$"):
        config_with(PRESET / "demo.yaml", {"model.dff": 16})


def test_every_setting_holds_its_bound() -> None:
    """Just within it is taken, just beyond it refused, with the whole name."""
    files = ("text", "labels", "dev_text", "dev_labels", "test_text", "test_labels")
    with_a_rule_beside = ("model.n_encoder_layers", "search.max_length", "search.max_ratio")
    for config_type, setting in ((tree, setting) for tree in CONFIG_TYPES.values() for setting in settings_of(tree)):
        if (bound := setting.bound) is None:
            continue
        name, step = setting.name, 1 if int in (setting.type_, *get_args(setting.type_)) else 1e-6
        within = [end for end in (bound.ge, bound.le) if end is not None]
        within += [bound.gt + step] if bound.gt is not None else []
        beyond = [bound.ge - step] if bound.ge is not None else []
        beyond += [bound.le + step * max(1, bound.le)] if bound.le is not None else []
        beyond += [end for end in (bound.gt, bound.lt) if end is not None and math.isfinite(end)]
        always = {f"data.{key}": f"/{key}" for key in files} if config_type is ClassificationConfig else {}
        if name.endswith("d_model") and config_type is not RecurrentTranslationConfig:
            always |= {name.replace("d_model", "n_heads"): "1"}  # which any width splits into
        assert within or beyond
        for value in beyond:
            with pytest.raises(ValueError, match=rf"^{re.escape(name)}=\S+: give "):
                read(config_type, settings_from_options(always | {name: as_text(value)}))
        for value in within:
            if name not in with_a_rule_beside:
                read(config_type, settings_from_options(always | {name: as_text(value)}))
