"""Reports have every number of an evaluation, and show hostile text as text."""

import re
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.command import aligned, bar, columns_of, wrapped
from utils.evaluation.analysis import Analysis, Contrast, Evaluation, NgramMatches, PartScore, SentenceScore
from utils.evaluation.metric import Comparison, Metric
from utils.evaluation.report import as_text, verdict, word_difference, write_html

HOSTILE = '<script>alert("1")</script> & \x1b[31m"x" <img src=https://example.org/x.png>'
OURS = Evaluation(
    system="run-a",
    text="kyoto-test.ja",
    tgt_lang="en",
    n_sentences=1160,
    metrics=[
        Metric("BLEU", 18.31, 17.42, 19.23, "nrefs:1|tok:13a"),
        Metric("chrF2", 46.54, 45.91, 47.13, "nrefs:1|nc:6"),
        Metric("TER", 71.75, 70.26, 73.37, "nrefs:1|tok:tercom"),
    ],
    analysis=Analysis(
        bleu_by_length=[PartScore("0-5 source tokens", 1234, 21.11), PartScore("61+ source tokens", 57, 9.06)],
        f1_by_frequency=[PartScore("never seen", 478, 3.33), PartScore("1000+ times", 18613, 62.18)],
        repetition_rate=4.56,
        under_translation_rate=7.89,
        length_ratio=0.937,
        best=[SentenceScore(1017, "京都に寺がある。", "Kyoto has a temple.", "Kyoto has temples.", 81.23)],
        worst=[SentenceScore(23, "庭", HOSTILE, "The garden is old.", 2.34)],
    ),
)
THEIRS = replace(
    OURS,
    system="run-b",
    metrics=[Metric("BLEU", 17.65, 16.87, 18.48, "nrefs:1|tok:13a|other")],
    analysis=replace(
        OURS.analysis,
        bleu_by_length=[PartScore("0-5 source tokens", 1234, 20.97), PartScore("6-10 source tokens", 444, 19.58)],
        f1_by_frequency=[],
        worst=[],
    ),
)
COMPARISON = Comparison("run-b", "run-a", "BLEU", -0.66, 0.0123, "paired bootstrap, 1,000 resamples", "nrefs:1|bs:1000")
CONTRAST = Contrast(
    "run-b",
    "run-a",
    better=[
        (
            SentenceScore(3, "橋", "A brigde.", "A long bridge.", 5.55),
            SentenceScore(3, "橋", HOSTILE, "A bridge.", 66.6),
        )
    ],
    worse=[],
    gained=[NgramMatches("a bridge", 314, 1592, 6535)],
    lost=[],
)


class Page(HTMLParser):
    """A page as a browser would parse it: elements with attributes, and text with its language."""

    def __init__(
        self, path: Path, evaluations: list[Evaluation], comparisons: list[Comparison], *contrasts: Contrast
    ) -> None:
        super().__init__()
        write_html(evaluations, comparisons, path, contrasts)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.language = "", dict[str, str | None]()
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br", "img", "link", "input"):
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and not any(tag in ("style", "title") for tag, _ in self.open):
            self.text += data
            self.language[data] = [attributes["lang"] for _, attributes in self.open if "lang" in attributes][-1]


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "report.html", [OURS, THEIRS], [COMPARISON])


def shown(value: Any, name: str = "") -> list[str]:
    """All numbers and names within a value, as formatted in a report."""
    if is_dataclass(value):
        return [text for field in fields(value) for text in shown(getattr(value, field.name), field.name)]
    if isinstance(value, list):
        return [text for item in value for text in shown(item)]
    if isinstance(value, int):
        return [f"{value:,}"]
    if isinstance(value, float):
        return [format(value, {"p_value": ".4f", "length_ratio": ".3f", "difference": "+.2f"}.get(name, ".2f"))]
    return [value]


def test_page_and_text_have_every_number_and_name(page: Page, tmp_path: Path) -> None:
    report = as_text([OURS, THEIRS], [COMPARISON])
    for text in [*shown(OURS), *shown(THEIRS), *shown(COMPARISON)]:
        assert text in page.text, text
        assert text in report or text == HOSTILE, text
    assert "\x1b" not in report  # a terminal would obey it
    assert "Differences" not in as_text([OURS])
    flat = replace(OURS, metrics=[Metric("BLEU", 18.31, 18.31, 18.31, "s")])  # without an interval
    assert "[18.31" not in as_text([flat]) + Page(tmp_path / "flat.html", [flat], []).text


