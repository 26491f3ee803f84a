"""Environments of dialogues: a task as resets and steps on TensorDict, and tasks over records of a data set."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase, lazy_stack

from rl.core.arguments import as_integer, one_of
from rl.core.errors import ArgumentError, ContractError
from rl.core.keys import DONE, NEXT, REWARD, TERMINATED, TRUNCATED, NestedKey
from rl.core.specs import Binary, Composite, NonTensor, Unbounded
from rl.llm._keys import ATTENTION, TOKENS, TRAINED
from rl.llm.chat import History
from rl.llm.collectors import Dialogue
from rl.llm.rewards import (
    CountdownRewardParser,
    ExactParser,
    GSM8KRewardParser,
    IfEvalScorer,
    MATHRewardParser,
    RewardParser,
)
from rl.llm.rollouts import Rollout, Segment, padded
from rl.llm.tasks import Problem, Reply, Task
from rl.llm.templates import ChatTemplate

__all__ = [
    "ChatEnv",
    "CountdownEnv",
    "DatasetChatEnv",
    "DatasetTask",
    "GSM8KEnv",
    "IFEvalEnv",
    "LLMEnv",
    "MATHEnv",
    "read_records",
]

Records = Sequence[Mapping[str, Any]]


def read_records(source: str | Path | Records) -> list[Mapping[str, Any]]:
    """Return the records of a file: a JSON object a line, or a list of objects.

    Args:
        source: File that was downloaded before; or records, which are returned.

    Raises:
        ArgumentError: If the file is absent or not JSON, or there is no record.
    """
    if not isinstance(source, (str, Path)):
        found = list(source)
    elif Path(source).is_file():
        try:
            text = Path(source).read_text(encoding="utf-8-sig")
            lines = [text] if text.lstrip().startswith("[") else text.split("\n")  # other ends of lines may be in texts
            read = [json.loads(one) for one in lines if one.strip()]
        except (ValueError, RecursionError) as error:  # of JSON, or bytes that are no text
            got = getattr(error, "doc", f"{error}")
            raise ArgumentError(f"read_records: {source} must have a JSON object a line, got {got!r:.60}") from error
        found = read[0] if text.lstrip().startswith("[") else read
    else:
        raise ArgumentError(f"read_records: there is no file {source}. Download the data set, and pass its path")
    if not found:
        raise ArgumentError("read_records: at least one record is needed, got none")
    return found


class DatasetTask(Task):
    """Task over records: a record becomes a conversation, and a parser rewards the answer.

    Args:
        records: File or records, as for `read_records`.
        prompt: Function that returns the text of the user for a record, or messages; or the name of its entry.
        reward: Parser that rewards the answer; records must have the entries that it names as `reads`, if it does.
        system: Text of a system message before; none if empty.
        max_tokens: Largest number of tokens of an answer.

    Raises:
        ArgumentError: If there are no records, or one lacks the entry of the prompt or of the reward, or its prompt is
            neither a text nor messages.

    Example:
        >>> task = DatasetTask([{"q": "1+1?", "answer": "#### 2"}], "q", GSM8KRewardParser())
        >>> problem = task.sample(random.Random(0))
        >>> problem.messages, task.reply(problem, ["<answer>2</answer>"]).reward
        (({'role': 'user', 'content': '1+1?'},), 1.0)
    """

    def __init__(
        self,
        records: str | Path | Records,
        prompt: str | Callable[[Mapping[str, Any]], str],
        reward: RewardParser,
        *,
        system: str = "",
        max_tokens: int = 512,
    ) -> None:
        self.records, self.prompt, self.reward, self.system = read_records(records), prompt, reward, system
        needed = [*([prompt] if isinstance(prompt, str) else []), *getattr(reward, "reads", ())]
        for number, record in enumerate(self.records, start=1):
            missing = [name for name in needed if not isinstance(record, Mapping) or name not in record]
            if missing or not _is_prompt(self._prompt_of(record)):
                wanted = f"{missing[0]!r}, an entry of prompt or reward" if missing else "a text or messages as prompt"
                raise ArgumentError(f"DatasetTask: record {number} must have {wanted}, got {record!r:.100}")
        self.max_tokens = as_integer(max_tokens, "DatasetTask", "max_tokens", least=1)
        self.alphabet = "".join(map(chr, range(32, 127))) + "\n"

    def problem(self, record: Mapping[str, Any]) -> Problem:
        """Return a record as a problem."""
        found = self._prompt_of(record)
        system = ({"role": "system", "content": self.system},) if self.system else ()
        messages = ({"role": "user", "content": found},) if isinstance(found, str) else found
        return Problem((*system, *messages), record)

    def _prompt_of(self, record: Mapping[str, Any]) -> Any:
        return record[self.prompt] if isinstance(self.prompt, str) else self.prompt(record)

    def sample(self, rng: random.Random) -> Problem:
        return self.problem(self.records[rng.randrange(len(self.records))])

    def reply(self, problem: Problem, answers: Sequence[str]) -> Reply:
        return Reply(self.reward(problem.answer, answers[-1]))


def _is_prompt(found: Any) -> bool:
    return isinstance(found, str) or (bool(found) and is_messages(found))


def is_messages(found: Any) -> bool:
    """Return whether it is a list of messages, each with a text or calls of tools."""
    return isinstance(found, list) and all(
        isinstance(one, Mapping) and "role" in one and (isinstance(one.get("content"), str) or "tool_calls" in one)
        for one in found
    )


class ChatEnv:
    """Environment of dialogues: a reset writes prompts, a step reads responses.

    It has the methods of `rl.core.interfaces.Env`, with one dialogue in each row of its batch.

    | input_mode | a reset writes, and a step under ``next`` | a step reads |
    |---|---|---|
    | "history" | ``("history", "prompt")`` | ``("history", "response")`` |
    | "text" | ``("text", "prompt")`` | ``("text", "response")`` |
    | "tokens" | ``("tokens", "prompt")``, ``("masks", "all_attention_mask")`` | the entries of `rl.llm.padded` |

    A step writes ``reward``, ``done``, ``terminated`` and ``truncated`` ``[B, 1]`` under ``next``. An episode is
    terminated by its task, and truncated by a response that was cut, or after the last turn of the task. With tokens,
    what was sampled is never encoded again. To collect batches for training use `LLMCollector`, which does the same
    without TensorDict in between.

    With texts, or with tokens and `max_total`, which gives prompts a fixed length, it has the specs that
    `TransformedEnv` of rl-envs needs, and with texts those of `Collector`, whose policy must write entries of the same
    shape in each step: texts alone, or tokens of one number. Tokens have no stop strings: a response is complete if it
    ends with a stop token.

    Args:
        task: Source of problems and rewards.
        template: Template that encodes them; None for histories.
        input_mode: What prompts and responses are.
        batch_size: Number of dialogues.
        seed: Seed of the problems.
        max_total: Number of tokens of a dialogue from which it is truncated; no bound if None.

    Raises:
        ArgumentError: If the mode is unknown, or a template is needed and missing.

    Example:
        >>> from rl.llm import SortTask
        >>> env = ChatEnv(SortTask(length=2), batch_size=1)
        >>> td = env.reset()
        >>> digits = td.get(("history", "prompt"))[0].messages()[0]["content"]
        >>> td["history", "response"] = lazy_stack([History.from_chats(
        ...     [{"role": "assistant", "content": "".join(sorted(digits))}])])
        >>> env.step(td)["next", "reward"]
        tensor([[1.]])
    """

    def __init__(
        self,
        task: Task,
        template: ChatTemplate | None = None,
        *,
        input_mode: str = "history",
        batch_size: int = 1,
        seed: int = 0,
        max_total: int | None = None,
    ) -> None:
        owner = type(self).__name__
        self.input_mode = one_of(input_mode, owner, "input_mode", ("history", "text", "tokens"))
        if template is None and (input_mode != "history" or max_total is not None):
            needs = "max_total" if input_mode == "history" else input_mode
            raise ArgumentError(f"{owner}: {needs} need a template, got none. Pass a ChatTemplate")
        self.max_total = None if max_total is None else as_integer(max_total, owner, "max_total", least=1)
        self.task, self.template = task, template
        self.batch_size = torch.Size([as_integer(batch_size, owner, "batch_size", least=1)])
        self.rng = random.Random(seed)
        self._dialogues: list[Dialogue] = []

    def _spec(self, leaves: dict[NestedKey, Any]) -> Composite:
        return Composite(leaves, shape=self.batch_size)

    @property
    def observation_spec(self) -> Composite:
        """Prompts; empty for tokens without `max_total`, whose number is not known."""
        if self.input_mode != "tokens":
            return self._spec({(self.input_mode, "prompt"): NonTensor(shape=self.batch_size)})
        if self.max_total is None:
            return self._spec({})
        shape = (*self.batch_size, self.max_total)
        tokens, mask = Unbounded(shape=shape, dtype=torch.int64), Binary(shape=shape, dtype=torch.bool)
        return self._spec({("tokens", "prompt"): tokens, ATTENTION: mask})

    @property
    def full_action_spec(self) -> Composite:
        """Responses; empty for tokens, which are rows of `padded`."""
        key = (self.input_mode, "response")
        return self._spec({} if self.input_mode == "tokens" else {key: NonTensor(shape=self.batch_size)})

    @property
    def full_reward_spec(self) -> Composite:
        return self._spec({REWARD: Unbounded(shape=(*self.batch_size, 1))})

    @property
    def full_done_spec(self) -> Composite:
        return self._spec(
            {name: Binary(shape=(*self.batch_size, 1), dtype=torch.bool) for name in (DONE, TERMINATED, TRUNCATED)}
        )

    def set_seed(self, seed: int) -> int:
        """Make the problems repeatable; return the seed for the next environment."""
        self.rng = random.Random(seed)
        return seed + 1

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Start dialogues: all, or those marked in ``_reset`` (bool ``[B, 1]``).

        Args:
            tensordict: Batch with ``_reset``; None for all.
        """
        marked: Any = None if tensordict is None else tensordict.get("_reset", None)
        fresh = [True] * self.batch_size[0]
        if marked is not None and self._dialogues:
            fresh = marked.flatten().tolist()
        self._dialogues = [self._start() if new else self._dialogues[i] for i, new in enumerate(fresh)]
        out = self._prompts()
        flags = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        return out.update({DONE: flags, TERMINATED: flags.clone(), TRUNCATED: flags.clone()})

    def _start(self) -> Dialogue:
        problem = self.task.sample(self.rng)
        messages = list(problem.messages)
        return Dialogue(
            problem, messages, [] if self.template is None else self.template.prompt(messages).tokens.tolist()
        )

    def _prompts(self) -> TensorDict:
        out, tokens = TensorDict({}, batch_size=self.batch_size), [one.tokens for one in self._dialogues]
        if self.input_mode == "history":
            histories: Any = lazy_stack([History.from_chats(one.messages) for one in self._dialogues])
            return out.set(("history", "prompt"), histories)
        template: Any = self.template
        if self.input_mode == "text":
            return out.set(("text", "prompt"), NonTensorStack(*map(template.tokenizer.decode, tokens)))
        rows = padded([Rollout.of([Segment.given(one, role="user")]) for one in tokens])
        width = (self.max_total or rows[TOKENS].shape[1]) - rows[TOKENS].shape[1]  # negative: the row is truncated
        ids, mask = (torch.nn.functional.pad(rows[key], (0, width)) for key in (TOKENS, ATTENTION))
        return out.set(("tokens", "prompt"), ids).set(ATTENTION, mask)

    def _responses(self, td: TensorDictBase) -> tuple[list[str], list[bool]]:
        """Return the text of each response, and whether it was complete; keep the tokens so far."""
        count, key = self.batch_size[0], (self.input_mode, "response")
        if self.input_mode == "tokens":
            template: Any = self.template
            tokens, trained = td.get(TOKENS, None), td.get(TRAINED, None)
            if tokens is None or trained is None:
                raise ContractError(f"{type(self).__name__} reads {TOKENS} and {TRAINED}, which the batch lacks")
            found = [row[mask].tolist() for row, mask in zip(tokens.unbind(), trained.unbind(), strict=True)]
            texts = [template.tokenizer.decode([t for t in row if t not in template.stop_tokens]) for row in found]
            for one, row in zip(self._dialogues, found, strict=True):
                one.tokens += row
            return texts, [bool(row) and row[-1] in template.stop_tokens for row in found]
        if td.get(key, None) is None:
            raise ContractError(f"{type(self).__name__} reads {key}, which the batch lacks")
        if self.input_mode == "text":
            return list(td[key]), [True] * count
        ones: list[Any] = [td.get(key)[i] for i in range(count)]
        return [one[-1].content for one in ones], [bool(one[-1].is_complete) for one in ones]

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read responses, write rewards, flags and the next prompts under ``next``, and return the batch, ``[B]``.

        Raises:
            ContractError: If the responses are absent.
        """
        if not self._dialogues:
            raise ContractError(f"{type(self).__name__}: step comes after reset")
        rows = zip(self._dialogues, *self._responses(tensordict), strict=True)
        outcomes = [self._respond(one, text, complete=complete) for one, text, complete in rows]
        reward, terminated, truncated = (torch.tensor(column).unsqueeze(-1) for column in zip(*outcomes, strict=True))
        flags = {DONE: terminated | truncated, TERMINATED: terminated, TRUNCATED: truncated}
        return tensordict.set(NEXT, self._prompts().update({REWARD: reward, **flags}))

    def _respond(self, one: Dialogue, text: str, *, complete: bool) -> tuple[float, bool, bool]:
        """Add a response and what follows it; return its reward, and whether it terminates or truncates."""
        reward, new = one.answer(self.task, text, complete=complete)
        if one.done:
            return reward, one.terminated, one.truncated
        if self.template is not None:
            if self.input_mode != "tokens":  # tokens that were sampled are not encoded again
                one.tokens = self.template.encode(one.messages)[0]
            one.tokens = [*one.tokens, *self.template.continuation(one.messages, new).tokens.tolist()]
        one.messages += new
        return reward, False, self.max_total is not None and len(one.tokens) >= self.max_total

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Return the step, and the root of the following one, in which finished dialogues have been reset."""
        stepped = self.step(tensordict)
        after: Any = stepped[NEXT]
        if not bool(after[DONE].any()):
            return stepped, after.exclude(REWARD)
        return stepped, self.reset(TensorDict({"_reset": after[DONE]}, batch_size=self.batch_size))


