"""What a browser does by itself: the tokenizer and the rules of texts, as Python's; both are read by the page alone."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Error, Page
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]  # made on import

from config.data import TokenizerConfig
from const.path import ROOT
from tests.samples import HOSTILE
from tests.tiny import TEXT
from utils.dataset.corpus import take
from utils.export.web import javascript, text_rules, worker
from utils.run import SHIPPED, source_log_prob
from utils.search.beam import _Banks
from utils.search.glossary import Glossary
from utils.text import loop
from utils.text.capitals import is_in_capitals, usual_case, without_emphasis
from utils.text.form import known_characters, known_form
from utils.text.language import detect, has_words
from utils.text.protected import LEARNED, STAND_INS, WORDS, lost, masked, shown, spans, written
from utils.text.sentence import split_long, split_sentences
from utils.text.structure import split_cells
from utils.text.tokenizer import SentencePieceTokenizer, load_tokenizers

pytestmark = pytest.mark.browser


# ---- the tokenizer and the rules of texts: JavaScript says what Python says

RUNS = ("kftt_ja_en", "kftt_en_ja")
ODD = [
    *(HOSTILE, "", " ", "    ", "  a  b ", "\ufeffabc", "a\u200bb\u00adc", "\x00 \x01 a\x07", "a\tb\nc\u2028d\u3000e"),
    *("ＡＢＣ　１２３", "ﾊﾟ ﾊ゜ ｶﾞｷﾞ", "か\u3099き゛", "日本\u0300", "e\u0301 ńñ ŌōØøłđ ấ ƛ", "q\u0303x\u0303 \u0303a"),
    *(
        "🙂 🇯🇵 hello🙂",
        "\U0001f468\u200d\U0001f469",
        "𠮷野家𩸽",
        "髙橋﨑",
        "\ue000\ue001 \ue100 x",
        "\U000f0000",
        "▁▁ a▁b▁",
    ),
    *("10² 2½ 5① ① x² H₂O", "٣٤ ๓", "ﬁ ㎏ ㍻ ﷺ ㈱㌔Å", "‘’“”—―〜…⋯©®™ ÷ × ±", "[]{}()*+?.^$|\\", "⁇\ufffd"),
    *("ᄀ\u1161ᆨ", "<2ja> <unk> </s>", "▁▁ a▁b▁", "x" * 300, "は" * 300, "e\x85f"),
]
TRAINED = {
    "bpe": TokenizerConfig(kind="bpe", vocab_size=120),
    "bpe of unified forms": TokenizerConfig(kind="bpe", vocab_size=120, normalization="nmt_nfkc_cf"),
    "unigram": TokenizerConfig(kind="unigram", vocab_size=90, normalization="nmt_nfkc"),
}


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    """A page with the scripts and their rules; what repeats itself three times is a loop."""
    page, rules = browser.new_page(), text_rules()
    page.add_script_tag(content=worker(rules | {"loop": rules["loop"] | {"OFTEN": 2}}))
    return page


def vocabulary(model: bytes) -> Any:
    return MessageToDict(ModelProto.FromString(model))


def tokenizer(name: str) -> SentencePieceTokenizer:
    """That of a run of the project, or one that is learned here."""
    if name in RUNS:
        found = load_tokenizers(ROOT / "pickles" / name).src
        assert isinstance(found, SentencePieceTokenizer)
        return found
    lines = [*TEXT.src, *TEXT.tgt, "１，２００円 ﬁ", "x² ½", "ABC"]
    return SentencePieceTokenizer.train(TRAINED[name], [lines], ["<2ja>"], STAND_INS).tagged(["<2ja>"])


TEXTS_OF_RUNS = """
この寺は足利義満によって建てられた臨済宗の寺院である。|今日の夕飯は何にする？|Tシャツを買った。|京都|🙂|
The temple was built by Yoshimitsu ASHIKAGA in 1397.|I'm sorry, I can't hear you.|1868|https://example.com/京都
"""


def test_the_run_that_reads_a_text_is_chosen_as_in_python(page: Page) -> None:
    pairs = {name: load_tokenizers(ROOT / "pickles" / name) for name in SHIPPED}
    languages = {name: name.split("_")[1:] for name in SHIPPED}
    page.evaluate(
        """given => {
            const runs = given.map(([name, source, target]) => ({ name, source, target }));
            inside = { settings: {}, served: { runs } };
            for (const [name, , , models, tags, near] of given) {
                const [src, tgt] = models.map((model) => new Tokenizer(model, tags));
                tokenizers.set(name, { src, tgt: tgt ?? src });
                inside.settings[name] = { near };
            }
        }""",
        [
            [
                name,
                *languages[name],
                [vocabulary(cast(SentencePieceTokenizer, side).model) for side in pair[: 2 - pair.is_joint]],
                [*pair.tags],
                near,
            ]
            for (name, pair), near in zip(pairs.items(), [1.02, 1, 1, 1], strict=True)
        ],
    )
    chosen = set()
    for text in TEXTS_OF_RUNS.replace("\n", "").split("|"):
        found = detect(text, ["ja", "en"])
        assert found
        likely = {n: source_log_prob(ROOT / "pickles" / n)(text) for n in SHIPPED if languages[n][0] == found.language}
        best = max(likely.values())
        expected = next(n for n, p in likely.items() if p >= best * (1.02 if n == SHIPPED[0] else 1))
        answer = "text => choose(text, { source: 'auto', target: 'auto' }).then(({ run }) => run.name)"
        assert page.evaluate(answer, text) == expected
        chosen.add(expected)
    assert chosen == {*SHIPPED}


def say_the_same(page: Page, ours: SentencePieceTokenizer, lines: list[str]) -> None:
    given = [vocabulary(ours.model), [*ours.tags]]
    page.evaluate("([model, tags]) => { window.ours = new Tokenizer(model, tags) }", given)
    say = (
        "lines => lines.map((line) => ours.encode(line)).map((ids, i) => [ids, ours.split(lines[i]), ours.decode(ids)])"
    )
    ids = ours.encode(lines)
    for line, theirs, expected in zip(
        lines, page.evaluate(say, lines), zip(ids, ours.split(lines), ours.decode(ids), strict=True), strict=True
    ):
        assert theirs == [*expected], repr(line)


@pytest.mark.parametrize("name", [*RUNS, *TRAINED])
def test_odd_texts_have_the_same_tokens_in_the_browser(page: Page, name: str) -> None:
    ours = tokenizer(name)
    say_the_same(page, ours, [*ODD, *TEXT.src[:20], *TEXT.tgt[:20]])
    assert page.evaluate("[ours.size, ours.tokens([0, 1, 5])]") == [len(ours), ours.tokens([0, 1, 5])]
    with pytest.raises(ValueError, match="not UTF-8"):
        ours.encode(["a\ud800"])
    with pytest.raises(Error, match="not UTF-8"):
        page.evaluate(r"ours.encode('a\ud800')")


def test_a_text_begins_with_the_tag_that_was_chosen(page: Page) -> None:
    learned = SentencePieceTokenizer.train(TRAINED["bpe"], [[*TEXT.src, *TEXT.tgt]], ["<2ja>", "<news>"], STAND_INS)
    page.evaluate("model => { window.ours = new Tokenizer(model, ['<2ja>']) }", vocabulary(learned.model))
    translator = "new Translator(null, { src: ours, tgt: ours }, { search: {} })"
    for tag, tags in (("news", ["<2ja>", "<news>"]), ("", ["<2ja>"]), (None, ["<2ja>"])):
        ids = page.evaluate(f"tag => {translator}.changed({{ tag }}).src.encode('京都')", tag)
        assert ids == learned.tagged(tags).encode(["京都"])[0]


@pytest.fixture(scope="module")
def kftt(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A thousand lines of each language."""
    folder, paths = tmp_path_factory.mktemp("kftt"), [f"orig/kyoto-dev.{language}" for language in ("ja", "en")]
    take(shared_data / "kftt-data-1.0.tar.xz", paths, folder)
    return [line for path in paths for line in (folder / path).read_text().splitlines()[:1000]]


