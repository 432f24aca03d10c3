"""Sentences scored one after the other, against the whole document read at once."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from const.token import BOS_ID, EOS_ID
from models.transformer_xl import TransformerXL, TransformerXLConfig
from utils.search.document_scorer import DocumentScorer

CONFIG = TransformerXLConfig(d_model=8, n_heads=2, d_ff=12, n_layers=2, dropout=0.1, memory_length=100)
VOCAB = 12

# the candidates of each sentence, and which is chosen: the longest, a shorter one, an empty one, the only one
DOCUMENT = [
    ([[4, 5, 6], [7], [8, 9, 10, 11, 4]], 1),
    ([[5], [], [6, 6, 6, 6]], 2),
    ([[9, 8], [4, 4, 4]], 0),
    ([[], [5, 7]], 0),
    ([[1, 10]], 0),
    ([[6, 5, 4], [6, 5, 4], [4]], 0),
]


def lively(config: TransformerXLConfig = CONFIG) -> TransformerXL:
    torch.manual_seed(0)
    model = TransformerXL(config, VOCAB).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def in_one_go(model: TransformerXL, chosen: list[list[int]], candidate: list[int]) -> float:
    """The probability of a candidate at the end of a document, all of which is read at once."""
    text = [BOS_ID, *(token for sentence in chosen for token in (*sentence, EOS_ID)), *candidate, EOS_ID]
    with torch.no_grad():
        hidden, _ = model(torch.tensor([text[:-1]]), model.start(1, torch.device("cpu")))
        log_probs = model.project(hidden)[0].log_softmax(-1)
    places = range(len(text) - len(candidate) - 1, len(text))
    return sum(log_probs[place - 1, text[place]].item() for place in places)


def test_each_candidate_has_the_probability_that_the_whole_document_gives_it() -> None:
    model = lively()
    scorer, chosen = DocumentScorer(model), list[list[int]]()
    for candidates, best in DOCUMENT:
        expected = [in_one_go(model, chosen, candidate) for candidate in candidates]
        assert scorer.log_probs(candidates) == pytest.approx(expected, abs=1e-5)
        scorer.choose(best)
        chosen.append(candidates[best])


def test_it_matters_what_was_chosen_before() -> None:
    scorer = DocumentScorer(lively())
    found = []
    for i in range(3):
        scorer.new_document()
        scorer.log_probs(DOCUMENT[0][0])
        scorer.choose(i)
        found.append(scorer.log_probs([[5, 6]])[0])
    assert min(abs(a - b) for a, b in zip(found, found[1:] + found[:1], strict=True)) > 1e-3


@pytest.mark.parametrize("memory_length", [0, 1, 3, 6, 100])
def test_neither_other_candidates_nor_their_padding_leave_a_trace(memory_length: int) -> None:
    """A document of which each sentence is the only candidate: the same memory, position by position."""
    together, alone = (DocumentScorer(lively(), memory_length) for _ in range(2))
    for candidates, best in DOCUMENT:
        scores = together.log_probs(candidates)
        together.choose(best)
        assert alone.log_probs([candidates[best]])[0] == pytest.approx(scores[best], abs=1e-5)
        alone.choose(0)
        ours, theirs = together._memory, alone._memory
        assert ours.document.size(1) <= memory_length
        assert ours.document.equal(theirs.document)
        for x, y in zip(ours.hidden, theirs.hidden, strict=True):
            torch.testing.assert_close(x, y)


def test_a_memory_of_few_positions_is_of_the_last_ones_that_were_chosen() -> None:
    scorer = DocumentScorer(lively(), memory_length=4)
    scorer.log_probs(DOCUMENT[0][0])
    scorer.choose(0)  # <s> 4 5 6, of which </s> is yet to be read
    scorer.log_probs(DOCUMENT[1][0])
    scorer.choose(0)  # </s> 5
    read = torch.tensor([[5, 6, EOS_ID, 5]])
    torch.testing.assert_close(scorer._memory.hidden[0], scorer.model.embedding(read))


def test_without_a_memory_each_sentence_is_a_document_of_its_own() -> None:
    scorer, (candidates, best) = DocumentScorer(lively(), memory_length=0), DOCUMENT[0]
    expected = [in_one_go(scorer.model, [], candidate) for candidate in candidates]
    for _ in range(3):
        assert scorer.log_probs(candidates) == pytest.approx(expected, abs=1e-5)
        scorer.choose(best)


def test_the_memory_is_as_long_as_in_training_where_nothing_else_is_asked() -> None:
    short = lively(replace(CONFIG, memory_length=2))
    named, unnamed = DocumentScorer(short, 2), DocumentScorer(short)
    for candidates, best in DOCUMENT:
        assert unnamed.log_probs(candidates) == named.log_probs(candidates)
        unnamed.choose(best)
        named.choose(best)


def test_to_ask_changes_nothing() -> None:
    scorer, (candidates, best) = DocumentScorer(lively()), DOCUMENT[0]
    first = scorer.log_probs(candidates)
    assert scorer.log_probs([]) == []
    assert scorer.log_probs([[9], [8, 8, 8, 8, 8, 8]]) != first
    assert scorer.log_probs(candidates) == first
    scorer.choose(best)
    assert scorer.log_probs(candidates) != first


def test_a_new_document_remembers_nothing_of_the_old() -> None:
    scorer, (candidates, best) = DocumentScorer(lively()), DOCUMENT[0]
    first = scorer.log_probs(candidates)
    scorer.choose(best)
    scorer.new_document()
    assert scorer.log_probs(candidates) == first


def test_only_what_was_asked_about_can_be_chosen() -> None:
    scorer = DocumentScorer(lively())
    with pytest.raises(IndexError):
        scorer.choose(0)
    scorer.log_probs([[4], [5]])
    with pytest.raises(IndexError):
        scorer.choose(2)
    scorer.choose(1)
    with pytest.raises(IndexError):
        scorer.choose(0)
