"""Rewards of data sets: answers of GSM8K and MATH, expressions of Countdown, instructions of IFEval."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol, final

from rl.core.arguments import as_number
from rl.core.errors import ArgumentError
from rl.llm.tasks import countdown_value

__all__ = ["CountdownRewardParser", "GSM8KRewardParser", "IfEvalScorer", "MATHRewardParser", "RewardParser"]


class RewardParser(Protocol):
    """Object that rewards the text of an answer to a record."""

    def __call__(self, record: Mapping[str, Any], text: str) -> float:
        """Return the reward.

        Args:
            record: Record of the data set.
            text: Text of the answer.
        """
        ...


def _tagged(text: str) -> str | None:
    """Return what the last ``<answer>`` holds after the last thought; None without one."""
    found = re.findall(r"<answer>(.*?)</answer>", text.rpartition("</think>")[2], re.DOTALL)
    return found[-1].strip() if found else None


class _AnswerParser:
    """Parser that compares what ``<answer>`` holds: 1 if it is right, `format_reward` if it is not, 0 without it.

    Args:
        format_reward: Reward of a wrong answer in the right form.
    """

    def __init__(self, format_reward: float = 0.1) -> None:
        self.format_reward = as_number(format_reward, type(self).__name__, "format_reward")

    def __call__(self, record: Mapping[str, Any], text: str) -> float:
        """Return the reward.

        Args:
            record: Record of the data set.
            text: Text of the answer.
        """
        answer = _tagged(text)
        if answer is None:
            return 0.0
        return 1.0 if self._is_right(record, answer) else self.format_reward

    def _is_right(self, record: Mapping[str, Any], answer: str) -> bool:
        raise NotImplementedError


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(re.sub(r"[,$%\s]", "", text).rstrip("."))
    except (ValueError, ZeroDivisionError):
        return None


@final
class GSM8KRewardParser(_AnswerParser):
    """Reward for records of GSM8K, whose ``answer`` ends with ``#### NUMBER``.

    Args:
        format_reward: Reward of a wrong answer in the right form.

    Example:
        >>> record = {"question": "...", "answer": "48 / 2 = 24 #### 1,024"}
        >>> parser = GSM8KRewardParser()
        >>> [parser(record, text) for text in ("<answer>1024</answer>", "<answer>24</answer>", "1024")]
        [1.0, 0.1, 0.0]
    """

    def _is_right(self, record: Mapping[str, Any], answer: str) -> bool:
        found = _number(answer)
        return found is not None and found == _number(record["answer"].rpartition("####")[2])


def _boxed(text: str) -> str:
    r"""Return what the last ``\boxed{...}`` holds, with nested braces; the text without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return text
    depth, begin = 0, start + len("\\boxed{")
    for i in range(begin, len(text)):
        if text[i] == "}" and depth == 0:
            return text[begin:i]
        depth += {"{": 1, "}": -1}.get(text[i], 0)
    return text[begin:]


def _plain_math(text: str) -> str:
    """Return a formula without what has no meaning."""
    text = re.sub(r"\\(left|right|displaystyle|,|!|;|\s)", "", text.strip().strip("$"))
    text = re.sub(r"\\text\{(.*?)\}", r"\1", text.replace("dfrac", "frac").replace("tfrac", "frac"))
    return re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", text).replace(" ", "").rstrip(".")


@final
class MATHRewardParser(_AnswerParser):
    r"""Reward for records of MATH, whose ``solution`` has the answer in ``\boxed{...}``.

    Formulas are equal if they are the same text without spaces and signs of layout, or the same number.

    Args:
        format_reward: Reward of a wrong answer in the right form.

    Example:
        >>> record = {"problem": "...", "solution": r"So it is $\boxed{\dfrac{1}{2}}$."}
        >>> MATHRewardParser()(record, "<answer>0.5</answer>")
        1.0
    """

    def _is_right(self, record: Mapping[str, Any], answer: str) -> bool:
        found, expected = (_plain_math(_boxed(one)) for one in (answer, record["solution"]))
        number = _number(found)
        return found == expected or (number is not None and number == _number(expected))


@final
class CountdownRewardParser(_AnswerParser):
    """Reward for records of Countdown: an expression of ``nums``, each used once, whose value is ``target``.

    Args:
        format_reward: Reward of a wrong answer in the right form.

    Example:
        >>> CountdownRewardParser()({"nums": [3, 4, 5], "target": 8}, "<answer>(5-3)*4</answer>")
        1.0
    """

    def _is_right(self, record: Mapping[str, Any], answer: str) -> bool:
        return countdown_value(answer.partition("=")[0], record["nums"]) == record["target"]


def _words(text: str) -> int:
    return len(re.findall(r"\w+", text))


def _compare(value: int, kwargs: Mapping[str, Any], number: str) -> bool:
    relation, wanted = kwargs.get("relation", "at least"), kwargs[number]
    return value < wanted if relation == "less than" else value >= wanted


def _sentences(text: str) -> int:
    return len([one for one in re.split(r"[.!?]+(?:\s|$)", text) if one.strip()])