def test_thousand_lines_of_each_language_have_the_same_tokens(page: Page, kftt: list[str]) -> None:
    say_the_same(page, tokenizer(RUNS[0]), kftt)  # the other run has the same pieces


# what the rules of texts are about, to be put together
FRAGMENTS = """
1億2000万|1億3000万人|3.5 million|0.1|1,234.50|１２，３４５．６|twenty-one thousand|two hundred and five|三百五十万人|
二十|八百屋|4万1000人|明治43|年|月3日|（旧暦）|12|13|9999|10000|1.50|50%|３％|12th|third|1234567890123万|2.25 billion|
1,000 trillion|百|https://example.com/会議.pdf?id=1|www.example.com/x|me@example.org|{name}|{{ x }}|%s|%1$d|$HOME|<b>|
</b>|#tag|@me|:smile:|./a/b.py|C:\\x\\y.txt|`a.b`|🙂|⚠️|𠮷|¥1,200|$ 3.50|-5°C|10²|½|①|-3|3:45 pm|12 p.m.|
午前10時30分|午後3時|10:30|2020-01-02|v1.2.3|075-1234|9784061234567|「|」|『|』|（|）|(|)|[|]|"|'|’|。|．|.|!|？|…|、|
,|:|Mr.|Dr.|U.S.|e.g.|No.|vol.|J.|a.m.|Ph.D|Inc.|z. B.|3. Oktober|1.|・|※|■|①と|(a)|(iv)|（一）|2、|♪|○|と言った|
という|を|は|が|The|and|he|of|NHK|JR EAST|KINKAKU-JI|TEMPLE WAS|ΑΣ|ÉTÉ|İK|ſ|Ǆ|A|word|café|ß|東京|京都市|寺|ー|々|〇|
ha|haha|lo|0,0|thousand|million|²|٣|X|572|_|/|`a`|ǅ|
**bold**|***|~~x~~|‘寺’|Tシャツ|ｶﾅ|한국어|Москва|Αθήνα|中文|한국|私はAPIを|ไทย|
*it*|__b__|〜寺〜|<br>|VERY|DO NOT|DATE|KYOTO|Go|-|%1|−
"""
SIGNS = " \t\n\r\u3000\u2028\ufeff\x85\x1c|｜\u200d\ue000\ue200\ue241"
PARTS = [*FRAGMENTS.replace("\n", "").split("|"), *SIGNS, " | ", "> ", "- ", "# "]
TEXTS = st.builds(
    lambda parts, gap, times: gap.join(parts) * times,
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=12),
    st.sampled_from(["", " "]),
    st.sampled_from([1, 1, 1, 3, 4]),
)
FEW = [*"abc1234567890、。「」ABC東京はが°x/-'\"^_()"]  # a vocabulary that lacks most characters