class LLMEnv(ChatEnv):
    """`ChatEnv` over tokens, with its other arguments."""

    def __init__(self, task: Task, template: ChatTemplate, **options: Any) -> None:
        options.setdefault("input_mode", "tokens")
        super().__init__(task, template, **options)


class DatasetChatEnv(ChatEnv):
    """`ChatEnv` over the records of a data set.

    Arguments are those of `DatasetTask` and `ChatEnv`.
    """

    def __init__(
        self,
        records: str | Path | Records,
        prompt: str | Callable[[Mapping[str, Any]], str],
        reward: RewardParser,
        template: ChatTemplate | None = None,
        *,
        system: str = "",
        **options: Any,
    ) -> None:
        super().__init__(DatasetTask(records, prompt, reward, system=system), template, **options)


def _countdown(record: Mapping[str, Any]) -> str:
    numbers = ", ".join(map(str, record["nums"]))
    return f"Use each of the numbers {numbers} once, with + - * /, to make {record['target']}."


class _RecordEnv(DatasetChatEnv):
    """`DatasetChatEnv` of one data set: a subclass sets its prompt, its parser and its system message."""

    prompt: ClassVar[Any]
    parser: ClassVar[type[RewardParser]]
    system: ClassVar[str] = "Think first, then give the final answer between <answer> and </answer>."

    def __init__(self, records: str | Path | Records, template: ChatTemplate | None = None, **options: Any) -> None:
        super().__init__(records, self.prompt, self.parser(), template, system=self.system, **options)


