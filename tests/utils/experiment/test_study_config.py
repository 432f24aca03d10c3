"""A study file is read whole and checked by train.py's own parser; each mistake is a line that names it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler

from const.path import PRESET, ROOT
from utils.arguments import read_arguments
from utils.config import MaskedLanguageConfig, TranslationConfig
from utils.experiment.study import Choices, PrunerConfig, Range, SamplerConfig, StudyConfig

STUDIES = sorted((ROOT / "const" / "study").glob("*.yaml"))
TEXT = """
name: tiny
preset: const/preset/demo.yaml
options: {training.max_steps: 30}
space:
  optimizer.peak_lr: {low: 1e-4, high: 0.01, log: true}
  model.d_ff: {choices: [16, 32]}
sampler: {startup_trials: 3}
pruner: none
score: chrf
"""

Read = Callable[[str], StudyConfig]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_text(text: str) -> StudyConfig:
        (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
        return StudyConfig.load(tmp_path / "my.yaml")

    return read_text


def test_a_file_is_read_whole(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a preset of the project is found from anywhere
    assert read(TEXT) == StudyConfig(
        "tiny",
        Path("const/preset/demo.yaml"),
        {"optimizer.peak_lr": Range(1e-4, 0.01, log=True), "model.d_ff": Choices((16, 32))},
        {"training.max_steps": 30},
        SamplerConfig(3),
        PrunerConfig("none"),
        "chrf",
    )


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_studies_of_the_project_are_understood(path: Path) -> None:
    study = StudyConfig.load(path)
    assert study.scored == "bleu"
    assert f"study.py const/study/{path.name}" in path.read_text(encoding="utf-8").partition("name:")[0]


def test_the_study_of_the_guide_is_understood(read: Read) -> None:
    (text,) = re.findall(
        r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "nlp100.md").read_text(encoding="utf-8"), re.S | re.M
    )
    assert read(text).space["optimizer.peak_lr"] == Range(0.0005, 0.005, log=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: tiny", "nam: tiny", "unknown key nam: did you mean name"),
        ("name: tiny", "name: ../tiny", r"name=\.\./tiny: give letters"),
        ("name: tiny", "name: -tiny", "name=-tiny: give letters"),
        ("name: tiny\n", "", "required: name"),
        ("preset/demo", "preset/dem", "no settings const/preset/dem.yaml: did you mean demo?"),
        ("max_steps: 30", "max_step: 30", "unknown option training.max_step=30: did you mean --training.max_steps"),
        ("max_steps: 30", "max_steps: many", "training.max_steps="),
        ("training.max_steps: 30", "name: other", "name is not a setting of a training"),
        ("training.max_steps: 30", "model.d_ff: 16", "model.d_ff is under options and under space"),
        ("model.d_ff:", "model.dff:", "space.model.dff, 16: unknown option model.dff=16: did you mean --model.d_ff"),
        ("model.d_ff:", "training.select_by:", "training.select_by decides how trials are compared: give score"),
        ("[16, 32]", "[16, 32.5]", "space.model.d_ff, 32.5: model.d_ff=32.5: give a whole number"),
        ("[16, 32]", "[16, none]", "space.model.d_ff, none: model.d_ff=none: give a whole number"),
        ("low: 1e-4, high: 0.01, log: true", "low: -1.0, high: 0.01", "space.optimizer.peak_lr, -1.0: peak_lr=-1.0"),
        ("high: 0.01", "hihg: 0.01", "space.optimizer.peak_lr: unknown key hihg: did you mean high"),
        ("pruner: none", "pruner: medain", "pruner.kind=medain"),
        ("pruner: none", "pruner: {kind: median, warmup: 3}", "did you mean --pruner.warmup_steps"),
        ("score: chrf", "score: blue", "score=blue"),
        ("score: chrf", "seed: x", "seed="),
        (TEXT[TEXT.index("space") : TEXT.index("sampler")], "", "a study without a space"),
        (TEXT, "- tiny\n", "no settings of a study"),
        (TEXT, "name: [tiny\n", "line 2: while parsing"),
        ("score: chrf", "name: other", "line 10: the key name appears twice"),
        ("  model.d_ff:", "  optimizer.peak_lr:", "line 7: the key optimizer.peak_lr appears twice"),
        ("model.d_ff:", "1:", "line 7: the key 1 is not a string: quote it"),
        ("score: chrf", "seed: -1", "seed=-1: give 0 or more"),
        ("score: chrf", "seed: [1]", "seed="),
        ("pruner: none", "pruner: 3", "pruner is a group of settings, not 3"),
        ("pruner: none", "pruner: {kind: null}", "pruner.kind cannot be null"),
        ("sampler: {startup_trials: 3}", "sampler: [3]", r"sampler is a group of settings, not \[3\]"),
        ("sampler: {startup_trials: 3}", "sampler: tpe", "sampler is a group of settings, not tpe"),
        ("startup_trials: 3", "startup_trials: null", "sampler.startup_trials cannot be null"),
        ("{training.max_steps: 30}", "3", '"options"'),
        ("{training.max_steps: 30}", "[training.max_steps]", '"options"'),
        ("{training.max_steps: 30}", "{training.max_steps: {a: 1}}", "training.max_steps="),
        ("name: tiny", "name:", "required: name"),
        ("preset: const/preset/demo.yaml", "preset:", "required: preset"),
    ],
)
def test_a_mistake_is_a_line_that_names_it(read: Read, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=rf"my\.yaml: .*{message}") as caught:
        read(TEXT.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["options", "sampler", "pruner", "score", "seed"])
def test_a_key_without_a_value_is_as_good_as_none(read: Read, key: str) -> None:
    lines = [line for line in TEXT.splitlines() if not line.startswith(f"{key}:")]
    assert read("\n".join([*lines, f"{key}:"])) == read("\n".join(lines))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no study .*none\.yaml"):
        StudyConfig.load(tmp_path / "none.yaml")


def test_losses_of_other_vocabularies_are_not_compared(read: Read) -> None:
    text = TEXT.replace("model.d_ff", "tokenizer.vocab_size").replace("[16, 32]", "[300, 400]")
    assert read(text).scored == "chrf"
    with pytest.raises(ValueError, match=r"the loss is per token, and tokenizer\.vocab_size changes what a token is"):
        read(text.replace("chrf", "loss"))


@pytest.mark.parametrize(
    ("preset", "option"),
    [
        ("demo", "accumulate"),
        ("demo", "tokens_per_batch"),
        ("demo", "sentences_per_batch"),
        ("transformer_xl_en", "n_streams"),
        ("transformer_xl_en", "segment_length"),
    ],
)
def test_updates_of_other_sizes_are_not_compared(read: Read, preset: str, option: str) -> None:
    """By the pruner that there is where none is given, a median's."""
    text = f"name: tiny\npreset: const/preset/{preset}.yaml\nspace:\n  batch.{option}: {{choices: [16, 32]}}\n"
    with pytest.raises(ValueError, match=rf"batch\.{option} changes the size of an update: give pruner: none$"):
        read(text)
    assert read(f"{text}pruner: none\n").pruner.kind == "none"