# All that is said of a text, here in JavaScript and below in Python.
SAY = """([text, upper, other, few]) => {
  const cells = (found) => found.map((cell) => [cell.text, cell.gap]);
  const { LEARNED: learned, WORDS: words } = R.protected;
  const known = knownCharacters(few);
  const encode = (form) => [...form].map((c) => (known.has(c) ? 9 : UNKNOWN));
  const of = (source, target) => {
    const whole = masked(text, source, learned, true);
    const some = masked(text, source, words);
    return {
      spans: spans(text, source).map((span) => [span.begin, span.end, span.text, span.value !== null, span.isHard]),
      lenient: spans(text, source, true).map((span) => span.text),
      written: spans(text, source).flatMap((span) => [written(span, source), written(span, target)]),
      masked: [whole, some].map((mask) => [mask.text, mask.head, mask.tail, [...mask.spans.keys()]]),
      unmasked: [whole, some].map((mask) => unmasked(mask, `${mask.text}. ${other}`, target)),
      lost: lost(text, other, [source, target]).map((span) => span.text),
    };
  };
  const pairs = spans(text, "en").map((span) => [span.begin, span.end]);
  return {
    languages: [["ja", "en"], ["en", "zh"], ["de", "ko", "ru", "xx"]].map((some) => detect(text, some) ?? null),
    words: hasWords(text), form: knownForm(text, known), cells: cells(splitCells(text)),
    sentences: cells(splitSentences(text)), whole: cells(splitSentences(text, pairs)),
    parts: splitLong(text, (part) => [...part].length < 7),
    en: of("en", "ja"), ja: of("ja", "en"), de: of("de", "ja"),
    capitals: [isInCapitals(text), usualCase(text, encode), usualCase(upper, encode)],
    emphasis: [withoutEmphasis(text, encode), withoutEmphasis(text, (word) => [...(/[a-z]/.test(word) ? "1" : word)])],
    loops: [repetitions(text), repetitions(text, 8), isLoop(text, other), endOfFirst(text, other)],
    shown: shown([...text], new Map([[other.slice(0, 2), "A"], [text.slice(1, 3), "B"], ["12", "C"]])),
  };
}"""


