from dataclasses import replace

import pytest
import torch

from const.token import EOS
from tests.tiny import MODEL, TEXT, lively, tokenizers
from tests.utils.serve.served import interpreter, translator
from utils.serve import service as module
from utils.serve.service import Asked
from utils.visualize.attention import cross_attention

LINES = [TEXT.src[0], "", TEXT.src[77], "  ", TEXT.src[40]]


@pytest.mark.parametrize(("beam", "n_best", "expected_beam"), [(None, 1, 2), (None, 4, 4), (1, 1, 1), (5, 2, 5)])
def test_it_says_what_the_translator_says(beam: int | None, n_best: int, expected_beam: int) -> None:
    asked = interpreter()
    asked.translate(LINES, Asked(beam=3))  # earlier requests leave no trace
    found = asked.translate(LINES, Asked(beam, n_best))
    expected = translator(beam=expected_beam).translate(LINES, n_best=n_best)
    assert [line.translation for line in found] == expected
    assert len(found[0].translation.candidates) == n_best
    assert all(not line.attention and not line.source_tokens for line in found)


def test_each_candidate_has_its_weights() -> None:
    found = interpreter().translate(LINES, Asked(None, 3, True))
    assert [line.translation for line in found] == translator(beam=3).translate(LINES, n_best=3)
    src, tgt = tokenizers()
    ids = {token: i for i, token in enumerate(tgt.tokens(range(len(tgt))))}
    explicit = lively(replace(MODEL, fused=False), len(src), len(tgt))
    for text, line in zip(LINES, found, strict=True):
        if not text.strip():
            assert (line.source_tokens, line.attention) == ([], [])
            continue
        (source,) = src.encode([text])
        assert line.source_tokens == [*src.tokens(source), EOS]
        assert len(line.attention) == len(line.translation.candidates) == 3
        for candidate, weights in zip(line.translation.candidates, line.attention, strict=True):
            expected = cross_attention(explicit, source, [ids[token] for token in candidate.tokens])[-1].mean(0)[:-1]
            torch.testing.assert_close(torch.tensor(weights).view(-1, len(source) + 1), expected, atol=6e-4, rtol=0)


def test_a_text_in_pieces_has_no_weights() -> None:
    (found,) = interpreter().translate(["".join(TEXT.src[:8])], Asked(attention=True))
    assert found.translation.n_pieces > 1
    assert (found.source_tokens, found.attention) == ([], [])


def test_so_many_weights_are_told_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [TEXT.src[0], TEXT.src[77], TEXT.src[40]]
    whole = interpreter().translate(lines, Asked(attention=True))
    sizes = [len(line.attention[0]) * len(line.source_tokens) for line in whole]
    monkeypatch.setattr(module, "_MOST_WEIGHTS", sizes[0] + sizes[1])
    found = interpreter().translate(lines, Asked(attention=True))
    assert found[:2] == whole[:2]
    assert (found[2].translation, found[2].source_tokens, found[2].attention) == (whole[2].translation, [], [])
