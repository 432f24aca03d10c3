"""Settings: what is written in files and on the command line of train.py, and what becomes of it."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from config import reader
from config.data import BatchConfig, CleanConfig, DataConfig, LabelledConfig, TokenizerConfig
from config.group import Bound
from config.model import BertConfig, ClassifierConfig, TransformerConfig
from config.reader import fields_of, group_of, layer_from_options, names_of
from config.search import SearchConfig
from config.training import OptimizerConfig, TranslationTrainingConfig
from const.path import PRESET, ROOT
from models import transformer
from models.bert import BertClassifier, BertForPreTraining
from models.transformer import Transformer
from models.transformer_xl import TransformerXL
from utils import arguments as arguments_module
from utils.arguments import Arguments, as_options, as_text, build_parser, read_arguments
from utils.arguments import settings as settings_of
from utils.config import (
    CONFIG_TYPES,
    AnyConfig,
    ClassificationConfig,
    LanguageConfig,
    MaskedLanguageConfig,
    RunConfig,
    TranslationConfig,
    find_settings,
)
from utils.run import find_run

PRESETS = sorted(PRESET.iterdir())

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
paths = st.none() | st.sampled_from(["/my.ja", "/文 書/a b.ja", "/d/../x:y.ja", "/~/a#b"]).map(Path)
floats = st.floats(1e-12, 1e6) | st.sampled_from([7e-4, 1e-9, 1.0])
shares = st.floats(0, 1, exclude_max=True)
counts = st.integers(1, 10**9)
configs = st.builds(
    TranslationConfig,
    name=names,
    data=st.builds(
        DataConfig,
        corpus=st.sampled_from(["kftt", "embedded", "files"]),
        src_lang=st.sampled_from(["ja", "en", "no", "on"]),  # YAML 1.1 reads the last two as booleans
        archive=paths,
        src=paths,
        clean=st.builds(
            CleanConfig,
            max_chars=st.none() | counts,
            max_length_ratio=st.none() | st.floats(1, 1e9),
            drop_duplicates=st.booleans(),
        ),
    ),
    tokenizer=st.builds(TokenizerConfig, kind=st.sampled_from(["word", "bpe"]), vocab_size=counts, joint=st.booleans()),
    model=st.builds(TransformerConfig, d_model=counts, dropout=st.floats(0, 1), tie=st.sampled_from(["none", "all"])),
    optimizer=st.builds(OptimizerConfig, peak_lr=floats, betas=st.tuples(shares, shares), eps=floats),
    training=st.builds(
        TranslationTrainingConfig,
        max_steps=st.none() | counts,
        max_epochs=st.none() | counts,
        max_minutes=st.none() | floats,
    ),
    search=st.builds(
        SearchConfig,
        beam_size=st.integers(1, 1000),
        length_penalty=st.floats(-10, 10),
        normalization=st.sampled_from(["gnmt", "length"]),
        min_length=st.integers(0, 1024),
        min_ratio=st.floats(0, 2),
        max_ratio=st.floats(2, 9) | st.just(math.inf),
        no_repeat_ngram=st.integers(0, 9),
    ),
)


def leaves(tree: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for leaf in dataclasses.fields(tree):
        value = getattr(tree, leaf.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{above}{leaf.name}.")
        else:
            yield above + leaf.name, value


def yaml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@settings(max_examples=25)  # making a parser takes long
@given(config=configs)
def test_what_is_saved_is_loaded_again(config: TranslationConfig, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    config.save(path)
    assert TranslationConfig.load(path) == config


def test_a_saved_config_says_every_leaf_and_is_plain_yaml(tmp_path: Path) -> None:
    config = TranslationConfig(name="都", data=DataConfig(src=Path("my.ja"), clean=CleanConfig(max_chars=None)))
    config.save(tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    for part in ("name: 都\n", "  src: my.ja\n", "    max_chars: null\n"):
        assert part in text
    assert "!" not in text  # no tags: nothing of Python's in it
    assert [key for key, _ in leaves(config) if f"{key.rsplit('.', 1)[-1]}:" not in text] == []


# name: (corpus, source, target, joint vocabulary, parameters with a vocabulary of the size asked for)
GOLDEN = {
    "demo": ("embedded", "ja", "en", False, 1_156_608),
    "kftt_en_ja": ("kftt", "en", "ja", True, 48_236_544),
    "kftt_en_ja_small": ("kftt", "en", "ja", True, 7_578_624),
    "kftt_ja_en": ("kftt", "ja", "en", True, 48_236_544),
    "kftt_ja_en_small": ("kftt", "ja", "en", True, 7_578_624),
    "kftt_trunk": ("kftt", "ja", "en", True, 14_892_480),
    "multi30k_de_en": ("multi30k_tok", "de", "en", True, 2_605_568),
    "multi30k_de_en_words": ("multi30k_tok", "de", "en", False, 10_156_864),
    "multi30k_en_de": ("multi30k_tok", "en", "de", True, 2_605_568),
    "tanaka_10k_ja_en": ("tanaka", "ja", "en", False, 7_596_288),
    "tanaka_en_ja": ("tanaka", "en", "ja", True, 7_066_624),
    "tanaka_ja_en": ("tanaka", "ja", "en", True, 7_066_624),
}
# name: (task, text, parameters with a vocabulary of the size asked for)
GOLDEN_OTHERS = {
    "bert_ja": ("masked_language", "kftt ja", 5_381_699),
    "bert_tanaka_ja": ("masked_language", "tanaka ja", 4_061_555),
    "kftt_category_ja": ("classification", "kftt-category-ja/train.text", 5_310_735),
    "transformer_xl_en": ("language", "kftt en", 5_469_696),
}


def test_every_preset_has_its_golden_values() -> None:
    assert [path.stem for path in PRESETS] == sorted([*GOLDEN, *GOLDEN_OTHERS])


@pytest.mark.parametrize("name", GOLDEN)
def test_a_preset_is_what_its_name_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "initialise", lambda *_: None)  # only counted
    config = TranslationConfig.load(PRESET / f"{name}.yaml")
    vocab_size = config.tokenizer.vocab_size
    model = Transformer(config.model, vocab_size, vocab_size)
    data = config.data
    resolved = (data.corpus, data.src_lang, data.tgt_lang, config.tokenizer.joint, n_parameters(model))
    assert resolved == GOLDEN[name]
    assert config.model.tie != "all" or config.tokenizer.joint
    assert config.batch.max_tokens <= config.model.max_length


@pytest.mark.parametrize("name", GOLDEN_OTHERS)
def test_a_preset_of_another_task_is_what_its_name_says(name: str) -> None:
    config = RunConfig.load(PRESET / f"{name}.yaml")
    match config:
        case MaskedLanguageConfig():
            net: nn.Module = BertForPreTraining(config.model, config.tokenizer.vocab_size + 1)
            text = f"{config.data.corpus} {config.data.language}"
        case LanguageConfig():
            net = TransformerXL(config.model, config.tokenizer.vocab_size)
            text = f"{config.data.corpus} {config.data.language}"
        case ClassificationConfig():
            net = BertClassifier(config.model, config.tokenizer.vocab_size + 1, 15)
            text = "/".join(config.data.text.parts[-2:])
        case _:
            raise AssertionError(config)
    assert (config.task, text, n_parameters(net)) == GOLDEN_OTHERS[name]
    if not isinstance(config, LanguageConfig):
        assert config.batch.max_tokens <= config.model.max_length


def test_texts_are_found_from_other_folders_when_a_run_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    config = read_arguments(["--config", "demo", "--data.src", "my.ja", "--data.tgt", "../my.en"]).config
    config.save(Path("config.yaml"))
    monkeypatch.chdir("elsewhere")
    for data in (config.data, TranslationConfig.load(tmp_path / "config.yaml").data):
        assert isinstance(data, DataConfig)
        assert (data.src, data.tgt) == (tmp_path / "my.ja", tmp_path / "../my.en")


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_has_its_name_and_says_what_it_is_for(path: Path) -> None:
    assert read_arguments(["--config", str(path)]).config.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# ")


def n_parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


_FILES = [Path(f"/{i}.txt") for i in range(6)]
OF_EVERY_TASK: list[AnyConfig] = [
    TranslationConfig(name="都"),
    MaskedLanguageConfig(name="都"),
    LanguageConfig(name="都"),
    ClassificationConfig(data=LabelledConfig(*_FILES), model=ClassifierConfig(d_model=16, init_encoder=Path("a"))),
]


@pytest.mark.parametrize("config", OF_EVERY_TASK, ids=lambda config: config.task)
def test_the_settings_of_every_task_are_saved_and_loaded_again(config: AnyConfig, tmp_path: Path) -> None:
    assert {each.task for each in OF_EVERY_TASK} == CONFIG_TYPES.keys()
    config.save(tmp_path / "config.yaml")
    assert RunConfig.load(tmp_path / "config.yaml") == type(config).load(tmp_path / "config.yaml") == config


def test_the_settings_of_a_translator_with_a_bert_are_saved_and_loaded_again(tmp_path: Path) -> None:
    config = TranslationConfig(
        model=TransformerConfig(bert=BertConfig(d_model=512, n_layers=3), init_encoder=Path("a"), tie="target")
    )
    config.save(tmp_path / "config.yaml")
    assert TranslationConfig.load(tmp_path / "config.yaml") == config
    typed = read_arguments(
        ["--config", str(tmp_path / "config.yaml"), "--model.bert.n_layers", "5", "--model.init-encoder=b"]
    ).config
    assert isinstance(typed, TranslationConfig)
    assert typed.model == replace(config.model, bert=BertConfig(d_model=512, n_layers=5), init_encoder=Path("b"))


def test_a_task_can_be_asked_for_by_name() -> None:
    assert read_arguments(["--task", "language"]).config == LanguageConfig()
    assert read_arguments(["--task=masked_language", "--model.n_layers", "3"]).config == MaskedLanguageConfig(
        model=BertConfig(n_layers=3)
    )


def test_train_without_options_is_the_preset_of_that_name() -> None:
    arguments = read_arguments([])
    assert arguments == Arguments(TranslationConfig.load(ROOT / "const" / "preset" / "kftt_ja_en.yaml"))


def test_the_command_line_goes_before_the_file_before_the_defaults(tmp_path: Path) -> None:
    path = yaml(tmp_path, "batch:\n  accumulate: 7\n  max_tokens: 70\ndata:\n  clean:\n    max_chars: null\n")
    default = TranslationConfig()
    filed = read_arguments(["--config", str(path)]).config
    assert filed.batch == replace(default.batch, accumulate=7, max_tokens=70)
    assert filed.data == replace(default.data, clean=replace(default.data.clean, max_chars=None))
    assert filed == TranslationConfig.load(path)
    assert replace(filed, batch=default.batch, data=default.data) == default
    typed = read_arguments(["--config", str(path), "--batch.max_tokens", "77", "--data.clean.max_chars=9"]).config
    assert isinstance(typed, TranslationConfig)
    assert typed.batch == BatchConfig(default.batch.tokens_per_batch, 7, 77)
    assert typed.data.clean.max_chars == 9


def test_every_leaf_is_an_option() -> None:
    shown = build_parser().format_help()
    assert [key for key, _ in leaves(TranslationConfig()) if f"--{key} " not in shown and key != "task"] == []
    assert read_arguments(["--training.max_epochs", "null"]).config.training.max_epochs is None


def test_a_cosine_asks_how_long_the_training_is(tmp_path: Path) -> None:
    cosine = ["--optimizer.schedule", "cosine", "--optimizer.warmup_steps", "9"]
    config = read_arguments([*cosine, "--training.max_steps", "30"]).config
    config.save(tmp_path / "config.yaml")
    longer = read_arguments(["--config", str(tmp_path / "config.yaml"), "--training.max_steps", "99"]).config
    assert longer.optimizer == config.optimizer  # the length is the training's, which may still change
    with pytest.raises(ValueError, match=r"give training.max_steps, or optimizer.decay_steps"):
        read_arguments(cosine)


# what a file says | what is said of it, behind the name of the file and, where there is one, the line
REFUSED_FILES = [
    ("model: [\n", 2, ""),
    ("- a list\n", None, "no settings; see const/preset/ for examples"),
    ("just words", None, "no settings; see const/preset/ for examples"),
    ("", None, "no settings; see const/preset/ for examples"),
    ("name: a\nname: b\n", 2, "the key name appears twice"),
    ("optimizer:\n  peak_lr: 0.1\n  peak_lr: 0.2\n", 3, "the key peak_lr appears twice"),
    ("[1, 2]: 1\n", 1, "a key that is a list or a group"),
    ("a: 1\n\tb: 2\n", 2, ""),
    ("a: \x00\n", None, ""),
    ("name: [[a]]\n", 1, "a list of lists or groups"),
    ("model: {n_layer: 3}\n", 1, "unknown setting model.n_layer: did you mean model.n_encoder_layers?"),
    ("modle: {d_model: 3}\n", 1, "unknown setting modle.d_model: did you mean model.d_model?"),
    ("data:\n  clean:\n    max_char: 3\n", 3, "unknown setting data.clean.max_char: did you mean data.clean.max_chars"),
    ("model: 3\n", 1, "model is a group of settings, not 3: give settings below it, or leave it out"),
    ("name: a\ndata:\n  clean:\n", 3, "data.clean is a group of settings, not null"),
    ("batch:\n  max_tokens: null\n", 2, "batch.max_tokens cannot be null: give it a value, or leave it out"),
    ("tokenizer:\n  kind:\n", 2, "tokenizer.kind cannot be null"),
    ("name: null\n", 1, "name cannot be null"),
    ("data:\n  clean:\n    max_length_ratio: 0.5\n", 3, "data.clean.max_length_ratio=0.5: give at least 1"),
    ("search: {beam_size: 0}\n", 1, "search.beam_size=0: give 1 to 1000"),
]


@pytest.mark.parametrize(("text", "line", "message"), REFUSED_FILES)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    path = yaml(tmp_path, text)
    begin = f"{path}, line {line}: {message}" if line else f"{path}: {message}"
    for read in (TranslationConfig.load, lambda path: read_arguments(["--config", str(path)])):
        with pytest.raises(ValueError, match=f"^{re.escape(begin)}") as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("model.d_model", "wide", "a whole number"),
        ("model.d_model", "1.5", "a whole number"),
        ("model.norm_first", "perhaps", "true or false"),
        ("tokenizer.kind", "sentence", "unigram, bpe or word"),
        ("optimizer.betas", "[0.9]", "a list of 2"),
        ("training.max_minutes", "soon", "a number or null"),
        ("data.clean.max_chars", "0", "at least 1, or null"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(option: str, value: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{option}={value}: give {remedy}')}"):
        read_arguments([f"--{option}", value])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.src_lang", "jp"], "src_lang=jp is no language code: did you mean ja?"),
        (["--search.min_length", "9", "--search.max_length", "8"], "min_length=9: give 0 to max_length=8"),
        (["--config", "dmo"], "no settings dmo: did you mean demo?"),
        (["--config", "const/preset/dmo.yaml"], "no settings const/preset/dmo.yaml: did you mean demo?"),
        (["--config", "rabbit"], "no settings rabbit: give a file, or a preset: bert_ja, "),
        (["--config", "/none.yaml"], "no settings /none.yaml: "),
        (["--optimizer.schedule", "cosine"], "schedule=cosine needs the length of the training in updates"),
        (["--resume", "a", "--init-from", "b"], "--resume continues a run, --init-from and --branch start a new one"),
        *(([f"--name={name}"], f"name={name}: give letters") for name in ("", "../x", "a/b", "-x", ".x", "a b")),
    ],
)
def test_settings_that_do_not_go_together_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_arguments(arguments)


def test_an_unknown_option_ends_the_command_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for option, near in ("model.n_layer", "model.n_encoder_layers"), ("training.max_step", "training.max_steps"):
        with pytest.raises(SystemExit) as caught:
            read_arguments([f"--{option}", "3"])
        assert caught.value.code == 2
        assert capsys.readouterr() == ("", f"train.py: error: unknown option {option}: did you mean --{near}?\n")


def test_what_is_not_utf8_or_of_another_task_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "config.yaml").write_bytes(b"\x93\x00")
    with pytest.raises(ValueError, match="not UTF-8: save it as UTF-8"):
        TranslationConfig.load(path)
    LanguageConfig().save(path)
    with pytest.raises(ValueError, match=rf"^{path} is of task language, but translation is needed here$"):
        TranslationConfig.load(path)
    path.write_text("task: singing\n")
    with pytest.raises(ValueError, match=r"task=singing is not one of translation, masked_language, language, class"):
        RunConfig.load(path)
    with pytest.raises(ValueError, match=rf"^no settings {tmp_path}/none: give the folder of a run, or a preset$"):
        RunConfig.load(tmp_path / "none")


def test_a_run_is_read_without_the_settings_that_were_removed_since(tmp_path: Path) -> None:
    config = TranslationConfig(name="都", optimizer=OptimizerConfig(eps=1e-9), search=SearchConfig(max_ratio=math.inf))
    path = tmp_path / "config.yaml"
    config.save(path)
    now = path.read_text(encoding="utf-8")
    path.write_text(now.replace("search:\n", "search:\n  coverage_penalty: 0.2\n"), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != now
    assert TranslationConfig.load(path) == config
    for option in ("--config", str(path)), ("--init-from", str(tmp_path)), ("--resume", str(tmp_path)):
        assert read_arguments(option).config == config


@pytest.mark.parametrize("name", ["demo", "const/preset/demo.yaml", str(PRESET / "demo.yaml")])
def test_a_preset_is_found_from_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_settings(Path(name)) == PRESET / "demo.yaml"


@pytest.mark.parametrize("name", ["own.yaml", "const/preset/demo.yaml", "demo"])
def test_a_file_from_here_comes_before_a_preset(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path(name)
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
    assert dict(leaves(config))[key] == value
    if "'" not in text:
        written = text.split(": ", text.count(": "))[-1].rstrip("}")
        assert dict(leaves(read_arguments([f"--{key}", written]).config))[key] == value


def test_the_help_shows_the_values_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_arguments(["--config", "kftt_trunk", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"--model.d_model a whole number width of every position. \(default: 320\)", shown)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: a translator's, a language model's, and one without settings."""
    for name, config in (("tiny-1", TranslationConfig(name="tiny")), ("story-1", LanguageConfig(name="story"))):
        (tmp_path / name).mkdir()
        config.save(tmp_path / name / "config.yaml")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(arguments_module, "find_run", partial(find_run, root=tmp_path))
    return tmp_path