def beginning(text: str, n: int, first: int = 0) -> str:
    return text.encode("utf-16-le")[2 * first : 2 * n].decode("utf-16-le", "surrogatepass")


def said(text: str, other: str) -> dict[str, Any]:
    known = known_characters(FEW)

    def at(place: int) -> int:  # as JavaScript counts: characters such as emoji count twice
        return len(text[:place].encode("utf-16-le")) // 2

    def of(source: str, target: str) -> dict[str, Any]:
        masks = [masked(text, source, LEARNED, everything=True), masked(text, source, WORDS)]
        found = spans(text, source)
        return {
            "spans": [[at(s.begin), at(s.end), s.text, s.value is not None, s.is_hard] for s in found],
            "lenient": [span.text for span in spans(text, source, lenient=True)],
            "written": [written(span, language) for span in found for language in (source, target)],
            "masked": [[mask.text, mask.head, mask.tail, [*mask.spans]] for mask in masks],
            "unmasked": [mask.unmasked(f"{mask.text}. {other}", target) for mask in masks],
            "lost": [span.text for span in lost(text, other, (source, target))],
        }

    def encode(forms: Any) -> list[list[int]]:
        return [[9 if character in known else 1 for character in form] for form in forms]

    def few(forms: Any) -> list[list[int]]:
        return [[9] * (1 if any(map(str.islower, form)) else len(form)) for form in forms]

    pairs = [(span.begin, span.end) for span in spans(text, "en")]
    end = loop.end_of_first(text, other)
    words = {beginning(other, 2): "A", beginning(text, 3, 1): "B", "12": "C"}
    return {
        "languages": [
            found.language if (found := detect(text, some)) else None
            for some in (["ja", "en"], ["en", "zh"], ["de", "ko", "ru", "xx"])
        ],
        "words": has_words(text),
        "form": known_form(text, known),
        "cells": [[*cell] for cell in split_cells(text)],
        "sentences": [[*sentence] for sentence in split_sentences(text)],
        "whole": [[*sentence] for sentence in split_sentences(text, pairs)],
        "parts": split_long(text, lambda part: len(part) < 7),
        "en": of("en", "ja"),
        "ja": of("ja", "en"),
        "de": of("de", "ja"),
        "capitals": [is_in_capitals(text), usual_case(text, encode), usual_case(text.upper(), encode)],
        "emphasis": [without_emphasis(text, encode), without_emphasis(text, few)],
        "loops": [
            loop.repetitions(text),
            loop.repetitions(text, 8),
            loop.is_loop(text, other),
            None if end is None else at(end),
        ],
        "shown": shown([*text], words),
    }


