"""Every weight is tried once, and the best one is chosen."""

from sacrebleu.metrics.bleu import BLEU

from utils.evaluation.rescoring_weight import WeightTrial, best_weight, try_weights

REFERENCES = ["the old temple stands in kyoto .", "a new bridge crosses the river ."]
WORSE = ["the old temple stands .", "a bridge crosses the river ."]


def test_each_weight_chooses_once_and_nothing_is_asked_where_it_is_nothing() -> None:
    asked, told = list[float](), list[WeightTrial]()

    def rescore(weight: float) -> list[str]:
        asked.append(weight)
        return REFERENCES if weight == 0.5 else [REFERENCES[0], WORSE[1]]

    trials = try_weights(rescore, WORSE, REFERENCES, 7, [0.0, 0.1, 0.5], BLEU(tokenize="none"), told.append)
    assert asked == [0.1, 0.5]
    assert [(trial.memory_length, trial.weight, trial.n_changed) for trial in trials] == [
        (7, 0.0, 0),
        (7, 0.1, 1),
        (7, 0.5, 2),
    ]
    assert trials[0].bleu < trials[1].bleu < trials[2].bleu
    assert trials[0].length_ratio == 11 / 14
    assert round(trials[2].bleu) == 100
    assert told == trials
    assert best_weight(trials) == 0.5


def test_of_equals_the_smallest_weight_is_best() -> None:
    trials = [WeightTrial(0, weight, bleu, 1.0, 0) for weight, bleu in ((0.5, 20.0), (0.0, 19.0), (0.2, 20.0))]
    assert best_weight(trials) == 0.2
