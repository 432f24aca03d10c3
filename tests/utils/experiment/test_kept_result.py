"""What the README's tables say can be counted anew from the translations that lie beside it."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import results as results_module
from bench.results import READMES, RESULTS, keep_result
from const.corpora import CORPORA
from const.path import ROOT
from tests.outcome import outcome
from utils.dataset.corpus import DataConfig, prepare_corpus
from utils.dataset.download import take
from utils.dataset.text import read_lines
from utils.evaluation.metric import bleu_tokenizer, build_metrics, measure, moses_words, multi_bleu

ARCHIVES = {
    "kftt": "kftt-data-1.0.tar.xz",
    "tanaka": "small_parallel_enja.tar.xz",
    "multi30k": "multi30k.tar.xz",
    "multi30k_tok": "multi30k.tar.xz",
}
RESULT = {"name": "tiny", "seed": 3, "corpus": "kftt", "direction": "ja-en", "parameters": 1e6, "minutes": 2.0}
RESULT |= {"target_tokens": 1e6, "perplexity": 4.0, "bleu": 12.345, "chrf": 34.5}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The README to be renewed: its tables are empty."""
    path = tmp_path / "README.md"
    marks = (f"<!-- {name} -->\n<!-- /{name} -->\n" for name in ("results", "yardsticks", "models"))
    path.write_text("".join(marks), encoding="utf-8")
    monkeypatch.setattr(results_module, "READMES", (path,))
    return path


def finished_run(folder: Path, **changes: object) -> Path:
    """A run that has nothing but its result."""
    folder.mkdir()
    (folder / "test.json").write_text(json.dumps(RESULT | changes), encoding="utf-8")
    (folder / "test.txt").write_text("都 は 古い。\n", encoding="utf-8")
    return folder


def references(corpus: str, tgt_lang: str, request: pytest.FixtureRequest, folder: Path) -> list[str]:
    """The test set's, from the project itself or from its published archive."""
    if corpus == "embedded":
        return read_lines(prepare_corpus(DataConfig(corpus="embedded")).test.tgt)
    path = CORPORA[corpus].splits[-1].format(lang=tgt_lang)
    take(request.getfixturevalue("shared_data") / ARCHIVES[corpus], {path}, folder)
    return read_lines(folder / path)


