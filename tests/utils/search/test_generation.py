"""What follows a prompt, against reading everything anew before each token."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from const.token import BOS_ID, EOS_ID
from models.transformer_xl import Memory, TransformerXL, TransformerXLConfig
from tests.utils.search.test_sampling import assert_drawn_by
from utils.search.sampling import SamplingConfig
from utils.task.language import generate

CONFIG = TransformerXLConfig(d_model=8, n_heads=2, d_ff=12, n_layers=2, memory_length=100, tie=False)
VOCAB = 9
PROMPT = [BOS_ID, 5, 4, 7]


def lively(vocab: int = VOCAB, seed: int = 0) -> TransformerXL:
    """What it says depends on all that it reads: weights are large, and the last norm leaves what differs."""
    torch.manual_seed(seed)
    model = TransformerXL(CONFIG, vocab)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.6)
    return model.eval()


def without(model: TransformerXL, token: int) -> TransformerXL:
    """The same, but never saying this token."""
    project = model.project
    model.project = lambda x: project(x).index_fill(-1, torch.tensor([token]), -1e4)  # type: ignore[method-assign]
    return model


@torch.no_grad()
def probabilities(model: TransformerXL, text: list[int]) -> Tensor:
    """Of what may follow a text, read from its beginning."""
    hidden, _ = model(torch.tensor([text]), model.start(1, torch.device("cpu")))
    logits = model.project(hidden[0, -1])
    logits[:EOS_ID] = float("-inf")  # <pad>, <unk> and <s> are not said
    return logits.softmax(-1)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_says_the_likeliest_token_each_time(seed: int) -> None:
    model = lively(40, seed)
    text = PROMPT[:]
    while len(text) < len(PROMPT) + 12 and text[-1] != EOS_ID:
        text.append(int(probabilities(model, text).argmax()))
    assert generate(model, PROMPT, 12) == [text[len(PROMPT) :]]


def test_a_draw_without_warmth_is_greedy() -> None:
    model = lively(40)
    for sampling in (SamplingConfig(3, temperature=1e-4), SamplingConfig(3, top_k=1), SamplingConfig(3, top_p=1e-6)):
        assert generate(model, PROMPT, 8, sampling=sampling) == generate(model, PROMPT, 8) * 3


@pytest.mark.parametrize("sampling", [SamplingConfig(3000), SamplingConfig(3000, 0.6), SamplingConfig(3000, top_k=3)])
def test_continuations_are_drawn_by_the_product_of_their_tokens(sampling: SamplingConfig) -> None:
    model = lively(8)
    expected: dict[tuple[int, ...], float] = {}
    open_ends: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while open_ends:
        said, p = open_ends.pop()
        if len(said) == 3 or said[-1:] == (EOS_ID,):
            expected[said] = p
            continue
        probs = probabilities(model, [*PROMPT, *said]) ** (1 / sampling.temperature)
        if sampling.top_k:
            probs[probs < probs.sort().values[-sampling.top_k]] = 0
        probs /= probs.sum()
        open_ends += [((*said, token), p * q) for token, q in enumerate(probs.tolist()) if q > 0]
    found = generate(model, PROMPT, 3, sampling=sampling)
    assert_drawn_by(Counter(map(tuple, found)), expected)


@pytest.mark.parametrize("sentences", [1, 2, 4])
def test_it_ends_with_the_last_sentence_or_at_the_most_tokens(sentences: int) -> None:
    found = generate(lively(), PROMPT, 8, sentences, SamplingConfig(60))
    over = [said for said in found if said.count(EOS_ID) == sentences]
    assert 5 < len(over) < 60
    for said in found:
        if said in over:
            assert said[-1] == EOS_ID
        else:
            assert said.count(EOS_ID) < sentences
            assert len(said) == 8
    assert len({len(said) for said in over}) > 2


def test_without_an_end_it_says_the_most_tokens() -> None:
    model = without(lively(), EOS_ID)
    assert [len(said) for said in generate(model, PROMPT, 7, sampling=SamplingConfig(3))] == [7, 7, 7]
    assert generate(model, PROMPT, 0) == [[]]


def test_nothing_is_said_that_no_text_contains() -> None:
    found = generate(lively(), PROMPT, 12, 3, SamplingConfig(50, temperature=5.0))
    assert {token for said in found for token in said} == {*range(EOS_ID, VOCAB)}


def test_the_same_seed_says_the_same_however_many_others_there_are() -> None:
    model = lively(40)
    three, five, other = (
        generate(model, PROMPT, 9, 2, SamplingConfig(n, seed=seed)) for n, seed in ((3, 1), (5, 1), (5, 2))
    )
    assert five[:3] == three
    assert all(a != b for a, b in zip(five, other, strict=True))
    assert len({tuple(said) for said in five}) == 5


def test_more_tokens_begin_with_the_same_ones() -> None:
    model = without(lively(40), EOS_ID)
    few, many = (generate(model, PROMPT, most, sampling=SamplingConfig(5)) for most in (4, 9))
    assert [said[:4] for said in many] == few


def test_who_has_ended_changes_nothing_for_the_others() -> None:
    model, sampling = lively(), SamplingConfig(30)
    one, two = (generate(model, PROMPT, 9, sentences, sampling) for sentences in (1, 2))
    assert [said[: said.index(EOS_ID) + 1] if EOS_ID in said else said for said in two] == one
    assert len({len(said) for said in one}) > 3


def test_the_prompt_is_read_once_and_ended_rows_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes = lively(), list[tuple[int, int]]()
    forward = model.forward

    def watched(ids: Tensor, *rest: object, **named: object) -> tuple[Tensor, Memory]:
        shapes.append((ids.size(0), ids.size(1)))
        return forward(ids, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "forward", watched)
    found = generate(model, PROMPT, 15, sampling=SamplingConfig(20))
    assert shapes[0] == (1, len(PROMPT))
    alive = [sum(len(said) > t for said in found) for t in range(1, max(map(len, found)))]
    assert shapes[1:] == [(n, 1) for n in alive]
    assert alive[0] > alive[-1]


@pytest.mark.parametrize("memory_length", [0, 1, 3])
def test_it_remembers_as_much_as_it_is_told(memory_length: int) -> None:
    """A token said on what little is remembered is the likeliest of a step from a memory of that length."""
    model = lively(40, 1)
    memory = model.start(1, torch.device("cpu"))
    said: list[int] = []
    with torch.no_grad():
        hidden, memory = model(torch.tensor([PROMPT]), memory, memory_length=memory_length)
        logits = model.project(hidden[:, -1])
        while len(said) < 10 and said[-1:] != [EOS_ID]:
            said.append(int(logits[0, EOS_ID:].argmax()) + EOS_ID)
            assert memory.document.size(1) <= memory_length
            logits, memory = model.step(torch.tensor(said[-1:]), memory, memory_length)
    assert generate(model, PROMPT, 10, memory_length=memory_length) == [said]


def test_what_cannot_be_gone_on_from_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the prompt is empty: begin it with <s>$"):
        generate(lively(), [], 5)
    with pytest.raises(ValueError, match=r"^sentences=0: give at least 1$"):
        generate(lively(), PROMPT, 5, 0)
