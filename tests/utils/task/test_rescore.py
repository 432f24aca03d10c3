"""A language model is found, fits its translator, and is asked with the weight that was found for the two."""

from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.utils.task.tiny_run import XL, english, language_run
from utils.run import Run, load_run
from utils.search.document_scorer import DocumentScorer
from utils.search.hypothesis import SearchConfig
from utils.search.translator import Candidate, Translation
from utils.task.rescore import RescoringConfig, load_rescorer, save_rescoring, saved_rescoring
from utils.trained import load_language_model

SEARCH = SearchConfig(beam_size=3, length_penalty=0.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(tiny.run(tmp_path_factory.mktemp("pickles")), torch.device("cpu"))


@pytest.mark.parametrize("memory_length", [None, 0, 3])
def test_candidates_are_read_as_text_by_the_language_models_own_tokenizer(
    run: Run, tmp_path: Path, memory_length: int | None
) -> None:
    folder = language_run(tmp_path)
    assert english().encode(tiny.TEXT.tgt[:1]) != tiny.tokenizers().tgt.encode(tiny.TEXT.tgt[:1])
    rescorer = load_rescorer(folder, run, SEARCH, RescoringConfig(0.5, memory_length))
    scorer = DocumentScorer(
        load_language_model(folder).net, XL.memory_length if memory_length is None else memory_length
    )
    for i in range(0, 9, 3):
        texts = tiny.TEXT.tgt[i : i + 3]
        log_probs = scorer.log_probs(english().encode(texts))
        best = max(range(3), key=lambda i, log_probs=log_probs: log_probs[i])  # type: ignore[misc]
        scorer.choose(best)
        found = rescorer.rescore(Translation([Candidate(text, 0.0, []) for text in texts], 1, 0, False))
        assert found.translation.text == texts[best]
        assert found.translation.score == pytest.approx(0.5 * log_probs[best])
        assert found.origins[0].rank == best + 1
        assert found.origins[0].log_prob == pytest.approx(log_probs[best])


@pytest.mark.parametrize("language", ["en", "en-GB", "EN_us"])
def test_variants_of_a_language_are_the_language(run: Run, tmp_path: Path, language: str) -> None:
    load_rescorer(language_run(tmp_path, language=language), run, SEARCH, RescoringConfig())


def test_a_model_of_another_language_or_task_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a language model of ja, but .* translates into en: train one of en"):
        load_rescorer(language_run(tmp_path, language="ja"), run, SEARCH, RescoringConfig())
    with pytest.raises(ValueError, match="is of task translation, but language is needed here"):
        load_rescorer(run.folder, run, SEARCH, RescoringConfig())
    with pytest.raises(ValueError, match="no run"):
        load_rescorer(tmp_path / "nowhere", run, SEARCH, RescoringConfig())


@pytest.mark.parametrize(
    ("weight", "memory_length"), [(-0.1, None), (float("nan"), None), (float("inf"), 3), (0.2, -1)]
)
def test_weights_and_memories_that_are_none_are_refused(weight: float, memory_length: int | None) -> None:
    with pytest.raises(ValueError, match="give 0"):
        RescoringConfig(weight, memory_length)


def test_what_was_found_is_kept_for_each_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, one, other = (tmp_path / name for name in ("run", "one", "other"))
    for folder in (run, one, other):
        folder.mkdir()
    assert saved_rescoring(run, one) is None
    save_rescoring(run, one, RescoringConfig(0.3, 64))
    save_rescoring(run, other, RescoringConfig(0.0))
    assert save_rescoring(run, one, RescoringConfig(0.25, 64)).parent == run
    monkeypatch.chdir(one)
    assert saved_rescoring(run, Path()) == RescoringConfig(0.25, 64)
    assert saved_rescoring(run, other) == RescoringConfig(0.0)