@pytest.mark.parametrize("translations", sorted(RESULTS.glob("*.txt")), ids=lambda path: path.stem)
def test_scores_are_those_of_the_translations(
    translations: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    result = json.loads(translations.with_suffix(".json").read_text(encoding="utf-8"))
    tgt_lang = result["direction"].partition("-")[2]
    right = references(result["corpus"], tgt_lang, request, tmp_path)
    metrics = build_metrics(tgt_lang, bleu_tokenizer(tgt_lang, "tok:none" in result["bleu_signature"]))
    bleu, chrf = measure(read_lines(translations), right, {name: metrics[name] for name in ("BLEU", "chrF2")})
    assert bleu.score == pytest.approx(result["bleu"], abs=1e-9)
    assert chrf.score == pytest.approx(result["chrf"], abs=1e-9)
    assert bleu.signature == result["bleu_signature"]


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.name)
def test_what_the_readme_says_of_nymwas_protocol_is_counted_so(
    readme: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    told = re.findall(r"nymwa (figure/\S+) corpus/kftt/(\S+) --plain +# (BLEU = [\d.]+)", readme.read_text("utf-8"))
    assert told
    for translations, path, line in told:
        take(request.getfixturevalue("shared_data") / ARCHIVES["kftt"], {path}, tmp_path)
        words = moses_words(read_lines(ROOT / translations))
        assert multi_bleu(words, read_lines(tmp_path / path)).startswith(f"{line}, ")


def test_a_result_that_says_how_it_was_made_lies_under_its_name_and_seed() -> None:
    results = {file: json.loads(file.read_text(encoding="utf-8")) for file in RESULTS.glob("*.json")}
    for file, result in results.items():
        if "config" in result:  # the others were kept before results said their settings
            require_provenance(file, result)
    assert any("config" in result for result in results.values())


def require_provenance(file: Path, result: dict[str, Any]) -> None:
    assert file.stem == f"{result['name']}_{result['seed']}"
    assert result["config"]["training"]["seed"] == result["seed"]
    if "bleu" in result:
        assert file.with_suffix(".txt").is_file()
        assert result["commit"].isalnum(), "made by code that had been changed since its commit"


def test_a_result_is_kept_with_its_translations(tmp_path: Path) -> None:
    kept = keep_result(finished_run(tmp_path / "run"), tmp_path / "results")
    assert kept == tmp_path / "results" / "tiny_3.json"
    assert json.loads(kept.read_text(encoding="utf-8")) == RESULT
    assert kept.with_suffix(".txt").read_text(encoding="utf-8") == "都 は 古い。\n"


def test_the_command_keeps_results_and_renews_the_tables(
    tmp_path: Path, page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results_module, "RESULTS", tmp_path / "results")
    runs = finished_run(tmp_path / "a"), finished_run(tmp_path / "b", seed=4)
    monkeypatch.setattr(sys, "argv", ["kept_result", *map(str, runs)])
    ended = outcome("kept_result", results_module.main, capsys)
    assert ended.status == 0
    assert ended.out.split() == [str(tmp_path / "results" / f"tiny_{seed}.json") for seed in (3, 4)]
    assert "| `tiny` | kftt | ja→en | 1.0 M | 2 seeds, each 2 min, 1.0 M tokens |" in page.read_text(encoding="utf-8")


def test_a_run_without_a_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match=r"run has no test\.json yet"):
        keep_result(tmp_path / "run", tmp_path)
    old = finished_run(tmp_path / "old")
    (old / "test.json").write_text('{"name": "old"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"does not contain the seed: test the run again, python train\.py --resume"):
        keep_result(old, tmp_path)
    (finished_run(tmp_path / "killed") / "test.txt").unlink()
    with pytest.raises(ValueError, match=r"killed has no test\.txt: test the run again"):
        keep_result(tmp_path / "killed", tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    damaged = finished_run(tmp_path / "run") / "test.json"
    damaged.write_text('{"name": "tin', encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^{damaged} is damaged \(.*\): copy it again, or remove it$"):
        keep_result(tmp_path / "run", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_result_without_translations_is_kept_alone(tmp_path: Path) -> None:
    """As that of a BERT."""
    run = finished_run(tmp_path / "run")
    (run / "test.txt").unlink()
    (run / "test.json").write_text('{"name": "bert", "seed": 1, "accuracy": 40.0}', encoding="utf-8")
    assert keep_result(run, tmp_path / "results") == tmp_path / "results" / "bert_1.json"
    assert [file.name for file in (tmp_path / "results").iterdir()] == ["bert_1.json"]


def test_a_run_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path / "a")
    monkeypatch.setattr(results_module, "find_run", lambda name: tmp_path / name)
    monkeypatch.setattr(results_module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(results_module, "renew_tables", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["kept_result", "a"])
    assert outcome("kept_result", results_module.main, capsys).status == 0
    assert (tmp_path / "results" / "tiny_3.json").is_file()


def test_all_tables_are_renewed(tmp_path: Path, page: Path) -> None:
    keep_result(finished_run(tmp_path / "a", name="tanaka_en_ja"), tmp_path / "results")
    keep_result(finished_run(tmp_path / "b", name="kftt_ja_en_small"), tmp_path / "results")
    bert = {"name": "bert", "seed": 1, "task": "masked_language", "text": "kftt ja", "accuracy": 40.0}
    bert |= {"parameters": 1e6, "minutes": 2.0, "target_tokens": 1e6, "perplexity": 4.0}
    (tmp_path / "results" / "bert_1.json").write_text(json.dumps(bert), encoding="utf-8")
    results_module.renew_tables(tmp_path / "results")
    text = page.read_text(encoding="utf-8")
    results, yardsticks, models = (
        text.partition(f"<!-- {name} -->")[2].partition("<!-- /")[0] for name in ("results", "yardsticks", "models")
    )
    assert "| `tanaka_en_ja` | kftt |" in results
    assert "| `tanaka_en_ja` | 37.00 |" in yardsticks
    assert "| `bert` | masked_language |" in models
