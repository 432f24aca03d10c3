from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import sacrebleu
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from const.token import BOS_ID, EOS_ID
from models.transformer import Transformer
from tests.tiny import CORPUS, MODEL, TEXT, tokenizers, translating
from utils.config import TranslationConfig
from utils.dataset.batch import Batch, padded
from utils.dataset.text import ParallelText
from utils.evaluation.judge import Validator
from utils.run import Run
from utils.search.constraint import SearchConfig
from utils.search.translator import Candidate, Translation, Translator

GREEDY = SearchConfig(beam_size=1)


def translator(model: Transformer | None = None) -> Translator:
    return Translator(model or translating(), tokenizers(), "en", GREEDY, 48, 48, torch.device("cpu"))


class Dictionary(Translator):
    """Returns the right translation of each line, except for some wrong ones."""

    def __init__(self, wrong: Sequence[str] = ()) -> None:
        self.text = dict(zip(TEXT.src, TEXT.tgt, strict=True)) | dict.fromkeys(wrong, "There is nothing at all here.")

    def search_ids(self, *_: object) -> list[object]:  # type: ignore[override]
        raise AssertionError

    def translate(self, texts: Sequence[str], *_: object) -> list[Translation]:
        return [Translation([Candidate(self.text[text], -1.0, [])], 1, 0, unknown=False) for text in texts]


def test_scores_are_of_translations_against_references() -> None:
    text = TEXT[:10]
    right = Validator(Dictionary, text, CORPUS, 2)(1.5)
    assert [right.loss, right.scores["bleu"], right.scores["chrf"]] == pytest.approx([1.5, 100, 100])
    wrong = Dictionary(text.src[:4])
    validator = Validator(lambda: wrong, text, CORPUS, 2)
    some = validator(1.5)
    expected = [wrong.text[line] for line in text.src]
    assert validator.translations == expected
    assert some.scores["bleu"] == sacrebleu.corpus_bleu(expected, [text.tgt]).score
    assert some.scores["bleu"] != pytest.approx(sacrebleu.corpus_bleu(text.tgt, [expected]).score)
    assert "tok:13a" in some.signatures["bleu"]


@pytest.mark.parametrize(
    ("changes", "tokenizer"), [({"tgt_lang": "ja"}, "ja-mecab"), ({"pre_tokenized": True}, "none")]
)
def test_words_are_found_as_the_corpus_needs_it(changes: dict[str, str | bool], tokenizer: str) -> None:
    corpus = replace(CORPUS, **changes)  # type: ignore[arg-type]
    assert f"tok:{tokenizer}" in Validator(Dictionary, TEXT[:3], corpus, 1)(1.0).signatures["bleu"]


@pytest.mark.parametrize(
    ("lines", "wanted", "shown"),
    [(10, 3, [0, 3, 6]), (120, 4, [0, 30, 60, 90]), (2, 5, [0, 1]), (5, 5, [0, 1, 2, 3, 4]), (7, 0, [])],
)
def test_samples_are_spread_over_the_text(lines: int, wanted: int, shown: list[int]) -> None:
    samples = Validator(lambda: Dictionary(TEXT.src[:1]), TEXT[:lines], CORPUS, wanted)(1.0).samples
    assert [sample.source for sample in samples] == [TEXT.src[i] for i in shown]
    assert [sample.reference for sample in samples] == [TEXT.tgt[i] for i in shown]
    assert [sample.translation for sample in samples[1:]] == [TEXT.tgt[i] for i in shown[1:]]
    assert all(sample.translation == "There is nothing at all here." for sample in samples[:1])


class Parrot(nn.Module):
    """Right about every next token of a target that it is shown, and lost when it must write by itself.

    It says the token that follows the present one in the reference, but the first of them it never gets right.
    """

    def __init__(self, following: dict[int, int]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(len(tokenizers().tgt), len(tokenizers().tgt)))
        with torch.no_grad():
            for token, right in following.items():
                self.table[token, right] = 50.0

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]


def test_what_is_right_only_when_it_is_shown_the_reference_is_not_scored_as_right() -> None:
    """With teacher forcing it predicts all but one token; its own output repeats that mistake for ever."""
    reference = tokenizers().tgt.encode(["There is a new"])[0]
    ids = [BOS_ID, *reference, EOS_ID]
    assert len(set(ids)) == len(ids)
    following = dict(pairwise(ids)) | {ids[2]: ids[1]}  # at one place it goes back by one
    parrot = Parrot(following)
    logits = parrot(padded([reference], bos=True)[:, :-1])
    right = (logits.argmax(-1) == torch.tensor(ids[1:])).float().mean()
    assert right > 0.8

    model = translating()

    def step(tokens, state):  # type: ignore[no-untyped-def]
        return parrot(tokens), state

    model.step = step  # type: ignore[method-assign]
    text = ParallelText(TEXT.src[:1], ["There is a new"])
    scores = Validator(lambda: translator(model), text, CORPUS, 1)(0.1)
    assert scores.samples[0].translation.startswith("There is There is There is")
    assert scores.scores["bleu"] < 20


def test_each_validation_translates_with_the_weights_of_its_moment() -> None:
    model = translating()
    run = Run(Path("nowhere"), TranslationConfig(model=MODEL), tokenizers(), model)
    validator = Validator(lambda: run.translator(replace(GREEDY, max_length=9)), TEXT[:3], CORPUS, 1)

    def said() -> list[str]:
        validator(1.0)
        return list(validator.translations)

    before, other = said(), translating(seed=2)
    assert said() == before
    model.load_state_dict(other.state_dict())  # in place, as an optimizer does
    assert said() == [
        t.text for t in run._replace(model=other).translator(replace(GREEDY, max_length=9)).translate(TEXT.src[:3])
    ]
    assert list(validator.translations) != before


def test_a_network_that_has_learned_its_lines_is_scored_100() -> None:
    torch.manual_seed(0)
    text = TEXT[:4]
    src, tgt = tokenizers()
    model = Transformer(replace(MODEL, d_model=32), len(src), len(tgt))
    batch = Batch(padded(src.encode(text.src)), padded(tgt.encode(text.tgt), bos=True))
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        adam.zero_grad()
        F.cross_entropy(model(batch.src, batch.tgt[:, :-1]).flatten(0, 1), batch.tgt[:, 1:].flatten()).backward()
        adam.step()
    assert Validator(lambda: translator(model), text, CORPUS, 1)(0.1).scores["bleu"] == pytest.approx(100)
    assert Validator(lambda: translator(model), TEXT[60:64], CORPUS, 1)(0.1).scores["bleu"] < 100
