"""Differences are named as train.py names settings, whatever the trees look like."""

from utils.training.checkpoint import ABSENT, changed_settings


def test_equal_trees_do_not_differ() -> None:
    tree = {"a": {"b": [1, None], "c": "x"}, "d": True}
    assert changed_settings(tree, {"d": True, "a": {"c": "x", "b": [1, None]}}) == {}


def test_both_values_are_named_in_order() -> None:
    old = {"a": {"b": 1, "c": {"d": 2}}, "e": None, "gone": "x"}
    new = {"first": 0, "e": "null", "a": {"c": {"d": 3}, "b": 1}}
    found = changed_settings(old, new)
    assert found == {"a.c.d": (2, 3), "e": (None, "null"), "gone": ("x", ABSENT), "first": (ABSENT, 0)}
    assert list(found) == ["a.c.d", "e", "gone", "first"]


def test_types_make_a_difference() -> None:
    assert changed_settings({"a": 1, "b": 1, "c": [0]}, {"a": 1.0, "b": True, "c": [False]}).keys() == {"a", "b", "c"}


def test_a_group_and_a_value_differ() -> None:
    assert changed_settings({"a": None}, {"a": {"b": 1}}) == {"a": (None, ABSENT), "a.b": (ABSENT, 1)}
