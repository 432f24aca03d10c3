import json

import pytest

from utils.search.inspection import Judgement, Position
from utils.search.translator import Candidate, Translation
from utils.terminal.output import (
    alignment_fields,
    alternatives_table,
    json_line,
    judgement_line,
    judgement_notices,
    judgement_table,
    n_best_lines,
    notices,
    ranked_lines,
    record,
    rounded,
)

TWO = [Candidate("a b", -0.123456, ["▁a", "▁b"]), Candidate("都\u2028", -12.0, ["都"])]
BOTH = Translation(TWO, 1, 0, False)
JUDGEMENT = Judgement(["▁a", "都", "</s>"], [-0.5, -10.0, -1.5], 0, 0)


def test_candidates_are_numbered_or_labelled() -> None:
    assert ranked_lines(BOTH) == [" 1    -0.1235  a b", " 2   -12.0000  都\u2028"]
    assert n_best_lines(7, BOTH) == ["7\t-0.1235\ta b", "7\t-12.0000\t都\u2028"]


@pytest.mark.parametrize(
    ("n_pieces", "lost", "unknown", "n_unknown", "said"),
    [
        (1, 0, False, 0, []),
        (0, 0, True, 2, ["no part of it is in the vocabulary; left unchanged"]),
        (1, 0, False, 1, ["1 token is not in the vocabulary; read as <unk>"]),
        (3, 0, False, 0, ["long; translated in 3 pieces"]),
        (
            *(3, 5, False, 2),
            [
                "2 tokens are not in the vocabulary; read as <unk>",
                "a sentence is longer than the model's window; 5 tokens were cut off",
            ],
        ),
    ],
)
def test_what_a_reader_must_know_is_said(
    n_pieces: int, lost: int, unknown: bool, n_unknown: int, said: list[str]
) -> None:
    found = notices(Translation(TWO, n_pieces, lost, unknown, n_unknown))
    assert [notice.text for notice in found] == said
    assert len({notice.kind for notice in found}) == len(said)


def test_a_record_is_one_line_of_readable_json() -> None:
    line = json_line(
        {**record("源", BOTH, 2), **alignment_fields(["源"], [(0, 0), (0, 1)]), "log_probs": rounded([-0.123456])}
    )
    assert "\n" not in line
    assert "源" in line
    assert json.loads(line) == {
        "source": "源",
        "translation": "a b",
        "score": -0.1235,
        "tokens": ["▁a", "▁b"],
        "pieces": 1,
        "lost_tokens": 0,
        "unknown": False,
        "unknown_tokens": 0,
        "n_best": [
            {"translation": "a b", "score": -0.1235, "tokens": ["▁a", "▁b"]},
            {"translation": "都\u2028", "score": -12.0, "tokens": ["都"]},
        ],
        "source_tokens": ["源"],
        "alignment": "0-0 0-1",
        "log_probs": [-0.1235],
    }
    assert "n_best" not in record("源", BOTH)
    assert alignment_fields(["源"], None) == {"source_tokens": None, "alignment": None}
    assert rounded(None) is None


def test_judgements_are_a_row_or_a_table() -> None:
    assert judgement_line(JUDGEMENT) == "-12.0000\t3\t54.5982"
    assert judgement_table(JUDGEMENT) == [
        "▁a    60.7 %",
        "都    <0.1 %",
        "</s>  22.3 %",
        "",
        "log-probability -12.0000, 3 tokens, perplexity 54.60",
    ]
    assert judgement_notices(JUDGEMENT) == []
    cut, unknown = judgement_notices(JUDGEMENT._replace(lost_tokens=1, n_unknown=2))
    assert cut.text.startswith("longer ")
    assert unknown.text.startswith("2 tokens ")


def test_columns_of_alternatives_stand_below_each_other_in_a_terminal() -> None:
    positions = [
        Position(9, "京都", [("京都", -0.1), ("a", -3.0)]),
        Position(10, "</s>", [("</s>", -0.01)]),
    ]
    assert alternatives_table(positions) == [
        " 9  京都  │  京都  90.5 %  a  5.0 %",
        "10  </s>  │  </s>  99.0 %",
    ]