def test_the_score_is_the_presets_where_none_is_given(read: Read) -> None:
    unscored = read(TEXT.replace("score: chrf", ""))
    assert unscored.scored == TranslationConfig.load(PRESET / "demo.yaml").training.select_by == "bleu"
    assert not unscored.minimised
    lost = read(TEXT.replace("chrf", "loss"))
    assert lost.minimised
    assert lost.settings().training.select_by == "loss"


def test_train_reads_what_a_trial_is_given(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    study = read(TEXT)
    values = {"optimizer.peak_lr": 2.5e-05, "model.d_ff": 32}
    config = read_arguments(study.arguments(values)).config
    assert config == study.settings(values)
    assert isinstance(config, TranslationConfig)
    assert (config.optimizer.peak_lr, config.model.d_ff, config.training.max_steps) == (2.5e-05, 32, 30)
    assert config.training.select_by == "chrf"
    assert config.model.d_model == TranslationConfig.load(PRESET / "demo.yaml").model.d_model


def test_other_tasks_have_their_own_options(read: Read) -> None:
    text = TEXT.replace("demo", "bert_tanaka_ja").replace("score: chrf", "score: accuracy")
    study = read(text.replace("model.d_ff: {choices: [16, 32]}", "masking.rate: {low: 0.1, high: 0.3}"))
    assert isinstance(study.settings(), MaskedLanguageConfig)


def test_optuna_is_told_what_the_file_says() -> None:
    tpe = SamplerConfig(3).build(1)
    assert isinstance(tpe, TPESampler)
    assert tpe._n_startup_trials == 3
    median = PrunerConfig("median", 2, 40).build()
    assert isinstance(median, MedianPruner)
    assert (median._n_startup_trials, median._n_warmup_steps) == (2, 40)
    assert isinstance(PrunerConfig("none").build(), NopPruner)
