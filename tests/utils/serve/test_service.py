import pytest
from fastapi import HTTPException

from tests.utils.serve.served import Scribe
from utils.serve.service import Limits, Service

SCRIBE = Scribe()
ROUTES = [
    SCRIBE.route("one", "ja", "en"),
    SCRIBE.route("other", "ja", "en"),
    SCRIBE.route("back", "en", "ja"),
    SCRIBE.route("german", "de", "en"),
]


@pytest.mark.parametrize(
    ("text", "source", "target", "name", "expected", "language"),
    [
        ("駅は", "ja", "en", None, "one", None),
        ("駅は", "auto", "auto", None, "one", "ja"),
        ("駅は", "auto", "en", None, "one", "ja"),
        ("The", "auto", "auto", None, "back", "en"),
        ("Der", "auto", "en", None, "german", "de"),
        ("The", "en", "auto", None, "back", None),
        ("駅は", "auto", "auto", "other", "other", None),
        ("The", "auto", "auto", "other", "other", None),  # an explicitly named run is used as it is
        ("", "auto", "ja", None, "back", "en"),
    ],
)
def test_a_run_is_chosen(
    text: str, source: str, target: str, name: str | None, expected: str, language: str | None
) -> None:
    route, detected = Service(ROUTES, Limits()).choose(text, source, target, name)
    assert route.name == expected
    assert (detected and detected.language) == language


@pytest.mark.parametrize(
    ("text", "source", "target", "name", "complaint"),
    [
        ("x", "ja", "fr", None, "no run translates ja→fr: choose from ja→en, en→ja, de→en"),
        ("x", "fr", "auto", None, "no run translates fr→auto: choose from ja→en, en→ja, de→en"),
        (
            "駅は",
            "auto",
            "ja",
            None,
            "the language of the text cannot be translated auto→ja: choose from ja→en, en→ja, de→en",
        ),
        ("x", "auto", "auto", "none", "no run 'none' is served: choose from one, other, back, german"),
        ("x", "en", "ja", "one", "no run one translates en→ja"),
    ],
)
def test_what_nobody_translates_is_refused_with_what_there_is(
    text: str, source: str, target: str, name: str | None, complaint: str
) -> None:
    with pytest.raises(HTTPException) as caught:
        Service(ROUTES, Limits()).choose(text, source, target, name)
    assert caught.value.status_code == 400
    assert complaint in caught.value.detail


def test_two_runs_of_one_name_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="two runs are called one"):
        Service([SCRIBE.route("one"), SCRIBE.route("one", "en", "ja")], Limits())


@pytest.mark.parametrize("name", ["max_chars", "max_texts", "batch_texts", "queue_texts", "timeout_s"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 lets nothing through"):
        Limits(**{name: 0})


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="queue_texts=9 has no room for the max_texts=10"):
        Limits(queue_texts=9, max_texts=10)
    assert Limits(collect_ms=0).collect_ms == 0
