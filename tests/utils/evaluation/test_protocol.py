"""multi-bleu.perl, by hand and by a copy of its formula that is independent of sacreBLEU."""

import math
from collections import Counter
from pathlib import Path

import pytest

from const.corpora import CORPORA
from tests.utils.evaluation.texts import JAPANESE, TOKENIZED
from utils.dataset.download import install
from utils.dataset.text import read_lines
from utils.evaluation.metric import is_published_test, moses_words, multi_bleu


def by_hand(translations: list[str], references: list[str]) -> str:
    """The script in Python: bytes, words between ASCII spaces, clipped counts, a hugely negative log of zero."""
    correct, total, lengths = [0] * 4, [0] * 4, [0, 0]
    for pair in zip(translations, references, strict=True):
        ours, theirs = (line.lower().encode().split() for line in pair)
        lengths = [lengths[0] + len(ours), lengths[1] + len(theirs)]
        for n in range(4):
            a, b = (Counter(tuple(s[i : i + n + 1]) for i in range(len(s) - n)) for s in (ours, theirs))
            correct[n] += sum((a & b).values())
            total[n] += sum(a.values())
    precisions = [c / t if t else 0 for c, t in zip(correct, total, strict=True)]
    penalty = math.exp(1 - lengths[1] / lengths[0]) if lengths[0] < lengths[1] else 1
    bleu = penalty * math.exp(sum(math.log(p) if p else -9999999999 for p in precisions) / 4)
    return (
        f"BLEU = {100 * bleu:.2f}, {'/'.join(f'{100 * p:.1f}' for p in precisions)} (BP={penalty:.3f}, "
        f"ratio={lengths[0] / lengths[1]:.3f}, hyp_len={lengths[0]}, ref_len={lengths[1]})"
    )


def test_a_line_counted_on_paper() -> None:
    # 6 of 7 words, 3 of 6 bigrams, 2 of 5 trigrams, 1 of 4 4-grams; one word short of eight
    told = multi_bleu(["The old temple is in Nara ."], ["the old temple is far in Kyoto ."])
    assert told == "BLEU = 39.44, 85.7/50.0/40.0/25.0 (BP=0.867, ratio=0.875, hyp_len=7, ref_len=8)"
    assert 100 * math.exp(1 - 8 / 7) * (6 / 7 * 3 / 6 * 2 / 5 * 1 / 4) ** 0.25 == pytest.approx(39.44, abs=0.005)


@pytest.mark.parametrize(
    ("translations", "references"),
    [
        (TOKENIZED.good, TOKENIZED.references),
        (TOKENIZED.references, TOKENIZED.bad),
        ([line[: len(line) // 2] for line in TOKENIZED.good], TOKENIZED.references),
        ([line.upper() for line in TOKENIZED.bad], TOKENIZED.references),
        ([" ".join(line) for line in JAPANESE.good], [" ".join(line) for line in JAPANESE.references]),
        (["a b c", "d e"], ["a b c d", "d e f"]),  # no 4-gram at all
        (["a b c x e f g"], ["a b c d e f g"]),  # 4-grams, but no matching one
        (["x y z w"], ["a b c d"]),
        (["", "a b c d e"], ["x y", "a b c d e"]),
        (["a\u3000b c\u00a0d e f g", "É a ＴＶ b c d"], ["a\u3000b c d e f g", "é a ｔｖ b c d"]),
    ],
)
def test_it_is_the_script(translations: list[str], references: list[str]) -> None:
    assert multi_bleu(translations, references) == by_hand(translations, references)


def test_without_a_right_quadruple_it_is_nothing() -> None:
    assert multi_bleu(["a b c x e f g"], ["a b c d e f g"]).startswith("BLEU = 0.00, 85.7/66.7/40.0/0.0 (BP=1.000")


def test_a_longer_translation_has_no_penalty() -> None:
    assert "(BP=1.000, ratio=1.250, hyp_len=5, ref_len=4)" in multi_bleu(["a b c d e"], ["a b c d"])


def test_plain_english_is_cut_as_moses_does() -> None:
    plain = ["\"Don't,\" said the No. 3 monk (of Soto Zen's temple) & left for 1,000 years.", "", "vol. 1-12, 50% <b>"]
    assert moses_words(plain) == [
        "\" Don 't , \" said the No. 3 monk ( of Soto Zen 's temple ) & left for 1,000 years .",
        "",
        "vol . 1-12 , 50 % < b >",
    ]


def test_the_published_references_are_known(shared_data: Path, tmp_path: Path) -> None:
    install(CORPORA["kftt"], shared_data / "kftt-data-1.0.tar.xz", tmp_path / "kftt")
    references = read_lines(tmp_path / "kftt" / "tok" / "kyoto-test.en")
    assert is_published_test(references)
    assert not is_published_test(references[:-1])
    plain = read_lines(tmp_path / "kftt" / "orig" / "kyoto-test.en")
    assert not is_published_test(plain)
    assert sum(ours == theirs for ours, theirs in zip(moses_words(plain), references, strict=True)) == 1140
    assert multi_bleu(references, references).endswith("(BP=1.000, ratio=1.000, hyp_len=26734, ref_len=26734)")
