import pytest
import torch

from tests.tiny import TEXT, tokenizers, translating
from utils.search.constraint import SearchConfig
from utils.search.sampling import SamplingConfig
from utils.search.translator import Translator
from utils.terminal.input import Conversation

LINE = TEXT.src[0]


@pytest.fixture
def talk() -> Conversation:
    search = SearchConfig(beam_size=2, max_ratio=1.0)
    return Conversation(Translator(translating(), tokenizers(), "en", search, 14, 48, torch.device("cpu")))


def test_a_line_is_answered_with_its_translation(talk: Conversation) -> None:
    (found,) = talk.translator.translate([LINE])
    assert talk.answer(LINE) == [found.text]
    assert found.text


def test_the_best_ones_are_numbered_and_scored(talk: Conversation) -> None:
    assert talk.answer(":n 3") == ["n 3, beam 3, length_penalty 0.6"]
    (found,) = talk.translator.translate([LINE], n_best=3)
    shown = talk.answer(LINE)
    assert [line.split(maxsplit=2) for line in shown] == [
        [str(i), f"{candidate.score:.4f}", candidate.text.strip()] for i, candidate in enumerate(found.candidates, 1)
    ]
    assert len(shown) == 3


def test_a_narrower_beam_shows_fewer(talk: Conversation) -> None:
    talk.answer(":n 4")
    assert talk.answer(":beam 2") == ["n 2, beam 2, length_penalty 0.6"]
    assert talk.answer(":n 1") == ["n 1, beam 2, length_penalty 0.6"]


def test_as_many_are_drawn_as_are_asked_for(talk: Conversation) -> None:
    talk.translator.sampling = SamplingConfig(2)
    talk.answer(":n 5")
    assert talk.translator.sampling == SamplingConfig(5)
    assert talk.translator.search.beam_size == 2
    assert len(talk.answer(LINE)) == 5


def test_a_prefix_holds_until_it_is_taken_back(talk: Conversation) -> None:
    freely = talk.answer(LINE)
    assert talk.answer(":prefix There is") == ["n 1, beam 2, length_penalty 0.6, prefix 'There is'"]
    assert talk.answer(LINE)[0].startswith("There is")
    talk.answer(":prefix")
    assert talk.answer(LINE) == freely


def test_a_penalty_is_used(talk: Conversation) -> None:
    talk.answer(":n 2")
    before = talk.answer(LINE)
    assert talk.answer(":length_penalty -3") == ["n 2, beam 2, length_penalty -3"]
    assert talk.answer(LINE) != before  # the scores at least


def test_what_a_reader_must_know_stands_below(talk: Conversation) -> None:
    assert talk.answer("😀") == ["😀", "(no part of it is in the vocabulary; left unchanged)"]
    assert talk.answer("".join(TEXT.src[:3]))[1:] == ["(long; translated in 3 pieces)"]


@pytest.mark.parametrize("command", [":q", ":quit", ": quit "])
def test_it_ends_when_told_to(talk: Conversation, command: str) -> None:
    assert talk.answer(":help")[0].startswith("  :n N ")
    assert not talk.is_over
    assert talk.answer(command) == []
    assert talk.is_over


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (":n", ":n: give a whole number of at least 1, such as :n 4"),
        (":n 0", ":n 0: give a whole number"),
        (":beam wide", ":beam wide: give a whole number"),
        (":length_penalty x", ":length_penalty x: give a number"),
        (":length_penalty 99", "length_penalty=99.0: give -10 to 10"),
        (":bem 3", "unknown command :bem: see :help"),
        (":", "unknown command :: see :help"),
    ],
)
def test_a_command_that_cannot_be_obeyed_changes_nothing(talk: Conversation, command: str, message: str) -> None:
    before = talk.settings()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared below)
        talk.answer(command)
    assert message in str(caught.value)
    assert talk.settings() == before


def test_a_prefix_of_unknown_characters_is_refused_and_not_kept(talk: Conversation) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        talk.answer(":prefix 😀")
    assert talk.answer(LINE)[0]
