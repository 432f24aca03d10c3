"""Sizes that make no network are refused when it is described, not when hours have passed."""

from pathlib import Path

import pytest

from models.bert import BertConfig, ClassifierConfig
from models.transformer import TransformerConfig
from models.transformer_xl import TransformerXLConfig

SIZES = {
    TransformerConfig: {
        "d_model": 0,
        "n_heads": 0,
        "d_ff": 0,
        "n_encoder_layers": 0,
        "n_decoder_layers": 0,
        "max_length": 1,
    },
    BertConfig: {"d_model": 0, "n_heads": 0, "d_ff": 0, "n_layers": 0, "max_length": 1, "n_segments": 0},
    ClassifierConfig: {"n_layers": 0},
    TransformerXLConfig: {"d_model": 0, "n_heads": 0, "d_ff": 0, "n_layers": 0},
}
CASES = [(kind, name, value) for kind, sizes in SIZES.items() for name, value in sizes.items()]


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=lambda case: getattr(case, "__name__", str(case)))
def test_what_makes_no_network_is_refused(kind: type, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{name}={value}: give at least {value + 1}$"):
        kind(**{name: value})
    assert getattr(kind(**{name: value + 1}), name) == value + 1


def test_behind_a_bert_an_encoder_needs_no_layer_of_its_own() -> None:
    for network in ({"bert": BertConfig()}, {"init_encoder": Path("pickles/BERT")}):
        assert TransformerConfig(n_encoder_layers=0, **network).n_encoder_layers == 0
        with pytest.raises(ValueError, match=r"^n_encoder_layers=-1: give at least 0$"):
            TransformerConfig(n_encoder_layers=-1, **network)
