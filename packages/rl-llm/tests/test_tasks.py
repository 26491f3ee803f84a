"""Rewards and replies of the native tasks."""

import random
from fractions import Fraction

import pytest

from rl.llm import TASKS, CopyTask, Problem, countdown_value, make_task


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_solution_has_the_reward_one_and_fits_the_tokens(name):
    task, rng = make_task(name), random.Random(1)
    for _ in range(50):
        problem = task.sample(rng)
        reply = task.reply(problem, [problem.solution])
        assert (reply.reward, reply.messages) == (1.0, ())
        assert len(problem.solution) + 1 <= task.max_tokens
        assert {*problem.solution, *problem.messages[0]["content"]} <= {*task.alphabet}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_problems_are_those_of_the_seed(name):
    task = make_task(name)
    assert [task.sample(random.Random(4)) for _ in range(3)] == [task.sample(random.Random(4)) for _ in range(3)]


@pytest.mark.parametrize(
    ("answer", "reward"), [("0123", 1.0), ("0122", 0.8), ("012", 0.6), ("", 0.0), ("01231", 4 / 6), ("3210", 0.2)]
)
def test_a_text_is_rewarded_by_characters_in_their_place(answer, reward):
    assert make_task("sort").reply(Problem((), "0123"), [answer]).reward == pytest.approx(reward)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(5-3)*4", 8),
        ("5 - 3*4", -7),
        ("3/4*5", Fraction(15, 4)),
        ("5-3", None),  # a number is left out
        ("5-3*4+4", None),
        ("5-3*4)", None),
        ("5/(4-4)*3", None),
        ("5**3-4", None),
        ("5//3*4", None),
        ("__import__('os')", None),
        ("-5+3+4", None),
    ],
)
def test_the_value_of_an_expression_over_three_numbers(text, value):
    assert countdown_value(text, [3, 4, 5]) == value


def test_division_by_zero_has_no_value():
    assert countdown_value("5/(4-4)", [4, 4, 5]) is None


def test_countdown_rewards_the_form_a_little():
    task, problem = make_task("countdown"), Problem((), ((3, 4, 5), Fraction(8)))
    assert [task.reply(problem, [one]).reward for one in ("(5-3)*4", "5+3+4", "5+3", "")] == [1.0, 0.1, 0.0, 0.0]


def test_a_wrong_first_guess_gets_a_hint():
    task, problem = make_task("guess", largest=5), Problem((), 3)
    assert task.reply(problem, ["4"]).messages == ({"role": "user", "content": "<"},)
    assert task.reply(problem, ["4", "2"]) == (0.0, ())
    assert task.reply(problem, ["x"]) == (0.0, ())


def test_unknown_tasks_and_options_are_refused():
    with pytest.raises(ValueError, match="make_task: name"):
        make_task("sorting")
    with pytest.raises(ValueError, match="must be arguments of sort"):
        make_task("sort", size=3)
    with pytest.raises(ValueError, match="cannot be imported"):
        make_task("no_such_module:Reverse")
    with pytest.raises(ValueError, match=r"subclass of Task, got .*Fraction"):
        make_task("fractions:Fraction")


def test_a_task_of_ones_own_is_named_by_its_module():
    assert isinstance(make_task("rl.llm.tasks:CopyTask", length=2), CopyTask)


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("answer", ["", "9" * 10_000, "\u0661", "1e999999999", "(" * 10_000, "\0", "-1", "1/0"])
def test_whatever_is_answered_has_a_reward(name, answer):
    task = make_task(name)
    reply = task.reply(task.sample(random.Random(0)), [answer])
    assert 0 <= reply.reward <= 1
