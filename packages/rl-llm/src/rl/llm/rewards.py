"""Rewards of data sets: answers of GSM8K and MATH, expressions of Countdown, instructions of IFEval.

An answer that is wrong and between ``<answer>`` and ``</answer>`` has the `format_reward` of the first three.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
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


def _after_thought(text: str) -> str:
    """Return what follows the last thought; nothing of a thought that was cut."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def _tag_content(text: str) -> str | None:
    """Return what the last ``<answer>`` holds after the last thought; None without one."""
    # By its ends, in the time of one pass: a policy may repeat a tag.
    before, closed, _ = _after_thought(text).rpartition("</answer>")
    _, opened, content = before.rpartition("<answer>")
    return content.partition("</answer>")[0].strip() if closed and opened else None


@final
class ExactParser:
    """Reward of 1 for the text under ``answer``, after a thought and without spaces around it, and 0 for any other."""

    reads = ("answer",)

    def __call__(self, record: Mapping[str, Any], text: str) -> float:
        return float(_after_thought(text).strip() == str(record["answer"]).strip())


class _AnswerParser(ABC):
    """Parser that compares what ``<answer>`` holds: 1 if it is right, `format_reward` if it is not, 0 without it."""

    def __init__(self, format_reward: float = 0.1) -> None:
        self.format_reward = as_number(format_reward, type(self).__name__, "format_reward")

    def __call__(self, record: Mapping[str, Any], text: str) -> float:
        answer = _tag_content(text)
        if answer is None:
            return 0.0
        return 1.0 if self._is_right(record, answer) else self.format_reward

    @abstractmethod
    def _is_right(self, record: Mapping[str, Any], answer: str) -> bool:
        """Return whether an answer is right."""


def _number(text: str) -> Fraction | None:
    text = re.sub(r"[$%\s]", "", text).rstrip(".")
    if len(text) > 256 or re.search(r"e[-+]?\d{4}", text, re.IGNORECASE):
        return None  # a fraction has all its digits: 1e999999999 would take hours
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")  # of thousands; "1,2" is a list
    text = re.sub(r"^(-?)\\frac\{(-?\d+)\}\{(\d+)\}$", r"\1\2/\3", text)
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


@final
class GSM8KRewardParser(_AnswerParser):
    """Reward for records of GSM8K, whose ``answer`` ends with ``#### NUMBER``.

    Example:
        >>> record = {"question": "...", "answer": "48 / 2 = 24 #### 1,024"}
        >>> parser = GSM8KRewardParser()
        >>> [parser(record, text) for text in ("<answer>1024</answer>", "<answer>24</answer>", "1024")]
        [1.0, 0.1, 0.0]
    """

    reads = ("answer",)

    def _is_right(self, record: Mapping[str, Any], answer: str) -> bool:
        found = _number(answer)
        return found is not None and found == _number(str(record["answer"]).rpartition("####")[2])


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


#: what `MATHRewardParser` replaces in formulas, in order.
_LAYOUT = (
    (r"\\(left|right|displaystyle|[,!;:]|\s)|\\?\$|\\?%|\^\{?\\circ\}?|~", ""),
    (r"(\S)\\(text|mbox|mathrm)\{\s[^{}]*\}.*$", r"\1"),  # a unit
    (r"\\(text|mbox|mathrm|textbf)\{([^{}]*)\}", r"\2"),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\s", ""),
    (r"^[A-Za-z]{1,2}(=|\\in)", ""),  # x = ...
    (r"\\sqrt(\w)", r"\\sqrt{\1}"),
    (r"\\frac(\w)(\w)", r"\\frac{\1}{\2}"),
    (r"\\frac(\w)\{", r"\\frac{\1}{"),
    (r"(\\frac\{[^{}]*\})(\w)", r"\1{\2}"),
    (r"^(-?\w+)/(\w+)$", r"\\frac{\1}{\2}"),
    (r"(?<!\d)\.(?=\d)", "0."),
)


def _plain_math(text: str) -> str:
    """Return a formula without layout and units, as Hendrycks et al. compare them."""
    for pattern, new in _LAYOUT:
        text = re.sub(pattern, new, text)
    return text.rstrip(".")


