"""What train.py is asked for: here, the runs that it goes on with or begins from."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from utils.config import Config, LanguageConfig
from utils.dataset.corpus import DataConfig
from utils.run import find_run
from utils.task import arguments
from utils.task.arguments import read_arguments


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: a translator's, a language model's, and one without settings."""
    for name, config in (("tiny-1", Config(name="tiny")), ("story-1", LanguageConfig(name="story"))):
        (tmp_path / name).mkdir()
        config.save(tmp_path / name / "config.yaml")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(arguments, "find_run", partial(find_run, root=tmp_path))
    return tmp_path


@pytest.mark.parametrize("named", [lambda folder: folder.name, str])
@pytest.mark.parametrize(("name", "tree"), [("tiny-1", Config), ("story-1", LanguageConfig)])
def test_a_run_is_named_by_its_path_or_by_its_name_alone(
    runs: Path, name: str, tree: type, named: Callable[[Path], str]
) -> None:
    resumed = read_arguments(["--resume", named(runs / name)])
    begun = read_arguments(["--init-from", named(runs / name), "--name", "tuned"])
    assert (resumed.resume, resumed.init_from) == (runs / name, None)
    assert (begun.resume, begun.init_from) == (None, runs / name)
    assert type(resumed.config) is type(begun.config) is tree
    assert (resumed.config.name, begun.config.name) == (name.removesuffix("-1"), "tuned")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("tiny-2", "^no run tiny-2: did you mean tiny-1"),
        ("empty", r"^no settings .*empty.config\.yaml: give the folder"),
    ],
)
@pytest.mark.parametrize("option", ["--resume", "--init-from"])
def test_what_is_no_run_is_refused(runs: Path, option: str, name: str, complaint: str) -> None:
    assert runs.is_dir()
    with pytest.raises(ValueError, match=complaint):
        read_arguments([option, name])


def test_a_corpus_that_is_named_anew_takes_the_place_of_a_runs_own_files(runs: Path) -> None:
    own = DataConfig(src=Path("a.ja"), tgt=Path("a.en"), dev_src=Path("d.ja"), dev_tgt=Path("d.en"), src_lang="xx")
    Config(data=own).save(runs / "tiny-1" / "config.yaml")

    def data(*options: str) -> DataConfig:
        config = read_arguments(["--init-from", "tiny-1", *options]).config
        assert isinstance(config, Config)
        return config.data

    assert data() == own
    for options in (("--data.corpus", "kftt"), ("--data.corpus=kftt",)):
        assert data(*options) == DataConfig(corpus="kftt", src_lang="xx")
    preset = runs / "preset.yaml"
    preset.write_text("data: {corpus: multi30k, src_lang: en, tgt_lang: de, test_src: t.en}\n")
    assert data("--config", str(preset)) == DataConfig("multi30k", "en", "de", test_src=Path("t.en"))
    preset.write_text("data: {held_out: 7}\n")
    assert data("--config", str(preset)) == replace(own, held_out=7)
    # what is given beside it holds
    archived = data("--data.corpus", "kftt", "--data.archive", "kftt.tar.gz", "--data.test_src=t.ja")
    assert (archived.archive, archived.src, archived.test_src) == (Path("kftt.tar.gz"), None, Path("t.ja"))