def _is_json(text: str) -> bool:
    try:
        json.loads(text.strip().removeprefix("```json").removeprefix("```").removesuffix("```"))
    except ValueError:
        return False
    return True


def _has(word: str, text: str) -> int:
    return len(re.findall(rf"\b{re.escape(word)}\b", text, re.IGNORECASE))


_RULES: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "keywords:existence": lambda text, k: all(_has(one, text) for one in k["keywords"]),
    "keywords:forbidden_words": lambda text, k: not any(_has(one, text) for one in k["forbidden_words"]),
    "keywords:frequency": lambda text, k: _compare(_has(k["keyword"], text), k, "frequency"),
    "keywords:letter_frequency": lambda text, k: _compare(
        text.lower().count(k["letter"].lower()), {**k, "relation": k.get("let_relation", "at least")}, "let_frequency"
    ),
    "length_constraints:number_words": lambda text, k: _compare(_words(text), k, "num_words"),
    "length_constraints:number_sentences": lambda text, k: _compare(_sentences(text), k, "num_sentences"),
    "length_constraints:number_paragraphs": lambda text, k: (
        len([one for one in re.split(r"\s?\*\*\*\s?", text) if one.strip()]) == k["num_paragraphs"]
    ),
    "detectable_format:number_bullet_lists": lambda text, k: (
        len(re.findall(r"^\s*[*-]\s+\S", text, re.MULTILINE)) == k["num_bullets"]
    ),
    "detectable_format:number_highlighted_sections": lambda text, k: (
        len(re.findall(r"\*[^\n*]+\*", text)) >= k["num_highlights"]
    ),
    "detectable_format:title": lambda text, _: bool(re.search(r"<<[^\n]+>>", text)),
    "detectable_format:json_format": lambda text, _: _is_json(text),
    "detectable_format:constrained_response": lambda text, _: any(
        one in text for one in ("My answer is yes.", "My answer is no.", "My answer is maybe.")
    ),
    "detectable_content:number_placeholders": lambda text, k: (
        len(re.findall(r"\[.*?\]", text)) >= k["num_placeholders"]
    ),
    "detectable_content:postscript": lambda text, k: (
        re.search(rf"^\s*{re.escape(k['postscript_marker'])}", text, re.MULTILINE | re.IGNORECASE) is not None
    ),
    "change_case:english_lowercase": lambda text, _: text == text.lower(),
    "change_case:english_capital": lambda text, _: text == text.upper(),
    "change_case:capital_word_frequency": lambda text, k: _compare(
        len(re.findall(r"\b[A-Z]{2,}\b", text)),
        {**k, "relation": k.get("capital_relation", "at least")},
        "capital_frequency",
    ),
    "punctuation:no_comma": lambda text, _: "," not in text,
    "startend:end_checker": lambda text, k: text.strip().strip('"').lower().endswith(k["end_phrase"].strip().lower()),
    "startend:quotation": lambda text, _: len(text.strip()) > 1 and text.strip()[0] == '"' == text.strip()[-1],
    "combination:two_responses": lambda text, _: len([one for one in text.split("******") if one.strip()]) == 2,
    "combination:repeat_prompt": lambda text, k: text.strip().lower().startswith(k["prompt_to_repeat"].strip().lower()),
}


@final
class IfEvalScorer:
    """Reward for records of IFEval: the share of instructions that are followed.

    A record has ``instruction_id_list`` and ``kwargs``, a mapping for each. Of the 25 kinds of Zhou et al.,
    "Instruction-following evaluation for large language models", 2023, those that need a detector of languages, and the
    first words of paragraphs, are not there.

    Args:
        all_or_nothing: Whether the reward is 1 if all are followed and 0 if not.

    Example:
        >>> record = {"instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        ...           "kwargs": [{}, {"relation": "at least", "num_words": 5}]}
        >>> IfEvalScorer()(record, "Four words, a comma")
        0.0
        >>> IfEvalScorer()(record, "No comma here")
        0.5
    """

    def __init__(self, *, all_or_nothing: bool = False) -> None:
        self.all_or_nothing = all_or_nothing

    def followed(self, record: Mapping[str, Any], text: str) -> list[bool]:
        """Return for each instruction whether it is followed.

        Raises:
            ArgumentError: If an instruction is unknown.
        """
        names: Sequence[str] = record["instruction_id_list"]
        unknown = [name for name in names if name not in _RULES]
        if unknown:
            raise ArgumentError(f"IfEvalScorer: instructions must be among {', '.join(_RULES)}, got {unknown[0]}")
        answer = text.rpartition("</think>")[2]
        pairs = zip(names, record["kwargs"], strict=True)
        return [bool(answer.strip()) and _RULES[name](answer, kwargs or {}) for name, kwargs in pairs]

    def __call__(self, record: Mapping[str, Any], text: str) -> float:
        """Return the reward.

        Args:
            record: Record of the data set.
            text: Text of the answer.
        """
        found = self.followed(record, text)
        return float(all(found)) if self.all_or_nothing else sum(found) / len(found)
