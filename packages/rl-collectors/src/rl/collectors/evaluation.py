"""Evaluation of policies, in this process or beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor, nn

from rl.collectors._pipeline import make_env
from rl.collectors.weights import load_weights, weights_of
from rl.core import set_recurrent_mode
from rl.core.arguments import as_integer, constructor_setting, foreign_arguments, one_of
from rl.core.errors import ArgumentError, RLError, WorkerError
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, NestedKey, as_tuple
from rl.core.recurrent import keep_modes
from rl.core.workers import Undivided, WorkerGroup

__all__ = ["Evaluator"]


def run_episodes(
    env: Env,
    policy: Callable[[TensorDictBase], TensorDictBase],
    *,
    episodes: int,
    max_steps: int | None,
    reward_key: NestedKey,
    exploration_type: InteractionType,
    video_key: NestedKey | None,
) -> dict[str, Any]:
    """Run a policy until every element of the environment has finished its share of the episodes.

    Each element runs the same number of episodes, one after the other: whichever ends first does not count more.

    Args:
        env: The environment; its episodes begin with a reset.
        policy: Function that writes the action.
        episodes: Number of episodes, rounded up to a multiple of the environment's elements.
        max_steps: Steps after which an episode ends; None for no limit.
        reward_key: Key of the reward under ``next``; its dimensions after the batch are added up.
        exploration_type: Exploration type of the policy.
        video_key: Root entry whose frames in the first episode of the first element are returned.

    Returns:
        ``returns`` and ``lengths`` ``[episodes]``, ``seconds``, and ``video`` ``[T, ...]``.
    """
    elements = env.batch_size.numel()
    quota = ceil(episodes / elements)
    total, length, count = torch.zeros(elements), torch.zeros(elements, dtype=torch.int64), torch.zeros(elements)
    returns: list[Tensor] = []
    lengths: list[Tensor] = []
    frames: list[Tensor] = []
    start = perf_counter()
    acting = set_interaction_type(exploration_type, thread_local=True)
    with keep_modes(), torch.no_grad(), acting, set_recurrent_mode(False):
        root = env.reset()
        while bool((count < quota).any()):
            if video_key is not None and count.reshape(-1)[0] == 0:
                frames.append(root.get(video_key).reshape(elements, *root.get(video_key).shape[root.ndim :])[0].clone())
            stepped, root = _advance(env, policy(root), length.reshape(env.batch_size), max_steps)
            reward = stepped.get((NEXT, *as_tuple(reward_key)))
            total += reward.reshape(elements, -1).sum(-1).cpu().to(total.dtype)
            length += 1
            ended = stepped.get((NEXT, DONE)).reshape(elements, -1).any(-1).cpu()
            if max_steps is not None:
                ended |= length >= max_steps
            counted = ended & (count < quota)
            returns.append(total[counted])
            lengths.append(length[counted])
            count += counted
            total[ended], length[ended] = 0.0, 0
    found: dict[str, Any] = {"returns": torch.cat(returns), "lengths": torch.cat(lengths)}
    found["seconds"] = perf_counter() - start
    if frames:
        found["video"] = torch.stack(frames)
    return found


def _advance(
    env: Env, acted: TensorDictBase, length: Tensor, max_steps: int | None
) -> tuple[TensorDictBase, TensorDictBase]:
    """Step, and reset what has ended or reached the limit of steps."""
    stepped, root = env.step_and_maybe_reset(acted)
    if max_steps is not None:
        done = stepped.get((NEXT, DONE))
        over = (length + 1 >= max_steps).to(done.device).reshape(*length.shape, *[1] * (done.ndim - length.ndim))
        over = over.expand_as(done) & ~done
        if bool(over.any()):
            root = env.reset(root.set("_reset", over.clone()))
    return stepped, root


BACKENDS = ("foreground", "thread", "process")
BUSY = ("skip", "wait", "error")


@foreign_arguments()
class Evaluator:
    """Mean return of a policy over complete episodes, computed while training continues.

    An evaluation uses the weights of the moment in which it begins. Results are dictionaries: ``eval/reward``
    (mean return), ``eval/reward_std``, ``eval/num_episodes``, ``eval/episode_length`` (mean), ``eval/fps``,
    ``eval/step``, and ``eval/video`` if `video_key` is given.

    Args:
        env: An environment of the evaluator's own, or a function that creates one.
        policy: The policy that is trained; the evaluator has a copy of it.
        policy_factory: Function that creates the policy instead; weights are then passed to every evaluation.
        num_trajectories: Number of episodes, rounded up to a multiple of the environment's elements.
        max_steps: Steps after which an episode ends; None for no limit.
        backend: Place of the computation: ``"foreground"`` in the call, ``"thread"`` or ``"process"`` concurrently.
        busy_policy: Behavior of `trigger_eval` while an evaluation is running: ``"skip"`` it, ``"wait"``, or
            ``"error"``.
        on_result: Function that is called with each result, in the thread that gets it.
        metrics_fn: Function that computes further metrics from ``returns`` and ``lengths`` ``[episodes]``.
        log_prefix: First part of the names.
        reward_key: Key of the reward under ``next``.
        exploration_type: Exploration type of the policy.
        video_key: Root entry whose frames in the first episode are returned as ``[T, ...]``.
        mp_start_method: Start method of the process.

    Raises:
        ArgumentError: If an argument is out of range.
        RLError: With busy_policy "error", if an evaluation is running; after `shutdown`.

    Example:
        >>> import torch
        >>> from rl.testing import CountingEnv
        >>> from tensordict.nn import TensorDictModule
        >>> one = lambda x: torch.ones(x.shape[:-1], dtype=torch.int64)
        >>> always = TensorDictModule(one, ["observation"], ["action"])
        >>> with Evaluator(CountingEnv, always, num_trajectories=2) as evaluator:
        ...     evaluator.trigger_eval(step=100)
        ...     result = evaluator.wait()
        True
        >>> result["eval/reward"], result["eval/episode_length"], result["eval/step"]
        (3.0, 3.0, 100)
    """

    def __init__(  # noqa: PLR0913  # TorchRL's arguments
        self,
        env: Any,
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | None = None,
        num_trajectories: int = 10,
        max_steps: int | None = None,
        backend: str = "thread",
        busy_policy: str = "skip",
        on_result: Callable[[dict[str, Any]], Any] | None = None,
        metrics_fn: Callable[[Tensor, Tensor], Mapping[str, float]] | None = None,
        log_prefix: str = "eval",
        reward_key: NestedKey = "reward",
        exploration_type: InteractionType = InteractionType.DETERMINISTIC,
        video_key: NestedKey | None = None,
        mp_start_method: str | None = None,
    ) -> None:
        one_of(backend, "Evaluator", "backend", BACKENDS)
        if (policy is None) == (policy_factory is None):
            raise ArgumentError("Evaluator takes a policy or a policy_factory: it evaluates one of them")
        self.busy_policy = busy_policy
        self._num_trajectories = as_integer(num_trajectories, "Evaluator", "num_trajectories", 1)
        self._max_steps = None if max_steps is None else as_integer(max_steps, "Evaluator", "max_steps", 1)
        self._reward_key, self._exploration_type, self._video_key = reward_key, exploration_type, video_key
        settings = {
            "episodes": self._num_trajectories,
            "max_steps": self._max_steps,
            "reward_key": reward_key,
            "exploration_type": exploration_type,
            "video_key": video_key,
        }
        self.policy, self.on_result, self.metrics_fn, self.log_prefix = policy, on_result, metrics_fn, log_prefix
        self._env, self._backend = env, backend
        made = partial(_Evaluation, env, policy_factory or partial(_same, _copy_policy(policy)), settings)
        if backend == "process":
            self._side: Any = _Process(made, mp_start_method)
        else:
            thread = ThreadPoolExecutor(1, thread_name_prefix="rl evaluator") if backend == "thread" else None
            self._side = _Local(made, thread)
        self._closed = False

    env: Any = constructor_setting("_env")
    """Environment, or function that creates it."""
    backend: str = constructor_setting("_backend")
    """Place of the computation."""
    num_trajectories: int = constructor_setting("_num_trajectories")
    """Number of episodes."""
    max_steps: int | None = constructor_setting("_max_steps")
    """Steps after which an episode ends; None for no limit."""
    reward_key: NestedKey = constructor_setting("_reward_key")
    """Key of the reward under ``next``."""
    exploration_type: InteractionType = constructor_setting("_exploration_type")
    """Exploration type of the policy."""
    video_key: NestedKey | None = constructor_setting("_video_key")
    """Root entry whose frames in the first episode are returned."""

    @property
    def busy_policy(self) -> str:
        """Behavior of `trigger_eval` while an evaluation is running; it may be assigned."""
        return self._busy

    @busy_policy.setter
    def busy_policy(self, value: str) -> None:
        self._busy = one_of(value, "Evaluator", "busy_policy", BUSY)

    def evaluate(self, weights: Any = None, *, step: int | None = None) -> dict[str, Any]:
        """Evaluate and return the result; waits for an evaluation that is running.

        Args:
            weights: A policy, its ``state_dict()`` or a TensorDict of parameters; those of the policy if None.
            step: Number that is returned as ``eval/step``.
        """
        self.wait()
        self._start(weights, step)
        result = self.wait()
        assert result is not None
        return result

    def trigger_eval(self, weights: Any = None, *, step: int | None = None) -> bool:
        """Begin an evaluation; its result comes from `poll` or `wait`, and takes the place of an earlier one.

        Returns:
            Whether it was begun.
        """
        if self.pending:
            if self._busy == "skip":
                return False
            if self._busy == "error":
                raise RLError("an evaluation is running: poll() or wait() for it, or pass busy_policy='skip' or 'wait'")
            self.wait()
        self._start(weights, step)
        return True

    def poll(self, timeout: float = 0.0) -> dict[str, Any] | None:
        """Return the result of the last evaluation if it is ready, once; None otherwise.

        Args:
            timeout: Seconds to wait for an evaluation that is running.
        """
        return self._take() if self._side.ready(timeout) else None

    def wait(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Wait for the evaluation that is running, and return its result; None if there is none.

        Args:
            timeout: Seconds after which None is returned, and the evaluation continues; no limit if None.
        """
        return self._take() if self._side.running and (timeout is None or self._side.ready(timeout)) else None

    @property
    def pending(self) -> bool:
        """Whether an evaluation is running."""
        return self._side.running and not self._side.ready()

    def shutdown(self) -> None:
        """Wait for what is running, and close the environment. May be called twice."""
        if not self._closed:
            self._closed = True
            self._side.close()

    def _start(self, weights: Any, step: int | None) -> None:
        if self._closed:
            raise RLError("this Evaluator was shut down; create a new one")
        source = self.policy if weights is None else weights
        known = None if source is None or not _has_weights(source) else weights_of(source)
        copied = None if known is None else {name: value.detach().cpu().clone() for name, value in known.items()}
        self._step = step
        self._side.start(copied)

    def _take(self) -> dict[str, Any]:
        found = self._side.result()
        returns, lengths = found["returns"], found["lengths"]
        figures: dict[str, Any] = {
            "reward": float(returns.mean()),
            "reward_std": float(returns.std(correction=0)),
            "num_episodes": returns.numel(),
            "episode_length": float(lengths.double().mean()),
            "fps": float(lengths.sum()) / found["seconds"],
        }
        if self._step is not None:
            figures["step"] = self._step
        if "video" in found:
            figures["video"] = found["video"]
        if self.metrics_fn is not None:
            figures.update(self.metrics_fn(returns, lengths))
        result = {f"{self.log_prefix}/{name}": value for name, value in figures.items()}
        if self.on_result is not None:
            self.on_result(result)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _Evaluation:
    """Environment and policy of an evaluator, where they are used."""

    commands = ()

    def __init__(self, env: Any, make_policy: Callable[[], Any], settings: Mapping[str, Any]) -> None:
        self._env, self._policy = make_env(env), make_policy()
        self._settings = dict(settings)

    def evaluate(self, weights: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Load the weights, and run the episodes."""
        if weights is not None:
            load_weights(self._policy, weights)
        training = getattr(self._policy, "training", False)
        if training:
            self._policy.eval()
        try:
            return run_episodes(self._env, self._policy, **self._settings)
        finally:
            if training:
                self._policy.train()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class _Local:
    """Evaluations in this process.

    Args:
        make: Function that creates environment and policy.
        thread: Executor of one thread that creates and uses them; the thread of the caller if None.
    """

    def __init__(self, make: Callable[[], _Evaluation], thread: ThreadPoolExecutor | None) -> None:
        self._thread = thread
        self._evaluation = make() if thread is None else thread.submit(make).result()
        self._future: Future[dict[str, Any]] | None = None

    @property
    def running(self) -> bool:
        return self._future is not None

    def ready(self, timeout: float = 0.0) -> bool:
        return self._future is not None and bool(wait([self._future], timeout).done)

    def start(self, weights: Any) -> None:
        if self._thread is not None:
            self._future = self._thread.submit(self._evaluation.evaluate, weights)
            return
        found = self._evaluation.evaluate(weights)
        self._future = Future()
        self._future.set_result(found)

    def result(self) -> dict[str, Any]:
        future, self._future = self._future, None
        assert future is not None
        return future.result()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._evaluation.close()


class _Process:
    """Evaluations in a process."""

    def __init__(self, make: Callable[[], _Evaluation], method: str | None) -> None:
        self._workers = WorkerGroup([make], owner="Evaluator", start_method=method)
        self.running = False
        self._answered = False

    def ready(self, timeout: float = 0.0) -> bool:
        if self.running and not self._answered:
            try:
                self._workers.await_any(timeout=timeout)
                with Undivided():
                    self._answered = bool(self._workers.wait_any(timeout=0.0))
            except WorkerError:
                self.running = False
                raise
        return self._answered

    def start(self, weights: Any) -> None:
        self._workers.request(0, "evaluate", weights)
        self.running, self._answered = True, False

    def result(self) -> dict[str, Any]:
        try:
            self._workers.wait([0])
        except WorkerError:
            self.running = self._answered = False
            raise
        with Undivided():  # after Ctrl-C in the wait, the evaluation is still running
            self.running = self._answered = False
            return self._workers.result(0)

    def close(self) -> None:
        self._workers.close()


def _copy_policy(policy: Any) -> Any:
    try:
        return copy.deepcopy(policy)
    except Exception as error:  # whatever an object raises
        raise ArgumentError(
            f"Evaluator works with a copy of the policy, and {type(policy).__name__} cannot be copied ({error}): pass"
            " policy_factory="
        ) from error


def _same(policy: Any) -> Any:
    return policy


def _has_weights(source: Any) -> bool:
    return not callable(source) or isinstance(source, nn.Module)
