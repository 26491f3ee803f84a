"""Collection of groups of responses: complete dialogues, partial rollouts, and a thread with a bound on staleness."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, final

import torch
from tensordict import TensorDict
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import ArgumentError, RLError
from rl.core.keys import DONE, NEXT, REWARD, TERMINATED, TRUNCATED
from rl.llm._keys import ATTENTION, GROUP, LOG_PROBS, TOKENS, TRAINED, VERSION
from rl.llm.engines import Completion, Engine, Sampling
from rl.llm.rollouts import Rollout, Segment
from rl.llm.tasks import Problem, Reply, Task
from rl.llm.templates import ChatTemplate

__all__ = ["AsyncLLMCollector", "Dialogue", "Group", "LLMCollector", "batch_of"]


@dataclass
class Dialogue:
    """A problem, the tokens so far, and what became of it.

    Attributes:
        problem: Problem.
        messages: Conversation so far.
        tokens: Tokens so far.
        log_probs: Log-probability of each token when it was sampled, nats; 0 for tokens that were given.
        versions: Version of the policy that sampled each token; -1 for tokens that were given.
        roles: Role of each token.
        answers: Texts of the finished answers.
        turns: Start and end of the tokens of each finished answer, and its reward.
        reward: Sum of the rewards.
        terminated: Whether the task ended it.
        truncated: Whether an answer, the turns or the tokens were cut.
    """

    problem: Problem
    messages: list[Mapping[str, Any]]
    tokens: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    roles: list[str] = field(default_factory=list[str])
    answers: list[str] = field(default_factory=list[str])
    turns: list[tuple[int, int, float]] = field(default_factory=list[tuple[int, int, float]])
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    answer_start: int = 0

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def rollout(self) -> Rollout:
        """The tokens in segments: one for each run of tokens of one role and version."""
        segments: list[Segment] = []
        start = 0
        for (role, version), run in groupby(zip(self.roles, self.versions, strict=True)):
            part = slice(start, start + len([*run]))
            start = part.stop
            if version < 0:
                segments.append(Segment.given(self.tokens[part], role=role))
            else:
                one = Segment.sampled(self.tokens[part], self.log_probs[part], version=version, role=role)
                segments.append(one)
        return Rollout.of(segments)

    def answer(self, task: Task, text: str, *, complete: bool) -> tuple[float, list[Mapping[str, Any]]]:
        """Add an answer, and set whether it ends the dialogue; return its reward and the messages that follow."""
        self.answers.append(text)
        self.messages.append({"role": "assistant", "content": text})
        reply = task.reply(self.problem, self.answers) if complete or task.rewards_truncated else Reply(0.0)
        if not isinstance(reply, Reply) or not isinstance(reply.reward, (int, float, Tensor)):
            raise ArgumentError(f"{type(task).__name__}: reply must return a Reply with a number, got {reply!r:.100}")
        self.reward += float(reply.reward)
        self.turns.append((self.answer_start, len(self.tokens), float(reply.reward)))
        self.terminated = complete and not reply.messages
        self.truncated = not self.terminated and (not complete or len(self.answers) >= task.max_turns)
        return reply.reward, [] if self.done else [*reply.messages]

    def give(self, tokens: Sequence[int], role: str) -> None:
        """Add tokens that are not sampled, after which an answer starts."""
        self._extend(tokens, [0.0] * len(tokens), -1, role)
        self.answer_start = len(self.tokens)

    def extend(self, completion: Completion) -> None:
        """Add tokens that an engine sampled."""
        self._extend(completion.tokens, completion.log_probs, completion.version, "assistant")

    def _extend(self, tokens: Sequence[int], log_probs: Sequence[float], version: int, role: str) -> None:
        self.tokens += tokens
        self.log_probs += log_probs
        self.versions += [version] * len(tokens)
        self.roles += [role] * len(tokens)


@dataclass
class Group:
    """Dialogues on one problem.

    Attributes:
        number: Number of the group, in the order in which groups were started.
        dialogues: Dialogues.
    """

    number: int
    dialogues: list[Dialogue]

    @property
    def done(self) -> bool:
        return all(one.done for one in self.dialogues)

    @property
    def rewards(self) -> list[float]:
        return [one.reward for one in self.dialogues]

    @property
    def oldest_version(self) -> int:
        """Smallest version of a policy that sampled one of the tokens."""
        return min(version for one in self.dialogues for version in one.versions if version >= 0)


def batch_of(groups: Sequence[Group], *, pad_token: int = 0, turns: bool = False) -> TensorDict:
    """Return groups as a padded batch for a loss, ``[B]``: a row for each dialogue, or for each of its answers.

    Writes the entries of `rl.llm.padded`, ``group`` int64 ``[B, 1]``, and under ``next`` ``reward``, ``done``,
    ``terminated`` and ``truncated`` ``[B, 1]``.

    Args:
        groups: Groups.
        pad_token: Token of the padding.
        turns: Whether each answer is a row with its own reward, of which it is the trained part. Rows of a group are
            then not equally many: ``MCAdvantage(None, prompt_key="group")``.
    """
    rows = [
        (group.number, one, *turn)
        for group in groups
        for one in group.dialogues
        for turn in (one.turns if turns else [(0, len(one.tokens), one.reward)])
    ]

    def column(values: list[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).unsqueeze(-1)

    def pad(parts: list[Tensor], fill: float) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=fill)

    # As `rl.llm.padded` of rollouts, without an object for each of them, which would take longer than sampling does.
    td = TensorDict({}, batch_size=[len(rows)])
    versions = [torch.tensor([-1] * start + one.versions[start:end]) for _, one, start, end, _ in rows]
    td.set(VERSION, pad(versions, -1)).set(TRAINED, td[VERSION] >= 0)
    td.set(TOKENS, pad([torch.tensor(one.tokens[:end]) for _, one, _, end, _ in rows], pad_token))
    td.set(ATTENTION, pad([torch.ones(end, dtype=torch.bool) for _, _, _, end, _ in rows], 0))
    td.set(LOG_PROBS, pad([torch.tensor(one.log_probs[:end]) for _, one, _, end, _ in rows], 0))
    td.set(GROUP, column([number for number, *_ in rows], torch.int64))
    last = [(one, end == len(one.tokens)) for _, one, _, end, _ in rows]
    flags = {
        DONE: column([one.done and at_end for one, at_end in last], torch.bool),
        TERMINATED: column([one.terminated and at_end for one, at_end in last], torch.bool),
        TRUNCATED: column([one.truncated and at_end for one, at_end in last], torch.bool),
    }
    reward = column([reward for *_, reward in rows], torch.float32)
    return td.set(NEXT, TensorDict({REWARD: reward, **flags}, batch_size=td.batch_size))


class LLMCollector:
    """Collector of groups: some responses to each of some problems, as an engine samples them.

    A response that does not end within the sampling's tokens is truncated: it has the reward 0 unless the task has
    `rewards_truncated`. With `chunk`, one call of the engine samples at most that number of tokens; when the batch is
    full, dialogues that have not ended continue in the next batch with the weights of that time, and each token
    carries its version. Nothing that was sampled is thrown away, but for dropped groups.

    Args:
        task: Source of problems and rewards.
        template: Template that encodes them.
        engine: Engine that samples.
        groups_per_batch: Number of groups in a batch.
        group_size: Number of dialogues in a group.
        sampling: How responses are sampled; the task's ``max_tokens`` if None.
        in_flight: Number of groups that are sampled at once, at least `groups_per_batch`, which is the default.
        max_dropped: Number of groups for a batch that are dropped at most because their rewards are all equal; others
            are sampled in their place.
        chunk: Number of tokens that one call of the engine samples at most; a full response if None.
        seed: Seed of the problems.

    Example:
        >>> from rl.llm import CharTokenizer, ScriptedEngine, SortTask
        >>> tokenizer = CharTokenizer(SortTask.alphabet)
        >>> engine = ScriptedEngine([tokenizer.encode("0123", add_special_tokens=True)], stop_tokens=[1])
        >>> collector = LLMCollector(SortTask(), ChatTemplate(tokenizer), engine, groups_per_batch=2, group_size=3)
        >>> [len(group.rewards) for group in collector.collect()]
        [3, 3]
    """

    def __init__(
        self,
        task: Task,
        template: ChatTemplate,
        engine: Engine,
        *,
        groups_per_batch: int,
        group_size: int,
        sampling: Sampling | None = None,
        in_flight: int | None = None,
        max_dropped: int = 0,
        chunk: int | None = None,
        seed: int = 0,
    ) -> None:
        name = type(self).__name__
        self.task, self.template, self.engine = task, template, engine
        self.groups_per_batch = as_integer(groups_per_batch, name, "groups_per_batch", least=1)
        self.group_size = as_integer(group_size, name, "group_size", least=1)
        self.sampling = Sampling(max_tokens=task.max_tokens) if sampling is None else sampling
        flying = groups_per_batch if in_flight is None else in_flight
        self.in_flight = as_integer(flying, name, "in_flight", least=groups_per_batch)
        self.max_dropped = as_integer(max_dropped, name, "max_dropped", least=0)
        self.chunk = None if chunk is None else as_integer(chunk, name, "chunk", least=1)
        self.rng = random.Random(seed)
        self.started = self.dropped = 0
        self._active: list[Group] = []
        self._ready: list[Group] = []
        self._dropped_now = 0

    def collect(self) -> list[Group]:
        """Return the next groups, whose dialogues have all ended."""
        while len(self._ready) < self.groups_per_batch:
            while len(self._active) + len(self._ready) < self.in_flight:
                self.start()
            self.step()
        found, self._ready = self._ready[: self.groups_per_batch], self._ready[self.groups_per_batch :]
        self._dropped_now = 0
        return found

    def complete(self, count: int) -> list[Group]:
        """Start a number of groups, and return those that are kept when all of them have ended, in order."""
        for _ in range(count):
            self.start()
        while self._active:
            self.step()
        found, self._ready, self._dropped_now = self._ready, [], 0
        return sorted(found, key=lambda group: group.number)

    def start(self) -> None:
        """Start one group."""
        problem = self.task.sample(self.rng)
        prompt = self.template.prompt(list(problem.messages)).tokens.tolist()
        ones = [Dialogue(problem, list(problem.messages)) for _ in range(self.group_size)]
        for one in ones:
            one.give(prompt, "user")
        self._active.append(Group(self.started, ones))
        self.started += 1

    def step(self) -> None:
        """Sample for each dialogue that has not ended, and move groups that have ended."""
        ones = [one for group in self._active for one in group.dialogues if not one.done]
        # Responses that are continued have fewer tokens left: one call of the engine for each number of tokens.
        calls: dict[int, list[Dialogue]] = {}
        for one in ones:
            left = self.sampling.max_tokens - (len(one.tokens) - one.answer_start)
            calls.setdefault(min(left, self.chunk or left), []).append(one)
        for tokens, part in calls.items():
            sampling = replace(self.sampling, max_tokens=tokens)
            completions = self.engine.generate([one.tokens for one in part], sampling)
            for one, completion in zip(part, completions, strict=True):
                self._respond(one, completion)
        self._harvest()

    def _respond(self, one: Dialogue, completion: Completion) -> None:
        """Add sampled tokens to a dialogue, and what follows a complete answer."""
        one.extend(completion)
        stopped, response = completion.finish == "stop", one.tokens[one.answer_start :]
        most = self.sampling.max_total or math.inf
        if not stopped and len(response) < self.sampling.max_tokens and len(one.tokens) < most:
            return  # a chunk; the response continues
        text = self.template.tokenizer.decode([token for token in response if token not in self.template.stop_tokens])
        _, new = one.answer(self.task, text, complete=stopped)
        if one.done:
            return
        role = new[-1]["role"]
        ended = response[-1] in self.template.stop_tokens  # and not by a stop string
        given = self.template.continuation(one.messages, new, role=role, stopped=ended).tokens.tolist()
        if len(one.tokens) + len(given) >= most:
            one.truncated = True
            return
        one.messages += new
        one.give(given, role)

    def _harvest(self) -> None:
        """Move groups that have ended to those that are ready, or drop them."""
        ended = [group for group in self._active if group.done]
        self._active = [group for group in self._active if not group.done]
        for group in ended:
            if len({*group.rewards}) == 1 and self._dropped_now < self.max_dropped:
                self.dropped += 1
                self._dropped_now += 1
            else:
                self._ready.append(group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the problems' generator and the numbers of groups; dialogues in flight are rejected.

        Raises:
            RLError: If dialogues are in flight.
        """
        if self._active or self._ready:
            raise RLError("LLMCollector: dialogues are in flight. Save after a batch without in_flight and chunk")
        version, internal, gauss = self.rng.getstate()
        rng = [version, list(internal), gauss]
        return {"rng": rng, "started": self.started, "dropped": self.dropped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        version, internal, gauss = state["rng"]
        self.rng.setstate((version, tuple(internal), gauss))
        self.started, self.dropped = state["started"], state["dropped"]


@final
class AsyncLLMCollector:
    """Collector whose engine samples in a thread while the trainer updates, with a bound on the age of samples.

    The trainer collects a batch, updates, and calls `load_weights` with the next version: one for each batch. A group
    is started only if the batch that it will be part of is trained at most `max_staleness` versions later, and groups
    are returned in the order in which they were started. No sample is older, and none is thrown away for its age.

    Args:
        collector: Collector without `chunk`, whose engine is at the version of the first update.
        max_staleness: Largest number of versions between a token and the update that trains it.

    Raises:
        ArgumentError: If the collector has `chunk`, or the number is negative.

    Example:
        >>> from rl.llm import CharTokenizer, ScriptedEngine, SortTask
        >>> tokenizer = CharTokenizer(SortTask.alphabet)
        >>> engine = ScriptedEngine([tokenizer.encode("0123", add_special_tokens=True)], stop_tokens=[1])
        >>> collector = LLMCollector(SortTask(), ChatTemplate(tokenizer), engine, groups_per_batch=2, group_size=3)
        >>> with AsyncLLMCollector(collector, max_staleness=1) as threaded:
        ...     for version in (1, 2):
        ...         groups = threaded.collect()
        ...         threaded.load_weights({}, version)
        >>> [group.number for group in groups]
        [2, 3]
    """

    def __init__(self, collector: LLMCollector, *, max_staleness: int) -> None:
        if collector.chunk is not None:
            raise ArgumentError("AsyncLLMCollector: collector must be without chunk, for its groups end in order")
        self.collector = collector
        self.max_staleness = as_integer(max_staleness, "AsyncLLMCollector", "max_staleness", least=0)
        self._first = collector.engine.version
        self._changed = threading.Condition()
        self._engine = threading.Lock()  # held while the engine samples; weights are loaded in between
        self._closed, self._error = False, None
        self._done: list[Group] = []
        self._taken = 0
        self._thread = threading.Thread(target=self._work, name="AsyncLLMCollector", daemon=True)
        self._thread.start()

    def __enter__(self) -> AsyncLLMCollector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count_startable(self) -> int:
        """Return how many groups may be started now.

        Group i that is kept is trained by update ``i // n``, at version ``first + i // n``. Groups that were dropped
        move later ones forward.
        """
        one = self.collector
        ahead = one.engine.version - self._first + self.max_staleness + 1
        return one.groups_per_batch * ahead - (one.started - one.dropped)

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._count_startable() > 0)
                    if self._closed:
                        return
                with self._engine:
                    found = self.collector.complete(min(self._count_startable(), self.collector.groups_per_batch))
                with self._changed:
                    self._done += found
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised where the batch is collected
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def collect(self) -> list[Group]:
        """Return the next groups, waiting for them.

        Raises:
            RLError: If the thread failed or was closed, or too few versions were loaded for a further batch.
        """
        size = self.collector.groups_per_batch
        with self._changed:
            version = self.collector.engine.version
            if self._taken // size > version - self._first + self.max_staleness:
                raise RLError(
                    f"AsyncLLMCollector: a batch more would be older than max_staleness ({self.max_staleness}). Call"
                    " load_weights after each update"
                )
            self._changed.wait_for(lambda: self._closed or self._error or len(self._done) >= size)
            if self._error is not None:
                raise RLError(f"AsyncLLMCollector: sampling failed: {self._error}") from self._error
            if len(self._done) < size:
                raise RLError("AsyncLLMCollector: it is closed")
            found, self._done = self._done[:size], self._done[size:]
            self._taken += size
            return found

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Replace the weights of the engine between two of its calls, as `Engine.load_weights` does."""
        with self._engine:
            self.collector.engine.load_weights(weights, version)
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread after the call of the engine that runs. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