@final
class MATHRewardParser(_AnswerParser):
    r"""Reward for records of MATH, whose ``solution`` has the answer in ``\boxed{...}``.

    Formulas are equal if they are the same number, or the same text after the rules of Hendrycks et al., "Measuring
    mathematical problem solving with the MATH dataset", 2021: without spaces, layout, units, degrees and ``x =``, and
    with ``a/b`` and ``\frac12`` as ``\frac{a}{b}`` and ``\frac{1}{2}``.

    Example:
        >>> record = {"problem": "...", "solution": r"So it is $\boxed{\dfrac{1}{2}}$."}
        >>> MATHRewardParser()(record, "<answer>0.5</answer>")
        1.0
    """

    reads = ("solution",)

    def _is_right(self, record: Mapping[str, Any], answer: str) -> bool:
        found, expected = (_plain_math(_boxed(one)) for one in (answer, str(record["solution"])))
        number = _number(found)
        return found == expected or (number is not None and number == _number(expected))


@final
class CountdownRewardParser(_AnswerParser):
    """Reward for records of Countdown: an expression of ``nums``, each used once, whose value is ``target``.

    Example:
        >>> CountdownRewardParser()({"nums": [3, 4, 5], "target": 8}, "<answer>(5-3)*4</answer>")
        1.0
    """

    reads = ("nums", "target")

    def _is_right(self, record: Mapping[str, Any], answer: str) -> bool:
        return countdown_value(answer.partition("=")[0], record["nums"]) == record["target"]


def _count(text: str, pattern: str, flags: int = 0) -> int:
    return len(re.findall(pattern, text, flags))


def _has(count: int, k: Mapping[str, Any], number: str, relation: str = "relation") -> bool:
    """Return whether a count is "less than" the wanted number, or, with any other relation, at least that number."""
    return count < k[number] if k.get(relation) == "less than" else count >= k[number]


def _parts(text: str, pattern: str) -> list[str] | None:
    """Return the parts of a text, of which the first and the last may be empty; None if another one is."""
    parts = [one.strip() for one in re.split(pattern, text)]
    return None if "" in parts[1:-1] else [one for one in parts if one]


def _is_json(text: str) -> bool:
    try:
        json.loads(re.sub(r"^```(json)?|```$", "", text.strip(), flags=re.IGNORECASE))
    except (ValueError, RecursionError):
        return False
    return True


def _first_word(text: str, k: Mapping[str, Any]) -> bool:
    paragraphs = text.split("\n\n")
    if sum(bool(one.strip()) for one in paragraphs) != k["num_paragraphs"] or k["nth_paragraph"] > len(paragraphs):
        return False
    words = paragraphs[k["nth_paragraph"] - 1].split()
    return bool(words) and re.split(r"[.,?!'\"]", words[0].lstrip("'\""))[0].lower() == k["first_word"].lower()


def _postscript(text: str, k: Mapping[str, Any]) -> bool:
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    wanted: str = k["postscript_marker"]
    marker = known.get(wanted, re.escape(wanted))
    return re.search(marker, text, re.IGNORECASE) is not None


_FEW = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_I = re.IGNORECASE

