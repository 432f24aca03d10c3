"""The embedded corpus keeps its promises: sizes, one translation each, true facts, and a compositional split."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from zlib import crc32

import pytest

from const.path import ROOT
from utils.dataset import embedded
from utils.dataset.embedded import kyoto
from utils.dataset.embedded.construction import Construction
from utils.dataset.embedded.generate import generate, write_embedded
from utils.dataset.embedded.grammar import CONSTRUCTIONS

module = import_module("utils.dataset.embedded.generate")  # the package names its function alike

Corpus = dict[str, list[tuple[str, str]]]
TEXTS = [f"kyoto-{split}.{language}" for split in ("train", "dev", "test") for language in ("ja", "en")]
FILES = sorted([*TEXTS, "kyoto.grammar"])


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return generate()


def words(sentence: str) -> list[str]:
    """English words without the punctuation around them."""
    return [word.strip(".,?") for word in sentence.split()]


def pattern(construction: Construction, template: str) -> re.Pattern[str]:
    """What a template can say, read off its text and its slots without the generator."""
    parts = re.split(r"\{(\w+)((?:\.\w+)*)\}", template)
    text = re.escape(parts[0])
    for slot, path, literal in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        forms = {f"{{x{path}}}".format(x=entry) for entry in construction.slots[slot]}
        text += f"(?:{'|'.join(map(re.escape, sorted(forms, key=len, reverse=True)))}){re.escape(literal)}"
    return re.compile(text, re.IGNORECASE)


def items_in(sentences: list[str]) -> list[set[str]]:
    """The items that each Japanese sentence shows, found by reading it from left to right, the longest first."""
    items = {item for c in CONSTRUCTIONS for entries in c.slots.values() for e in entries for item in e.items}
    whole_number = {item: rf"(?<!\d){item}(?!\d)" if item[0].isdigit() and item.isdigit() else item for item in items}
    scanner = re.compile("|".join(whole_number[item] for item in sorted(items, key=len, reverse=True)))
    return [set(scanner.findall(sentence)) for sentence in sentences]


def combinations_in(pairs: list[tuple[str, str]]) -> list[set[frozenset[str]]]:
    return [{frozenset(two) for two in combinations(items, 2)} for items in items_in([ja for ja, _ in pairs])]


def test_sizes(corpus: Corpus) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == {"train": 20_000, "dev": 500, "test": 500}


def test_the_seed_determines_the_corpus_in_every_process(corpus: Corpus) -> None:
    code = (
        "from utils.dataset.embedded import generate; from zlib import crc32;"
        "print(crc32(str(generate(0)).encode()), crc32(str(generate(1)).encode()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # not this process's: the order of a set depends on it
    output = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True)
    zero, one = output.split()
    assert int(zero) == crc32(str(corpus).encode()) != int(one)


def test_no_sentence_occurs_twice_in_either_language(corpus: Corpus) -> None:
    for side in (0, 1):
        count = Counter(pair[side] for pairs in corpus.values() for pair in pairs)
        assert count.most_common(1)[0][1] == 1


def test_no_japanese_of_the_whole_grammar_has_two_translations() -> None:
    """Across constructions, where the corpus itself would hide a clash by leaving one of the two out."""
    english: dict[str, str] = {}
    japanese: dict[str, str] = {}
    for construction in CONSTRUCTIONS:
        for index in range(0, construction.capacity, 1 + construction.capacity // 2_000):
            fillers = construction.fillers(index)
            if construction.sensible(fillers):
                ja, en = construction.render(fillers)
                assert english.setdefault(ja, en) == en
                assert japanese.setdefault(en, ja) == ja


def test_train_knows_every_word_and_character(corpus: Corpus) -> None:
    known = Counter(word for _, en in corpus["train"] for word in words(en))
    characters = Counter("".join(ja for ja, _ in corpus["train"]))
    for split in ("dev", "test"):
        assert {word for _, en in corpus[split] for word in words(en) if known[word] < 10} == set()
        assert {char for ja, _ in corpus[split] for char in ja if characters[char] < 10} == set()


def test_every_held_out_sentence_joins_two_items_that_meet_nowhere_else(corpus: Corpus) -> None:
    """Read from the sentences alone: neither the hash nor the slots of the generator are asked."""
    found = {split: combinations_in(pairs) for split, pairs in corpus.items()}
    for split, other in (("dev", "test"), ("test", "dev")):
        elsewhere = set().union(*found["train"], *found[other])
        assert [pair for pair, joined in zip(corpus[split], found[split], strict=True) if joined <= elsewhere] == []


def test_each_item_of_the_test_meets_others_in_train(corpus: Corpus) -> None:
    count = Counter(item for items in items_in([ja for ja, _ in corpus["train"]]) for item in items)
    rare = {i for items in items_in([ja for ja, _ in corpus["test"]]) for i in items if count[i] < 10}
    assert rare == set()


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda construction: construction.name)
def test_every_split_holds_every_construction(corpus: Corpus, construction: Construction) -> None:
    ja, en = pattern(construction, construction.ja), pattern(construction, construction.en)
    share = {s: sum(bool(ja.fullmatch(j) and en.fullmatch(e)) for j, e in pairs) for s, pairs in corpus.items()}
    assert share["train"] >= 100
    assert min(share["dev"], share["test"]) >= 5


def test_the_page_shows_a_true_example_of_every_construction() -> None:
    shown = re.findall(r"^    (\w+) +(\S+。)\n +(.+[.?])$", str(embedded.__doc__), re.MULTILINE)
    assert [name for name, _, _ in shown] == [construction.name for construction in CONSTRUCTIONS]
    for construction, (_, ja, en) in zip(CONSTRUCTIONS, shown, strict=True):
        seen = [[e for e in entries if all(i in ja for i in e.items)] for entries in construction.slots.values()]
        sensible = [fillers for fillers in product(*seen) if construction.sensible(fillers)]
        assert (ja, en) in {construction.render(fillers) for fillers in sensible}


def test_most_constructions_reorder() -> None:
    """The slots, by the place where each is named first, stand in another order in the two languages."""

    def order(template: str) -> list[str]:
        return list(dict.fromkeys(re.findall(r"\{(\w+)", template)))

    reordered = [
        construction.name for construction in CONSTRUCTIONS if order(construction.ja) != order(construction.en)
    ]
    assert len(reordered) > len(CONSTRUCTIONS) / 2
    assert {"because_weather", "which_i_bought", "when_arrived", "visited_which", "after"} <= set(reordered)


def test_years_and_periods_are_the_real_ones(corpus: Corpus) -> None:
    years = {"Kiyomizu-dera": 778, "Kinkaku-ji": 1397, "Ginkaku-ji": 1482, "Nijo Castle": 1603, "Heian Shrine": 1895}
    period = {"Kiyomizu-dera": "Nara", "Kinkaku-ji": "Muromachi", "Nijo Castle": "Edo", "Heian Shrine": "Meiji"}
    text = "\n".join(en for pairs in corpus.values() for _, en in pairs)
    names = "|".join(sight.en for sight in kyoto.SIGHTS)
    said_years = set(re.findall(rf"({names}),?(?: which)? was (?:built|founded) in (\d+)", text))
    assert len(said_years) == len(kyoto.SIGHTS)
    assert {(name, str(year)) for name, year in years.items()} <= said_years
    said_periods = set(re.findall(rf"({names}),?(?: which)? was (?:built|founded) in the (\w+) period", text))
    assert len(said_periods) == len(kyoto.SIGHTS)
    assert set(period.items()) <= said_periods


def test_older_is_said_of_the_older(corpus: Corpus) -> None:
    year = {sight.en: sight.year for sight in kyoto.SIGHTS}
    names = "|".join(year)
    text = "\n".join(en for pairs in corpus.values() for _, en in pairs)
    compared = re.findall(rf"^({names}) is older than ({names})\.$", text, re.MULTILINE)
    assert len(compared) > 100
    assert [two for two in compared if year[two[0]] >= year[two[1]]] == []


def test_a_grammar_too_small_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAWS", 10)
    with pytest.raises(ValueError, match=r"not 20000: raise DRAWS=10"):
        generate()


def test_the_files_hold_the_corpus_line_by_line(corpus: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "kyoto"
    write_embedded(folder)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    for split, pairs in corpus.items():
        ja = (folder / f"kyoto-{split}.ja").read_bytes().decode("utf-8").split("\n")
        en = (folder / f"kyoto-{split}.en").read_bytes().decode("utf-8").split("\n")
        assert list(zip(ja, en, strict=True)) == [*pairs, ("", "")]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_complete_folder_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_embedded(tmp_path)
    for name in TEXTS:
        (tmp_path / name).write_text("as it was")
    monkeypatch.setattr(module, "generate", lambda: pytest.fail("the corpus was generated again"))
    write_embedded(tmp_path)
    assert {(tmp_path / name).read_text() for name in TEXTS} == {"as it was"}


@pytest.mark.parametrize("change", [lambda mark: mark.write_text("of another grammar\n"), Path.unlink])
def test_what_another_grammar_wrote_is_written_anew(
    change: Callable[[Path], object], tmp_path: Path, corpus: Corpus
) -> None:
    write_embedded(tmp_path)
    (tmp_path / "kyoto-dev.ja").write_text("as it was")
    change(tmp_path / "kyoto.grammar")
    write_embedded(tmp_path)
    assert (tmp_path / "kyoto-dev.ja").read_text(encoding="utf-8").splitlines() == [ja for ja, _ in corpus["dev"]]


def test_any_module_of_the_grammar_changes_its_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = shutil.copytree(ROOT / "utils/dataset/embedded", tmp_path / "embedded")
    monkeypatch.setattr(module, "__file__", str(copy / "generate.py"))
    write_embedded(tmp_path)
    for name in TEXTS:
        (tmp_path / name).write_text("as it was")
    with (copy / "lexicon.py").open("a") as lexicon:
        lexicon.write("# one word more\n")
    write_embedded(tmp_path)
    assert "as it was" not in {(tmp_path / name).read_text(encoding="utf-8") for name in TEXTS}


def test_an_incomplete_folder_is_completed_and_other_files_stay(tmp_path: Path, corpus: Corpus) -> None:
    (tmp_path / "kyoto-dev.ja").write_text("half a fi")
    (tmp_path / "notes").write_text("mine")
    write_embedded(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*FILES, "notes"]
    assert (tmp_path / "notes").read_text() == "mine"
    assert (tmp_path / "kyoto-dev.ja").read_text(encoding="utf-8").splitlines() == [ja for ja, _ in corpus["dev"]]


def test_a_full_disk_leaves_no_half_file_and_the_next_call_completes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, corpus: Corpus
) -> None:
    flushed = []

    def full_disk(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 3:  # the second file: each is flushed, and then its folder
            raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="no space"):
            write_embedded(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kyoto-train.ja"]
    assert len((tmp_path / "kyoto-train.ja").read_text(encoding="utf-8").splitlines()) == len(corpus["train"])
    write_embedded(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