@final
class GSM8KEnv(_RecordEnv):
    """Arithmetic word problems: records with ``question`` and ``answer`` (Cobbe et al., 2021).

    Arguments are those of `DatasetChatEnv` without `prompt`, `reward` and `system`.

    Example:
        >>> env = GSM8KEnv([{"question": "1 + 1?", "answer": "#### 2"}])
        >>> env.reset().get(("history", "prompt"))[0].messages()[1]
        {'role': 'user', 'content': '1 + 1?'}
    """

    prompt, parser = "question", GSM8KRewardParser


@final
class MATHEnv(_RecordEnv):
    """Competition mathematics: records with ``problem`` and ``solution`` (Hendrycks et al., 2021).

    Arguments are those of `GSM8KEnv`.
    """

    prompt, parser = "problem", MATHRewardParser


@final
class CountdownEnv(_RecordEnv):
    """Numbers that reach a target: records with ``nums`` and ``target``; arguments as for `GSM8KEnv`."""

    prompt, parser = staticmethod(_countdown), CountdownRewardParser


@final
class _ExactEnv(_RecordEnv):
    prompt, parser, system = "prompt", ExactParser, ""


def make_record_task(file: str, reward: str) -> DatasetTask:
    """Return the task of a file of records whose reward has a name, as for ``rl train grpo --dataset``."""
    kinds = {"exact": _ExactEnv, "gsm8k": GSM8KEnv, "math": MATHEnv, "countdown": CountdownEnv, "ifeval": IFEvalEnv}
    kind = kinds[one_of(reward, "make_record_task", "reward", tuple(kinds))]
    return DatasetTask(file, kind.prompt, kind.parser(), system=kind.system)


@final
class IFEvalEnv(DatasetChatEnv):
    """Instructions: records with ``prompt``, ``instruction_id_list`` and ``kwargs`` (Zhou et al., 2023).

    Args:
        scorer: Scorer of the answers, such as ``IfEvalScorer(detect_language=langdetect.detect)``.

    The others are those of `GSM8KEnv`.
    """

    prompt, parser, system = "prompt", IfEvalScorer, ""

    def __init__(
        self,
        records: str | Path | Records,
        template: ChatTemplate | None = None,
        *,
        scorer: IfEvalScorer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(records, self.prompt, IfEvalScorer() if scorer is None else scorer, template, **options)
