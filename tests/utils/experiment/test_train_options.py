"""What is written as options is what train.py reads."""

import pytest

from const.path import PRESET
from utils.arguments import as_options, build_parser, read_arguments, settings
from utils.config import MaskedLanguageConfig, TranslationConfig

DEMO = ["--config", str(PRESET / "demo.yaml")]


def test_values_reach_train_as_they_are() -> None:
    values = {
        "model.dropout": 0.25,
        "optimizer.peak_lr": 1.5e-05,
        "batch.max_tokens": 32,
        "tokenizer.joint": False,
        "training.max_epochs": None,
        "tokenizer.kind": "word",
        "data.src_lang": "日",
    }
    given = build_parser().parse_args(as_options(values))
    assert {name: given[name] for name in values} == values


def test_settings_are_those_that_train_would_read() -> None:
    arguments = [*DEMO, *as_options({"training.max_steps": 30, "model.d_ff": 16})]
    config = settings(arguments)
    assert config == read_arguments(arguments).config
    assert isinstance(config, TranslationConfig)
    assert (config.training.max_steps, config.model.d_ff) == (30, 16)


def test_other_tasks_have_their_own_options() -> None:
    config = settings(["--config", str(PRESET / "bert_tanaka_ja.yaml"), "--masking.rate=0.25"])
    assert isinstance(config, MaskedLanguageConfig)
    assert config.masking.rate == 0.25


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.dff=16", "unknown option model.dff=16: did you mean --model.d_ff"),
        ("--model.d_ff=many", "model.d_ff=many: give a whole number"),
        ("--model.d_ff=null", "model.d_ff=None: give a whole number"),
        ("--training.validate_every=0", "validate_every=0: give at least 1 update"),
    ],
)
def test_what_train_would_refuse_is_refused_in_a_line(option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        settings([*DEMO, option])
    assert "\n" not in str(caught.value)
