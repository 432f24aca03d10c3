"""Every setting is tried once, and the best one is chosen."""

from sacrebleu.metrics.bleu import BLEU

from utils.evaluation.verbs import Trial, best_trial, try_settings
from utils.search.constraint import SearchConfig

REFERENCES = ["the old temple stands in kyoto .", "a new bridge crosses the river ."]
WORSE = ["the old temple stands .", "a bridge crosses the river ."]


def test_each_setting_translates_once_and_greedy_search_once_in_all() -> None:
    asked = []

    def translate(search: SearchConfig) -> list[str]:
        asked.append(search)
        return REFERENCES if (search.beam_size, search.length_penalty) == (3, 1.0) else WORSE

    told: list[Trial] = []
    base = SearchConfig(no_repeat_ngram=3)
    trials = try_settings(translate, REFERENCES, base, [1, 3], [0.5, 1.0], BLEU(tokenize="none"), told.append)
    assert asked == [
        SearchConfig(1, 0.5, no_repeat_ngram=3),
        SearchConfig(3, 0.5, no_repeat_ngram=3),
        SearchConfig(3, 1.0, no_repeat_ngram=3),
    ]
    assert [(t.beam_size, t.length_penalty) for t in trials] == [(1, 0.5), (1, 1.0), (3, 0.5), (3, 1.0)]
    assert trials[0].bleu == trials[1].bleu == trials[2].bleu < trials[3].bleu
    assert trials[0].length_ratio == 11 / 14
    assert round(trials[3].bleu) == 100
    assert told == trials
    assert best_trial(trials) == trials[3]


def test_of_equals_the_narrowest_beam_is_best() -> None:
    trials = [Trial(8, 1.0, 20.0, 1.0), Trial(2, 0.6, 20.0, 0.9), Trial(4, 0.6, 20.0, 1.0)]
    assert best_trial(trials).beam_size == 2
