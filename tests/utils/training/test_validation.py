from tests.utils.training.reports import VALIDATION
from utils.training.report import Validation


def test_a_score_without_a_name_for_people_is_shown_by_its_own() -> None:
    assert str(Validation(0.0, {"bleu": 12.5, "exact_match": 3.0})) == "PPL 1.00  BLEU 12.50  exact_match 3.00"


def test_a_hopeless_loss_still_has_a_perplexity() -> None:
    assert VALIDATION._replace(loss=1e6).perplexity > 1e300
