"""Settings of an exported translator are read as written, or refused."""

import json
from pathlib import Path

import pytest

from utils.export.translator_settings import SETTINGS, TranslatorSettings
from utils.search.constraint import SearchConfig

MINE = TranslatorSettings("京都-20260101-120000", "ja", "en", 30, 48, SearchConfig(3, 1.5, "length", max_ratio=9.0))


def test_they_are_read_as_they_were_written(tmp_path: Path) -> None:
    MINE.save(tmp_path)
    assert TranslatorSettings.load(tmp_path) == MINE
    assert "京都" in (tmp_path / SETTINGS).read_text(encoding="utf-8")


def test_what_was_exported_with_settings_that_were_removed_since_is_read(tmp_path: Path) -> None:
    MINE.save(tmp_path)
    saved = json.loads((tmp_path / SETTINGS).read_text(encoding="utf-8"))
    saved["search"]["coverage_penalty"] = 0.2
    (tmp_path / SETTINGS).write_text(json.dumps(saved), encoding="utf-8")
    assert TranslatorSettings.load(tmp_path) == MINE


def test_a_run_is_told_from_what_was_exported_of_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not an exported translator") as caught:
        TranslatorSettings.load(tmp_path)
    assert f"`python export.py {tmp_path} --to ctranslate2 --output {tmp_path / 'ctranslate2'}`" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"search": {"beam_size": 0}},
        {"search": {"beams": 2}},
        {"search": None},
        {"longest_of_all": 1},
        {"window": "32"},
        None,
    ],
    ids=str,
)
def test_a_damaged_file_is_named(change: dict[str, object] | None, tmp_path: Path) -> None:
    MINE.save(tmp_path)
    saved = json.loads((tmp_path / SETTINGS).read_text(encoding="utf-8"))
    text = json.dumps(saved | change) if change else "{"
    (tmp_path / SETTINGS).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"{SETTINGS} does not hold name, src_lang, .*: export the run again"):
        TranslatorSettings.load(tmp_path)
