"""Tasks that need no data: a problem, and the reward and reply to each answer."""

from __future__ import annotations

import ast
import operator
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from typing import Any, NamedTuple, final

from rl.core.arguments import as_integer, one_of
from rl.core.errors import ArgumentError

__all__ = [
    "TASKS",
    "ArithmeticTask",
    "CopyTask",
    "CountTask",
    "CountdownTask",
    "GuessTask",
    "Problem",
    "Reply",
    "SortTask",
    "Task",
    "countdown_value",
    "make_task",
]


@dataclass(frozen=True)
class Problem:
    """A problem of a task.

    Attributes:
        messages: Conversation before the first answer.
        answer: What the reward is computed from.
        solution: A right answer, for supervised training; empty if there is none.
    """

    messages: tuple[Mapping[str, Any], ...]
    answer: Any
    solution: str = ""


class Reply(NamedTuple):
    """What follows an answer.

    Attributes:
        reward: Reward of the answer.
        messages: Messages that follow; the episode ends if there is none.
    """

    reward: float
    messages: tuple[Mapping[str, Any], ...] = ()


class Task(ABC):
    """Source of problems and of the rewards of answers.

    A class of one's own defines `sample` and `reply`, and is used wherever a task is.

    Attributes:
        alphabet: Characters of problems and answers, for a tokenizer of characters.
        max_tokens: Number of tokens that an answer needs at most, in characters and the stop token.
        max_turns: Largest number of answers.
        rewards_truncated: Whether an answer that does not end within its tokens is rewarded; 0 if not.
    """

    alphabet: str = "0123456789"
    max_tokens: int = 16
    max_turns: int = 1
    rewards_truncated: bool = False

    @abstractmethod
    def sample(self, rng: random.Random) -> Problem:
        """Return a problem.

        Args:
            rng: Source of all randomness.
        """

    @abstractmethod
    def reply(self, problem: Problem, answers: Sequence[str]) -> Reply:
        """Return the reward of the last answer, and what follows.

        Args:
            problem: Problem.
            answers: Texts of all answers so far.
        """


def _user(text: str) -> tuple[Mapping[str, Any], ...]:
    return ({"role": "user", "content": text},)


def _agreement(answer: str, expected: str) -> float:
    """Return the share of positions that agree; the end of the text is one of them."""
    size = max(len(answer), len(expected)) + 1
    same = sum(a == b for a, b in zip(answer, expected, strict=False)) + (len(answer) == len(expected))
    return same / size


class _TextTask(Task):
    """Task with one right answer, whose reward is the share of its characters that are in their place."""

    rewards_truncated = True

    def reply(self, problem: Problem, answers: Sequence[str]) -> Reply:
        return Reply(_agreement(answers[-1], problem.answer))


@final
class SortTask(_TextTask):
    """Sort digits.

    Args:
        length: Number of digits.
        digits: Number of different digits, at most 10.

    Example:
        >>> task = SortTask()
        >>> problem = task.sample(random.Random(0))
        >>> problem.messages[0]["content"], problem.answer, task.reply(problem, [problem.answer]).reward
        ('3302', '0233', 1.0)
    """

    def __init__(self, length: int = 4, digits: int = 4) -> None:
        self.length = as_integer(length, "SortTask", "length", least=1)
        self.digits = as_integer(digits, "SortTask", "digits", least=2)
        if digits > len(self.alphabet):
            raise ArgumentError(f"SortTask: digits must be at most {len(self.alphabet)}, got {digits}")
        self.max_tokens = length + 1

    def sample(self, rng: random.Random) -> Problem:
        text = "".join(str(rng.randrange(self.digits)) for _ in range(self.length))
        answer = "".join(sorted(text))
        return Problem(_user(text), answer, answer)


@final
class CopyTask(_TextTask):
    """Repeat digits.

    Args:
        length: Number of digits.
    """

    def __init__(self, length: int = 4) -> None:
        self.length = as_integer(length, "CopyTask", "length", least=1)
        self.max_tokens = length + 1

    def sample(self, rng: random.Random) -> Problem:
        text = "".join(rng.choice("0123456789") for _ in range(self.length))
        return Problem(_user(text), text, text)


@final
class CountTask(_TextTask):
    """Count the ones among zeros and ones.

    Args:
        length: Largest number of digits, at most 9.
    """

    max_tokens = 2

    def __init__(self, length: int = 6) -> None:
        self.length = as_integer(length, "CountTask", "length", least=1)

    def sample(self, rng: random.Random) -> Problem:
        text = "".join(rng.choice("01") for _ in range(rng.randint(1, self.length)))
        return Problem(_user(text), str(text.count("1")), str(text.count("1")))