@pytest.mark.parametrize("named", [lambda folder: folder.name, str])
@pytest.mark.parametrize(("name", "tree"), [("tiny-1", TranslationConfig), ("story-1", LanguageConfig)])
def test_a_run_is_named_by_its_path_or_by_its_name_alone(
    runs: Path, name: str, tree: type, named: Callable[[Path], str]
) -> None:
    resumed = read_arguments(["--resume", named(runs / name)])
    begun = read_arguments(["--init-from", named(runs / name), "--name", "tuned"])
    assert (resumed.resume, resumed.init_from) == (runs / name, None)
    assert (begun.resume, begun.init_from) == (None, runs / name)
    assert type(resumed.config) is type(begun.config) is tree
    assert (resumed.config.name, begun.config.name) == (name.removesuffix("-1"), "tuned")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("tiny-2", "^no run tiny-2: did you mean tiny-1"),
        ("empty", r"^no settings .*empty.config\.yaml: give the folder"),
    ],
)
@pytest.mark.parametrize("option", ["--resume", "--init-from"])
def test_what_is_no_run_is_refused(runs: Path, option: str, name: str, complaint: str) -> None:
    assert runs.is_dir()
    with pytest.raises(ValueError, match=complaint):
        read_arguments([option, name])


def test_a_corpus_that_is_named_anew_takes_the_place_of_a_runs_own_files(runs: Path) -> None:
    a, b, c, d = (runs / name for name in ("a.ja", "a.en", "d.ja", "d.en"))
    own = DataConfig(src=a, tgt=b, dev_src=c, dev_tgt=d, more_src=a, more_tgt=b, src_lang="xx", pre_tokenized=True)
    TranslationConfig(data=own).save(runs / "tiny-1" / "config.yaml")

    def data(*options: str, begin: str = "--init_from") -> DataConfig:
        config = read_arguments([begin, "tiny-1", *options]).config
        assert isinstance(config, TranslationConfig)
        return config.data

    assert data() == own
    for options in (("--data.corpus", "kftt"), ("--data.corpus=kftt",)):
        assert data(*options) == DataConfig(corpus="kftt", src_lang="xx")
    preset = runs / "preset.yaml"
    preset.write_text("data: {corpus: multi30k, src_lang: en, tgt_lang: de, test_src: /t.en}\n")
    assert data("--config", str(preset)) == DataConfig("multi30k", "en", "de", test_src=Path("/t.en"))
    preset.write_text("data: {held_out: 7}\n")
    assert data("--config", str(preset)) == replace(own, held_out=7)
    # another training text takes the place of the further one, too, unless the run goes on with it
    assert data("--data.src", str(c), "--data.tgt", str(d)) == replace(own, src=c, tgt=d, more_src=None, more_tgt=None)
    assert data("--data.src", str(c), "--data.tgt", str(d), begin="--resume") == replace(own, src=c, tgt=d)
    moved = "--data.src", str(c), "--data.tgt", str(d), "--data.more_src", str(d), "--data.more-tgt", str(c)
    assert data(*moved) == replace(own, src=c, tgt=d, more_src=d, more_tgt=c)
    # what is given beside it holds
    archived = data("--data.corpus", "kftt", "--data.archive", "/kftt.tar.gz", "--data.test_src=/t.ja")
    assert (archived.archive, archived.src, archived.test_src) == (Path("/kftt.tar.gz"), None, Path("/t.ja"))


