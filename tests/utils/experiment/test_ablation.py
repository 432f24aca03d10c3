import re
from dataclasses import replace
from pathlib import Path

import pytest

from const.path import ROOT
from tests.utils.experiment.tiny_ablation import SPEC, tiny_ablation
from utils.arguments import read_arguments
from utils.experiment.ablation import plain_differences, read_ablation, same_weights


def test_each_alternative_changes_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    ablation = tiny_ablation(tmp_path)
    assert [(str(a), ablation.changes(a)) for a in ablation.everything] == [
        ("base", {}),
        ("norm last", {"model.norm_first": (True, False)}),
        ("beam 1, greedy", {"search.beam_size": (4, 1)}),
        ("beam 2", {"search.beam_size": (4, 2)}),
        ("dropout 0.3", {"model.dropout": (0.1, 0.3)}),
    ]


def test_the_trainings_are_every_seed_of_all_that_has_weights_of_its_own(tmp_path: Path) -> None:
    """A beam needs none: it translates with the base's. The first seed of everything comes first."""
    trainings = tiny_ablation(tmp_path).trainings()
    assert [training.name for training in trainings] == [
        *("tiny-base-1", "tiny-norm-last-1", "tiny-dropout-0.3-1"),
        *("tiny-base-2", "tiny-norm-last-2", "tiny-dropout-0.3-2"),
    ]
    assert [[str(a) for a in training.translating] for training in trainings] == 2 * [
        ["base", "beam 1, greedy", "beam 2"],
        ["norm last"],
        ["dropout 0.3"],
    ]


def test_train_py_understands_every_training_as_it_was_read_here(tmp_path: Path) -> None:
    """Null, lists, switches and numbers on the command line are what they were in the file."""
    trainings = tiny_ablation(tmp_path).trainings()
    for training in trainings:
        assert read_arguments([*training.arguments, "--name", training.name]).config == training.config
    assert trainings[0].config.optimizer.clip_norm is None
    assert trainings[0].config.optimizer.betas == (0.5, 0.75)
    assert [training.config.training.seed for training in trainings] == [1, 1, 1, 2, 2, 2]


def test_who_translates_with_the_weights_of_the_base_bears_their_name(tmp_path: Path) -> None:
    ablation = tiny_ablation(tmp_path)
    greedy, config = ablation.alternatives[1], ablation.config(ablation.alternatives[1], 2)
    assert ablation.shares_weights(greedy)
    assert (config.name, config.training.seed, config.search.beam_size) == ("tiny-base-2", 2, 1)
    assert not ablation.shares_weights(ablation.base)


def test_weights_depend_on_all_but_name_and_search(tmp_path: Path) -> None:
    config = tiny_ablation(tmp_path).base.config
    assert same_weights(config, replace(config, name="other", search=replace(config.search, length_penalty=2.0)))
    assert not same_weights(config, replace(config, checkpoint=replace(config.checkpoint, average_last=3)))


def test_settings_differ_where_both_know_them() -> None:
    """One that came later was at its default before; a name says nothing of a translator."""
    old = {"name": "a", "model": {"width": 1, "norm": True}, "seed": 1}
    new = {"name": "b", "model": {"width": 2, "norm": True, "depth": 3}, "seed": 1.0}
    assert plain_differences(old, new) == {"model.width": (1, 2), "seed": (1, 1.0)}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "norm_first",
            "norm_frist",
            r"norm last: unknown option model\.norm_frist=false: did you mean --model\.norm_f",
        ),
        ("0.3}", "much}", r"dropout 0\.3: .*model\.dropout.*much"),
        ("search.beam_size: 2", "search.beam_size: 0", r"beam 2: beam_size=0: give 1"),
        ("search.beam_size: 2", "search.beam_size: 4", r"beam 2 does not differ from the base: change or remove it"),
        ("search.beam_size: 2", "training.seed: 2", r"beam 2: training\.seed is set for each training: leave it out"),
        ("model.dropout: 0.3", "config: my.yaml", r"dropout 0\.3: config is set for each training: leave it out$"),
        ("model.dropout: 0.3", "task: translation", r"dropout 0\.3: task is set for each training: leave it out$"),
        ("model.dropout: 0.3", "name: mine", r"dropout 0\.3: name is set for each training: leave it out$"),
        (
            'dropout:\n    "0.3":',
            "脱落:\n    多め:",
            r"脱落 多め has no letter for names of files \(a to z\): rename it$",
        ),
        ('"2"', "1 (greedy)", r"beam 1 \(greedy\) has the same short name as another, beam-1-greedy: rename it"),
        ("max_steps", "max_step", r"base: unknown option training\.max_step=4: did you mean --training\.max_steps\?"),
        ("seeds", "seed", r"unknown option seed: did you mean --seeds\?"),
        ("[1, 2]", "[1, 1]", r"seeds=\[1, 1\]: give each seed once"),
        ("[1, 2]", "[]", r"seeds=\[\]: give each seed once"),
        ("name: tiny", "name: ../tiny", r"name=\.\./tiny is used in file names: give lower-case letters"),
        ("demo", "dmo", r"no settings const/preset/dmo\.yaml: did you mean demo"),
        ("demo", "bert_ja", r"bert_ja\.yaml is of task masked_language"),
        ("switches:", "switches: [", r"tiny\.yaml: line \d+: "),
        ('"2":', "2:", r"tiny\.yaml: line \d+: the key 2 is not a string: quote it"),
        ('"2":', "off:", r"tiny\.yaml: line \d+: the key off is not a string: quote it"),
        ("  dropout:", "  norm:", r"tiny\.yaml: line \d+: the key norm appears twice"),
        ("[1, 2]", "", r"seeds"),
        ("[1, 2]", "[1, -2]", r"seeds=\[1, -2\]: give each seed once, 0 or more"),
        ("last: {model.norm_first: false}", "last:", r"switches"),
        (SPEC, "", r"no settings of an ablation: give name, preset, seeds, switches, options"),
        (SPEC, "3", r"no settings of an ablation"),
    ],
)
def test_what_cannot_be_understood_is_said_in_a_line_before_anything_is_trained(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        tiny_ablation(tmp_path, SPEC.replace(old, new, 1))
    assert str(tmp_path / "tiny.yaml") in str(caught.value) or "const/preset" in str(caught.value)


def test_a_key_without_a_value_is_one_that_is_not_there(tmp_path: Path) -> None:
    """`options:`, with what stood below it commented out."""
    found = tiny_ablation(tmp_path, re.sub("options: .*", "options:", SPEC))
    assert found.spec.options == {}


def test_a_file_that_is_not_there_is_named_with_one_that_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no ablation .*nothing\.yaml: give a file such as (.*)") as caught:
        read_ablation(tmp_path / "nothing.yaml")
    assert (ROOT / str(caught.value).split()[-1]).is_file()


@pytest.mark.parametrize("file", sorted((ROOT / "const" / "ablation").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_ablations_of_the_repository_turn_one_switch_at_a_time(file: Path) -> None:
    ablation = read_ablation(file)
    assert ablation.spec.name == file.stem
    assert len(ablation.spec.seeds) >= 2 or file.stem.endswith("_size")  # a first look, before a long training
    for alternative in ablation.alternatives:
        several = len(ablation.changes(alternative)) > 1
        # an average takes the place of the other, heads keep their width, a cosine has a length, an optimizer its rate
        assert not several or re.search("average|width|learning rate|optimizer", alternative.switch)