@final
class ArithmeticTask(_TextTask):
    """Add two numbers.

    Args:
        digits: Number of digits of each.
    """

    alphabet = "0123456789+"

    def __init__(self, digits: int = 1) -> None:
        self.digits = as_integer(digits, "ArithmeticTask", "digits", least=1)
        self.max_tokens = digits + 2

    def sample(self, rng: random.Random) -> Problem:
        a, b = (rng.randrange(10**self.digits) for _ in range(2))
        return Problem(_user(f"{a}+{b}"), str(a + b), str(a + b))


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def countdown_value(text: str, numbers: Sequence[int]) -> Fraction | None:
    """Return the value of an expression that uses each number exactly once; None if it is not one.

    Args:
        text: Expression with ``+ - * /`` and parentheses.
        numbers: Numbers that must be used.

    Example:
        >>> countdown_value("(5-3)*4", [3, 4, 5]), countdown_value("5+5", [5, 3])
        (Fraction(8, 1), None)
    """
    other = len(text) > 256 or not re.fullmatch(r"[\d+\-*/() ]+", text)
    if other or sorted(int(one) for one in re.findall(r"\d+", text)) != sorted(numbers):
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(node)


@final
class CountdownTask(Task):
    """Reach a target with numbers, each used once: 1 if reached, 0.1 for a valid expression, else 0.

    Args:
        count: Number of numbers.
        largest: Largest of them, at most 99.
        operators: Operators of the expression with which the target is made.

    Example:
        >>> task = CountdownTask(count=2)
        >>> problem = task.sample(random.Random(0))
        >>> problem.messages[0]["content"], problem.solution, task.reply(problem, [problem.solution]).reward
        ('7 7=14', '7+7', 1.0)
    """

    alphabet = "0123456789+-*/()= "

    def __init__(self, count: int = 3, largest: int = 9, operators: str = "+-*") -> None:
        self.count = as_integer(count, "CountdownTask", "count", least=2)
        self.largest = as_integer(largest, "CountdownTask", "largest", least=1)
        if not operators or not {*operators} <= {*"+-*/"}:
            raise ArgumentError(f"CountdownTask: operators must be of '+-*/', got {operators!r}")
        self.operators = operators
        self.max_tokens = count * (len(str(largest)) + 1)

    def sample(self, rng: random.Random) -> Problem:
        numbers = [rng.randint(1, self.largest) for _ in range(self.count)]
        solution = str(numbers[0])
        for one in numbers[1:]:
            solution += f"{rng.choice(self.operators)}{one}"
        target = countdown_value(solution, numbers)
        shown = sorted(numbers)
        return Problem(_user(f"{' '.join(map(str, shown))}={target}"), (tuple(shown), target), solution)

    def reply(self, problem: Problem, answers: Sequence[str]) -> Reply:
        numbers, target = problem.answer
        value = countdown_value(answers[-1], numbers)
        if value is None:
            return Reply(0.0)
        return Reply(1.0 if value == target else 0.1)


@final
class GuessTask(Task):
    """Guess a number in two turns: after a wrong first guess the reply tells whether the number is higher or lower.

    Args:
        largest: Largest number, at most 9.

    Example:
        >>> task = GuessTask(largest=3)
        >>> problem = Problem(({"role": "user", "content": "?"},), answer=2)
        >>> task.reply(problem, ["1"])
        Reply(reward=0.0, messages=({'role': 'user', 'content': '>'},))
        >>> task.reply(problem, ["1", "2"])
        Reply(reward=1.0, messages=())
    """

    alphabet = "0123456789?<>"
    max_tokens = 2
    max_turns = 2

    def __init__(self, largest: int = 3) -> None:
        self.largest = as_integer(largest, "GuessTask", "largest", least=1)

    def sample(self, rng: random.Random) -> Problem:
        answer = rng.randint(1, self.largest)
        return Problem(_user("?"), answer, str(answer))

    def reply(self, problem: Problem, answers: Sequence[str]) -> Reply:
        last = answers[-1]
        if last == str(problem.answer):
            return Reply(1.0)
        if len(answers) >= self.max_turns or not last.isdecimal() or len(last) > 99:
            return Reply(0.0)
        return Reply(0.0, _user(">" if problem.answer > int(last) else "<"))


TASKS: Mapping[str, type[Task]] = {
    "arithmetic": ArithmeticTask,
    "copy": CopyTask,
    "count": CountTask,
    "countdown": CountdownTask,
    "guess": GuessTask,
    "sort": SortTask,
}
"""Tasks by name."""


def make_task(name: str, **options: Any) -> Task:
    """Return a task by name.

    Args:
        name: Name in `TASKS`, or ``module:Class`` of a task of one's own.
        options: Arguments of the task.

    Raises:
        ArgumentError: If there is no such task, or it has no such argument.

    Example:
        >>> make_task("sort", length=3).max_tokens
        4
    """
    module, colon, attribute = name.partition(":")
    if colon:
        try:
            kind: Any = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ArgumentError(f"make_task: {name!r} cannot be imported ({error})") from error
        if not isinstance(kind, type) or not issubclass(kind, Task):
            raise ArgumentError(f"make_task: {name!r} must be a subclass of Task, got {kind!r:.80}")
    else:
        kind = TASKS[one_of(name, "make_task", "name", tuple(TASKS))]
    try:
        return kind(**options)
    except TypeError as error:
        raise ArgumentError(f"make_task: options must be arguments of {name}, got {options} ({error})") from error
