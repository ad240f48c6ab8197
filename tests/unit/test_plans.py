"""Plan trees: text, states and the way of a tuple through them."""

from __future__ import annotations

import pytest

from plans.tree import Step, inner_states, left_deep, mjoin, parse_plan, path, states
from trimtab.errors import InvalidInput

ABC = ("A", "B", "C")


def test_plans_render_as_the_papers_write_them() -> None:
    assert str(left_deep(ABC)) == "((A B) C)"
    assert str(mjoin(ABC)) == "(A B C)"


@pytest.mark.parametrize("text", ["((A B) C)", "(A B C)", "((B C) A)", "((A B) (C D))", "((A B C) D)"])
def test_a_plan_survives_its_text(text: str) -> None:
    streams = sorted(set(text) - set("() "))
    assert str(parse_plan(text, streams)) == text
    assert str(parse_plan(text[1:-1], streams)) == text


def test_shorthands() -> None:
    assert parse_plan("left-deep", ABC) == left_deep(ABC)
    assert parse_plan("mjoin", ABC) == mjoin(ABC)


@pytest.mark.parametrize("text", ["", "A", "((A B)", "(A)", "A B) C", "(A B) D", "(A A B C)", "()"])
def test_what_is_no_plan_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_plan(text, ABC)
    assert caught.value.field == "plan"
    assert caught.value.value == text


def test_every_state_comes_after_those_it_is_made_of() -> None:
    plan = parse_plan("(((A B) C) D)", "ABCD")
    assert states(plan) == [("A",), ("B",), ("A", "B"), ("C",), ("A", "B", "C"), ("D",)]
    assert [node.streams for node in inner_states(plan)] == [("A", "B"), ("A", "B", "C")]


def test_the_root_keeps_no_state_and_a_multiway_join_none_but_its_leaves() -> None:
    assert states(mjoin(ABC)) == [("A",), ("B",), ("C",)]
    assert path(mjoin(ABC), "B") == [Step(("A",), None), Step(("C",), None)]


def test_a_tuple_is_kept_at_every_join_it_passes_below_the_root() -> None:
    plan = left_deep(ABC)
    assert path(plan, "A") == [Step(("B",), ("A", "B")), Step(("C",), None)]
    assert path(plan, "C") == [Step(("A", "B"), None)]
