"""The command line of train.py: the runs that it resumes or starts from, and its help."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from const.path import PRESET
from utils import arguments
from utils.arguments import build_parser, read_arguments
from utils.config import LanguageConfig, TranslationConfig
from utils.dataset.corpus import DataConfig
from utils.run import find_run
from utils.text.tokenizer import TokenizerConfig


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: a translator's, a language model's, and one without settings."""
    for name, config in (("tiny-1", TranslationConfig(name="tiny")), ("story-1", LanguageConfig(name="story"))):
        (tmp_path / name).mkdir()
        config.save(tmp_path / name / "config.yaml")
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(arguments, "find_run", partial(find_run, root=tmp_path))
    return tmp_path


@pytest.mark.parametrize("named", [lambda folder: folder.name, str])
@pytest.mark.parametrize(("name", "tree"), [("tiny-1", TranslationConfig), ("story-1", LanguageConfig)])
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
    a, b, c, d = (runs / name for name in ("a.ja", "a.en", "d.ja", "d.en"))
    own = DataConfig(src=a, tgt=b, dev_src=c, dev_tgt=d, more_src=a, more_tgt=b, src_lang="xx", pre_tokenized=True)
    TranslationConfig(data=own).save(runs / "tiny-1" / "config.yaml")

    def data(*options: str, begin: str = "--init_from") -> DataConfig:
        config = read_arguments([begin, "tiny-1", *options]).config
        assert isinstance(config, TranslationConfig)
        return config.data

    assert data() == own
    for options in (("--data.corpus", "kftt"), ("--data.corpus=kftt",)):
        assert data(*options) == DataConfig(corpus="kftt", src_lang="xx")
    preset = runs / "preset.yaml"
    preset.write_text("data: {corpus: multi30k, src_lang: en, tgt_lang: de, test_src: /t.en}\n")
    assert data("--config", str(preset)) == DataConfig("multi30k", "en", "de", test_src=Path("/t.en"))
    preset.write_text("data: {held_out: 7}\n")
    assert data("--config", str(preset)) == replace(own, held_out=7)
    # another training text takes the place of the further one, too, unless the run goes on with it
    assert data("--data.src", str(c), "--data.tgt", str(d)) == replace(own, src=c, tgt=d, more_src=None, more_tgt=None)
    assert data("--data.src", str(c), "--data.tgt", str(d), begin="--resume") == replace(own, src=c, tgt=d)
    moved = "--data.src", str(c), "--data.tgt", str(d), "--data.more_src", str(d), "--data.more-tgt", str(c)
    assert data(*moved) == replace(own, src=c, tgt=d, more_src=d, more_tgt=c)
    # what is given beside it holds
    archived = data("--data.corpus", "kftt", "--data.archive", "/kftt.tar.gz", "--data.test_src=/t.ja")
    assert (archived.archive, archived.src, archived.test_src) == (Path("/kftt.tar.gz"), None, Path("/t.ja"))


def test_the_help_has_the_type_and_the_default_of_every_setting() -> None:
    text = " ".join(build_parser().format_help().split())
    assert "inner width of the feed-forward layers. (type: int, default: 2048)" in text
    assert re.search(r"updates\b[^(]*\(type: int \| null, default: null\)", text)
    assert re.search(r"--data.corpus \{kftt,[^}]*\} [^(]*\(your own texts\)[^(]*\(default: kftt\)", text)
    assert "train nothing --profile" in text  # what is no setting of a run needs none


@pytest.mark.parametrize("option", ["--resume", "--init-from"])
def test_a_vocabulary_that_is_there_is_not_asked_for_with_other_settings(runs: Path, option: str) -> None:
    learned = TranslationConfig(name="tiny", tokenizer=TokenizerConfig(vocab_size=900))
    learned.save(runs / "tiny-1" / "config.yaml")
    assert read_arguments([option, "tiny-1", "--tokenizer.sampling", "0.1"]).config.tokenizer.vocab_size == 900
    with pytest.raises(ValueError, match=r"^tokenizer.vocab_size=400, but .* was learned with 900: give --tokenizer"):
        read_arguments([option, "tiny-1", "--tokenizer.vocab_size", "400"])


@pytest.mark.parametrize("run", ["tiny-1", "story-1"])
def test_a_resumed_run_is_not_scored_on_what_it_has_learned_from(runs: Path, run: str) -> None:
    assert read_arguments(["--resume", run, "--data.held_out", "500"]).resume == runs / run
    message = r"^held_out=700, but .* was trained on what 500 had left: give --data.held_out 500, or train a new run$"
    with pytest.raises(ValueError, match=message):
        read_arguments(["--resume", run, "--data.held_out", "700"])


def test_texts_of_a_preset_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project", "elsewhere"):
        (tmp_path / name / "texts").mkdir(parents=True)
    monkeypatch.setattr("utils.config.ROOT", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "elsewhere")
    given, elsewhere = Path("texts/my.ja"), tmp_path / "elsewhere" / "texts" / "my.ja"

    def found() -> Path | None:
        config = read_arguments(["--config", str(PRESET / "demo.yaml"), "--data.src", str(given)]).config
        assert isinstance(config, TranslationConfig)
        return config.data.src

    assert found() == elsewhere  # of two that are not there, the one from here is told
    (tmp_path / "project" / given).touch()
    assert found() == tmp_path / "project" / given
    elsewhere.touch()
    assert found() == elsewhere