def test_the_help_has_the_type_and_the_default_of_every_setting() -> None:
    text = " ".join(build_parser().format_help().split())
    assert "--model.d_ff a whole number inner width of the feed-forward layers. (default: 2048)" in text
    assert "--training.max_steps a whole number | null stop after this many updates; null: no limit. (default" in text
    assert "--name text name of the run; its folder is pickles/<name>-<date>-<time>. (default: kftt_ja_en)" in text
    assert re.search(r"--data.corpus kftt \| [^(]*\(your own texts\)[^(]*\(default: kftt\)", text)


@pytest.mark.parametrize(
    ("option", "run", "setting", "was", "now"),
    [
        ("--resume", "tiny-1", "tokenizer.vocab_size", "8000", "400"),
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


def test_texts_of_a_preset_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project", "elsewhere"):
        (tmp_path / name / "texts").mkdir(parents=True)
    monkeypatch.setattr("utils.config.ROOT", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "elsewhere")
    given, elsewhere = Path("texts/my.ja"), tmp_path / "elsewhere" / "texts" / "my.ja"

    def found() -> Path | None:
        config = read_arguments(["--config", str(PRESET / "demo.yaml"), "--data.src", str(given)]).config
        assert isinstance(config, TranslationConfig)
        return config.data.src

    assert found() == elsewhere  # of two that are not there, the one from here is told
    (tmp_path / "project" / given).touch()
    assert found() == tmp_path / "project" / given
    elsewhere.touch()
    assert found() == elsewhere


def test_settings_written_as_options_are_those_that_train_would_read() -> None:
    values = {
        "model.dropout": 0.25,
        "optimizer.peak_lr": 1.5e-05,
        "tokenizer.joint": True,
        "training.max_epochs": None,
        "tokenizer.kind": "bpe",
        "name": "日",
    }
    config = settings_of(PRESET / "demo.yaml", values)
    assert read_arguments(["--config", str(PRESET / "demo.yaml"), *as_options(values)]).config == config
    assert {name: dict(leaves(config))[name] for name in values} == values
    with pytest.raises(ValueError, match=r"^unknown setting model\.dff: did you mean model\.d_ff\?$"):
        settings_of(PRESET / "demo.yaml", values | {"model.dff": 16})


def bounded_fields() -> Iterator[tuple[type[AnyConfig], str, Bound, bool]]:
    for config_type in CONFIG_TYPES.values():
        for name, kind in names_of(config_type):
            owner: Any = config_type
            *groups, leaf = name.split(".")
            for group in groups:
                owner = group_of(fields_of(owner)[group])
            bound = next(each for each in dataclasses.fields(owner) if each.name == leaf).metadata.get("bound")
            if bound is not None:
                yield config_type, name, bound, int in (kind, *get_args(kind))


@pytest.mark.parametrize(
    ("config_type", "name", "bound", "whole"), [*bounded_fields()], ids=lambda x: getattr(x, "task", x)
)
def test_a_setting_holds_its_bound(config_type: type[AnyConfig], name: str, bound: Bound, whole: bool) -> None:
    """Just within it is taken, just beyond it refused, with the whole name."""
    step = 1 if whole else 1e-6
    within = [end for end in (bound.least, bound.most) if end is not None]
    within += [bound.above + step] if bound.above is not None else []
    beyond = [bound.least - step] if bound.least is not None else []
    beyond += [bound.most + step * max(1, bound.most)] if bound.most is not None else []
    beyond += [end for end in (bound.above, bound.below) if end is not None and math.isfinite(end)]
    files = {
        f"data.{key}": f"/{key}" for key in ("text", "labels", "dev_text", "dev_labels", "test_text", "test_labels")
    }
    always = files if config_type is ClassificationConfig else {}
    for value in beyond:
        with pytest.raises(ValueError, match=rf"^{re.escape(name)}=\S+: give "):
            reader.read(config_type, layer_from_options(always | {name: as_text(value)}))
    assert within or beyond
    for value in within:
        if name not in ("model.n_encoder_layers", "search.max_length", "search.max_ratio"):  # have a rule beside it
            reader.read(config_type, layer_from_options(always | {name: as_text(value)}))