@settings(max_examples=100)
@given(text=TEXTS, other=TEXTS)
def test_rules_of_texts_are_the_same_in_the_browser(page: Page, text: str, other: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "OFTEN", 2)
        assert page.evaluate(SAY, [text, text.upper(), other, FEW]) == said(text, other)


def test_rules_of_texts_are_the_same_for_lines_that_people_have_written(
    page: Page, kftt: list[str], shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "OFTEN", 2)
    notes = [file.read_text() for file in sorted(shared_data.parent.glob("*.md")) if file.stem in ("cases", "japanese")]
    lines = [*ODD, *(line for note in notes for line in note.splitlines()), *kftt[::20]]
    for text, other in pairwise(lines):
        assert page.evaluate(SAY, [text, text.upper(), other, FEW]) == said(text, other)


@pytest.mark.parametrize("name", ["kftt_en_ja", "unigram"])
def test_rows_that_lack_terms_are_chosen_as_in_a_beam(page: Page, name: str) -> None:
    tgt, draw, size = tokenizer(name).tagged([]), torch.Generator().manual_seed(1), 3
    stand_ins = LEARNED if name == "unigram" else WORDS
    terms = [stand_ins.numbers[1], stand_ins.names[0], stand_ins.numbers[1]]
    wanted = Glossary({word: word for word in terms}, tgt).wanted(f"{terms[0]} {terms[1]}, ({terms[2]}")
    page.evaluate(
        "([model, terms]) => { window.wanted = new Wanted(terms, new Tokenizer(model)) }",
        [vocabulary(tgt.model), terms],
    )
    banks, beam = _Banks([wanted], size), [{"ids": list[int]()}]
    assert page.evaluate("wanted.size") == wanted.n_tokens > 2
    n_complete = 0
    for t in range(2 * wanted.n_tokens):
        total = torch.randn(1, len(beam), len(tgt), generator=draw) - t
        total[:, :, :4] = float("-inf")
        ends = torch.full((1, len(beam)), 5.0 - t)
        must_end = t == 2 * wanted.n_tokens - 1
        scores, places, may_end = banks.choose(total, ends, torch.tensor([must_end]))
        given = [total.flatten().tolist(), ends[0].tolist(), beam, size, must_end]
        kept, may_end_there = page.evaluate(
            """([total, ends, beam, width, mustEnd]) => {
                const kept = wanted.choose(Float32Array.from(total), ends, beam, width, mustEnd);
                return [kept, ends];
            }""",
            given,
        )
        assert [(one["row"] * len(tgt) + one["token"], one["score"]) for one in kept] == [
            (place, score) for place, score in zip(places[0].tolist(), scores[0].tolist(), strict=True) if score > -1e9
        ]
        assert may_end_there == may_end[0].tolist()
        n_complete += sum(score > float("-inf") for score in may_end_there)
        beam = [{"ids": [*beam[one["row"]]["ids"], one["token"]]} for one in kept]
    assert n_complete


PATTERNS = [r"\w+|\s|\d", r"[^\W\d_]+", r"[\W_]+", r"\A.|a$|\b.\Z", r"\w\b|\S", r"(?s).b|.", r"(?i:ski|[a-z])b"]


@pytest.mark.parametrize("flags", [0, re.A])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_finds_the_same_in_javascript(page: Page, pattern: str, flags: int) -> None:
    compiled = re.compile(pattern, flags)
    text = "".join(map(chr, [*range(0x2FF), *range(0x2000, 0x2200), 0x3042, 0xE000, 0x1F600])) + "ſKİb SKIb _é９a\n"
    found = page.evaluate("([text, source]) => text.match(new RegExp(source, 'gu'))", [text, javascript(compiled)])
    assert found == [match[0] for match in compiled.finditer(text)]