_RULES: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "keywords:existence": lambda text, k: all(_count(text, one, _I) for one in k["keywords"]),
    "keywords:forbidden_words": lambda text, k: not any(_count(text, rf"\b{w}\b", _I) for w in k["forbidden_words"]),
    "keywords:frequency": lambda text, k: _has(_count(text, k["keyword"], _I), k, "frequency"),
    "keywords:letter_frequency": lambda text, k: _has(
        text.lower().count(k["letter"].lower()), k, "let_frequency", "let_relation"
    ),
    "length_constraints:number_words": lambda text, k: _has(_count(text, r"\w+"), k, "num_words"),
    "length_constraints:number_sentences": lambda text, k: _has(
        sum(bool(one.strip()) for one in re.split(r"[.!?]+(?:\s|$)", text)), k, "num_sentences"
    ),
    "length_constraints:number_paragraphs": lambda text, k: (
        len(_parts(text, r"\s?\*\*\*\s?") or ()) == k["num_paragraphs"]
    ),
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_format:number_bullet_lists": lambda text, k: (
        _count(text, r"^[^\S\n]*(?:\*[^*]|-).*$", re.MULTILINE) == k["num_bullets"]
    ),
    "detectable_format:number_highlighted_sections": lambda text, k: _has(
        _count(text, r"\*(?=[^\n*]*[^\s*])[^\n*]*\*"), k, "num_highlights"
    ),
    "detectable_format:multiple_sections": lambda text, k: _has(
        _count(text, rf"\s?{k['section_spliter']}\s?\d+\s?"), k, "num_sections"
    ),
    "detectable_format:title": lambda text, _: any(one.strip("<> ") for one in re.findall(r"<<[^\n]+>>", text)),
    "detectable_format:json_format": lambda text, _: _is_json(text),
    "detectable_format:constrained_response": lambda text, _: any(one in text for one in _FEW),
    "detectable_content:number_placeholders": lambda text, k: _has(_count(text, r"\[[^]\n]*]"), k, "num_placeholders"),
    "detectable_content:postscript": _postscript,
    "change_case:english_lowercase": lambda text, _: text.islower(),
    "change_case:english_capital": lambda text, _: text.isupper(),
    "change_case:capital_word_frequency": lambda text, k: _has(
        sum(one.isupper() for one in re.findall(r"[\w'-]+", text)), k, "capital_frequency", "capital_relation"
    ),
    "punctuation:no_comma": lambda text, _: "," not in text,
    "startend:end_checker": lambda text, k: text.strip().strip('"').lower().endswith(k["end_phrase"].strip().lower()),
    "startend:quotation": lambda text, _: len(text.strip()) > 1 and text.strip()[0] == '"' == text.strip()[-1],
    "combination:two_responses": lambda text, _: len({*(_parts(text, r"\*{6}") or ())}) == 2,
    "combination:repeat_prompt": lambda text, k: text.strip().lower().startswith(k["prompt_to_repeat"].strip().lower()),
}
_LANGUAGE = "language:response_language"


@final
class IfEvalScorer:
    """Reward for records of IFEval: the share of instructions that are followed.

    A record has ``instruction_id_list`` and ``kwargs``, a mapping for each. All 25 kinds of Zhou et al.,
    "Instruction-following evaluation for large language models", 2023, with the rules of its code; sentences end with
    a full stop, a question mark or an exclamation mark, where that code has a trained tokenizer.

    Args:
        all_or_nothing: Whether the reward is 1 if all are followed and 0 if not.
        loose: Whether an instruction may also be followed by the answer without asterisks, its first or its last line.
        detect_language: Function that returns the code of the language of a text, such as ``langdetect.detect``, for
            records that ask for a language.

    Example:
        >>> record = {"instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        ...           "kwargs": [{}, {"relation": "at least", "num_words": 5}]}
        >>> IfEvalScorer()(record, "Four words, a comma")
        0.0
        >>> IfEvalScorer()(record, "No comma here")
        0.5
    """

    reads = ("instruction_id_list", "kwargs")

    def __init__(
        self, *, all_or_nothing: bool = False, loose: bool = False, detect_language: Callable[[str], str] | None = None
    ) -> None:
        self.all_or_nothing, self.loose, self.detect_language = all_or_nothing, loose, detect_language

    def followed(self, record: Mapping[str, Any], text: str) -> list[bool]:
        """Return for each instruction whether it is followed.

        Raises:
            ArgumentError: If an instruction is unknown, or there is no `detect_language` for one.
        """
        names: Sequence[str] = record["instruction_id_list"]
        rules = {**_RULES, _LANGUAGE: self._is_language}
        unknown = [name for name in names if name not in rules]
        if unknown:
            raise ArgumentError(f"IfEvalScorer: instructions must be among {', '.join(rules)}, got {unknown[0]}")
        texts = [_after_thought(text)]
        if self.loose:
            lines = texts[0].split("\n")
            cut = [texts[0], *("\n".join(one).strip() for one in (lines[1:], lines[:-1], lines[1:-1]))]
            texts = [*cut, *(one.replace("*", "") for one in cut)]
        pairs = zip(names, record["kwargs"], strict=True)
        return [any(one.strip() and rules[name](one, kwargs or {}) for one in texts) for name, kwargs in pairs]

    def _is_language(self, text: str, k: Mapping[str, Any]) -> bool:
        if self.detect_language is None:
            raise ArgumentError(f"IfEvalScorer: {_LANGUAGE} needs detect_language=, such as langdetect.detect")
        return self.detect_language(text) == k["language"]

    def __call__(self, record: Mapping[str, Any], text: str) -> float:
        found = self.followed(record, text)
        return float(all(found)) if self.all_or_nothing else sum(found) / max(len(found), 1)