def test_the_numbers_stand_beside_their_names() -> None:
    report = as_text([OURS, THEIRS], [COMPARISON])
    assert re.search(r"^  BLEU +A  18\.31  \[17\.42, 19\.23\]\n +B  17\.65  \[16\.87, 18\.48\]$", report, re.M)
    assert re.search(r"^  TER +A  71\.75  \[70\.26, 73\.37\]  lower is better$", report, re.M)
    assert re.search(r"^  BLEU +-0\.66   0\.0123  worse  run-b   run-a$", report, re.M)
    assert re.search(r"  6-10 source tokens +444  B  19\.58  #+\n  61\+ source tokens +57  A +9\.06  #+$", report, re.M)
    assert re.search(r"^  never seen +478  A +3\.33  #\n  1000\+ times +18,613  A  62\.18  #+$", report, re.M)
    assert report.index("Worst sentences of A") < report.index("line 23: 2.34") < report.index("Best sentences of A")


def test_the_page_shows_where_two_systems_differ_with_their_differing_words_marked(tmp_path: Path) -> None:
    page = Page(tmp_path / "report.html", [OURS, THEIRS], [COMPARISON], CONTRAST)
    for text in ("Line 3", "chrF2 A 5.55 B 66.60", "A long bridge.", HOSTILE, "a bridge", "314", "1,592", "6,535"):
        assert text in page.text, text
    assert re.search(r'<dd lang="en" dir="auto"><mark>A brigde</mark>', page.source)
    assert "differ most" not in Page(tmp_path / "other.html", [OURS, THEIRS], [COMPARISON]).text


def test_hostile_text_stays_text(page: Page, tmp_path: Path) -> None:
    assert HOSTILE in page.text
    named = replace(
        OURS, system=HOSTILE, text=HOSTILE, tgt_lang='"><script>', metrics=[Metric(HOSTILE, 1, 0, 2, HOSTILE)]
    )
    sentences = [SentenceScore(1, HOSTILE, HOSTILE, HOSTILE, 1)]
    hostile = replace(named, analysis=replace(OURS.analysis, bleu_by_length=[PartScore(HOSTILE, 1, 1)], best=sentences))
    other = Page(tmp_path / "x", [hostile, OURS], [replace(COMPARISON, system=HOSTILE, method=HOSTILE)])
    assert other.source.count("&lt;script&gt;alert") > 11
    assert not {"script", "img"} & {tag for tag, _ in page.elements + other.elements}


def test_the_page_loads_nothing(page: Page) -> None:
    loading = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href", "style"}
    assert not [attributes for _, attributes in page.elements if loading & set(attributes)]
    assert not re.search(r"@import|url\(|<link", page.source)
    assert "default-src 'none'; style-src 'unsafe-inline'" in [
        attributes.get("content") for _, attributes in page.elements
    ]


def test_each_text_is_in_its_language_and_what_differs_is_marked(page: Page) -> None:
    assert (page.language["京都に寺がある。"], page.language["Kyoto has "]) == ("ja", "en")
    assert "Kyoto has <del>a temple</del>." in page.source
    assert "Kyoto has <ins>temples</ins>." in page.source


def test_a_verdict_knows_which_scores_are_better_when_lower() -> None:
    for metric, p_value, expected in (("BLEU", 0.01, "better"), ("TER", 0.01, "worse"), ("chrF2", 0.05, "not sig")):
        assert verdict(replace(COMPARISON, metric=metric, difference=0.5, p_value=p_value)).startswith(expected)


def test_columns_of_japanese_are_two_and_bars_are_shares() -> None:
    assert [columns_of(text) for text in ("寺", "てら", "ﾃﾗ", "a", "Ａ", "e\u0301", "")] == [2, 4, 2, 1, 2, 1, 0]
    assert aligned([["寺", "1"], ["abc", "23"]], "lr") == ["  寺    1", "  abc  23"]
    assert [bar(share, 4) for share in (0, 0.01, 0.5, 1)] == ["", "#", "##", "####"]
    assert wrapped("old 京都の寺", 5) == ["old", "京都", "の寺"]
    assert wrapped("a\tb\x1b[0m", 20) == ["a b [0m"]


@given(st.text(alphabet="ab 寺。", max_size=60), st.integers(2, 12))
def test_wrapped_text_fits_and_loses_nothing(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(columns_of(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "other", "marked"),
    [
        ("the old temple", "the new temple", ["old"]),
        ("isn't old", "is old", ["isn't"]),
        ("古い寺である。", "古いお寺であった。", ["い", "である"]),
        ("a b a b", "a b", ["a b"]),
        ("x " + "a b " * 150, "a b " * 150, ["x"]),  # frequent words of long texts are compared as well
    ],
)
def test_word_difference(text: str, other: str, marked: list[str]) -> None:
    assert [piece for piece, differs in word_difference(text, other) if differs] == marked
