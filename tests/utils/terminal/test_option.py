from dataclasses import replace

import pytest

from utils.command import Parser
from utils.search.constraint import SearchConfig
from utils.search.sampling import SamplingConfig
from utils.terminal.option import add_search_options, sampling_config, search_config

OWN = SearchConfig(beam_size=2, length_penalty=0.9, max_ratio=3.0)


def search(*words: str, n_best: int = 1) -> SearchConfig:
    return search_config(OWN, parser().parse_args(list(words)), n_best)


def sampling(*words: str, n_best: int = 1) -> SamplingConfig | None:
    return sampling_config(parser().parse_args(list(words)), n_best)


def parser() -> Parser:
    made = Parser(prog="verb.py")
    add_search_options(made)
    return made


def test_what_is_not_given_stays_as_the_run_has_it() -> None:
    assert search() == OWN
    assert sampling() is None


def test_every_option_reaches_its_setting() -> None:
    words = (
        "--beam 5 --length_penalty -1 --normalization length --min_length 2 --max_length 9 --min_ratio 0.1 "
        "--max_ratio 4 --no_repeat_ngram 3"
    )
    assert search(*words.split()) == SearchConfig(5, -1.0, "length", 2, 0.1, 9, 4.0, 3)
    words = "--sample --samples 7 --temperature 0.5 --top_k 10 --top_p 0.9 --seed 4"
    assert sampling(*words.split()) == SamplingConfig(7, 0.5, 10, 0.9, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--beam 0", "--beam 0: give 1 (greedy) to 1000"),
        ("--min_length 5 --max_length 3", "--min_length 5: give 0 to --max_length 3"),
        ("--min_ratio 5", "--min_ratio 5.0: give 0 to --max_ratio 3.0"),
        ("--minimum_bayes_risk --beam 1", "--minimum_bayes_risk has nothing to choose from: give e.g. --beam"),
    ],
)
def test_a_refusal_speaks_of_options(words: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared below)
        search(*words.split())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sample --temperature 0", "--temperature 0.0: give 1e-05 or more, or use greedy search (--beam 1)"),
        ("--sample --samples 0", "--samples 0: give 1 to 10000"),
        ("--top_k 5", "--top_k 5 applies to sampling: add --sample"),
        ("--sample --beam 4", "--sample and --beam 4 at once: samples are drawn without a search; give one"),
        ("--seed 0", "--seed 0 applies to sampling: add --sample"),
    ],
)
def test_a_refusal_of_sampling_speaks_of_options(words: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared below)
        sampling(*words.split())
    assert message in str(caught.value)


def test_a_beam_is_wide_enough_for_what_is_shown() -> None:
    assert search(n_best=5).beam_size == 5
    assert search("--beam", "8", n_best=5).beam_size == 8
    with pytest.raises(ValueError, match="--beam 4 is less than --n_best 5: give --beam 5"):
        search("--beam", "4", n_best=5)
    assert search("--sample", n_best=5).beam_size == 2


def test_as_many_are_drawn_as_are_shown_and_more_to_choose_by_risk() -> None:
    def n_samples(*words: str, n_best: int) -> int:
        found = sampling("--sample", *words, n_best=n_best)
        assert found is not None
        return found.n_samples

    assert n_samples(n_best=1) == 1
    assert n_samples(n_best=6) == 6
    assert n_samples("--minimum_bayes_risk", n_best=1) == 32
    assert n_samples("--minimum_bayes_risk", n_best=50) == 50
    assert n_samples("--samples", "9", n_best=6) == 9
    with pytest.raises(ValueError, match="--samples 4 is less than --n_best 5: give --samples 5"):
        n_samples("--samples", "4", n_best=5)


def test_choosing_by_risk_among_drawn_ones_needs_no_beam() -> None:
    greedy = replace(OWN, beam_size=1)
    asked = parser().parse_args(["--sample", "--minimum_bayes_risk"])
    assert search_config(greedy, asked) == greedy
