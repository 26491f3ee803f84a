"""`AsyncBatchedCollector`: environments that step on their own, and one policy for those that wait for an action."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor

from rl.collectors._background import BackgroundCollector
from rl.collectors._env_wrappers import EpisodeStart
from rl.collectors._pipeline import (
    Devices,
    accelerate,
    as_random_frames,
    as_total_frames,
    check_collector_key,
    check_fit,
    device_of_policy,
    make_policy,
)
from rl.collectors._recurrent_state import RecurrentStates
from rl.collectors._serving import ServedPolicy
from rl.collectors._trajectories import WholeTrajectories, any_flag
from rl.core import set_recurrent_mode
from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import (
    ArgumentError,
    MissingExtraError,
    RLError,
    SpecError,
    UnknownComponentError,
    WorkerError,
    WorkerTimeoutError,
)
from rl.core.interfaces import Env
from rl.core.keys import DONE, IS_INIT, NEXT, TRAJ_IDS, NestedKey, as_tuple, leaf_keys, next_key
from rl.core.profiling import profiled
from rl.core.recurrent import keep_modes
from rl.core.registry import load

INDEX = "env_index"


@foreign_arguments()
class AsyncBatchedCollector(BackgroundCollector):
    """Collector of environments in workers, none of which waits for the slowest one.

    Each environment steps in a worker of its own. As soon as `min_batch_size` of them wait for an action, the policy is
    called once for all that wait, in this process. Use it for simulators whose steps take different times, with a
    policy that is cheaper in batches; where steps take the same time, `Collector` with a ``ParallelEnv`` is simpler.

    Batches are flat in time: ``[*B, frames]`` for environments of batch size ``*B``, exactly `frames_per_batch` frames
    up to full steps. Steps are grouped by environment, in the order of time, as ``("collector", "traj_ids")``
    and ``env_index`` show; how many steps each environment contributes depends on its speed. Other keys are those
    of `Collector`, and ``policy_version`` int64 ``[*B, T]``, the number of weight updates when the policy acted.

    Args:
        create_env_fn: Functions that create the environments, one for each worker; rl-envs steps them. Or a pool,
            such as ``rl.envs.AsyncEnvPool``.
        policy: See `Collector`. It is called with any number of rows.
        policy_factory: Function that creates the policy.
        create_env_kwargs: Arguments of the functions, or a list of them.
        frames_per_batch: Frames of a batch.
        total_frames: Frames after which iteration ends, rounded up to full batches; -1 for no end.
        min_batch_size: Number of waiting environments from which on the policy is called.
        max_batch_size: Number of environments that it is called with at most; all if None.
        env_backend: Kind of the workers, ``"multiprocessing"`` or ``"threading"``.
        timeout: Seconds to wait for an environment; no limit if None.
        device: Device of the policy; that of its parameters if None.
        storing_device: Device of the batches.
        init_random_frames: Number of frames at the start with random actions; None and -1 for none.
        reset_at_each_iter: Whether to begin every batch with a reset of all environments; running episodes are lost.
        yield_completed_trajectories: Whether to yield each trajectory ``[T]`` when it ends instead of batches.
        postproc: Function that is applied to every batch.
        replay_buffer: Buffer that is extended by every batch; None is yielded instead. A row of the buffer is a step.
        pre_collect_hook: Function that is called before every batch.
        post_collect_hook: Function that is called with every batch, after `postproc`.
        exploration_type: Exploration type of the policy; None for the ambient one.
        compile_policy: See `Collector`.
        weight_updater: A `WeightUpdaterBase`, with which this collector is registered.

    Raises:
        MissingExtraError: If functions are given and rl-envs is not installed.
        ContractError: If policy and environment do not fit.
        ArgumentError: If an argument is out of range.
        WorkerError: While collecting, if an environment fails; steps of the others are in the next batch.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> collector = AsyncBatchedCollector([PendulumEnv] * 3, frames_per_batch=30, env_backend="threading")
        >>> batch = collector.collect()
        >>> batch.batch_size, batch["env_index"].unique().tolist()
        (torch.Size([30]), [0, 1, 2])
        >>> collector.shutdown()
    """

    _assignable = BackgroundCollector._assignable | {"replay_buffer"}  # noqa: SLF001  # of a base class

    def __init__(  # noqa: PLR0913  # each is one documented switch of collection
        self,
        create_env_fn: Sequence[Callable[..., Env]] | Any,
        policy: Any = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        policy_factory: Callable[[], Any] | None = None,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        min_batch_size: int = 1,
        max_batch_size: int | None = None,
        env_backend: str = "multiprocessing",
        timeout: float | None = None,
        device: torch.device | str | None = None,
        storing_device: torch.device | str | None = None,
        init_random_frames: int | None = 0,
        reset_at_each_iter: bool = False,
        yield_completed_trajectories: bool = False,
        postproc: Callable[[TensorDictBase], Any] | None = None,
        replay_buffer: Any = None,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[Any], Any] | None = None,
        exploration_type: InteractionType | None = InteractionType.RANDOM,
        compile_policy: bool | Mapping[str, Any] | None = None,
        weight_updater: Any = None,
    ) -> None:
        owner = type(self).__name__
        self._frames_wanted = as_integer(frames_per_batch, owner, "frames_per_batch", 1)
        self.total_frames = as_total_frames(total_frames, owner)
        self._random = as_random_frames(init_random_frames, owner)
        self._least = as_integer(min_batch_size, owner, "min_batch_size", 1)
        self._most = (
            None if max_batch_size is None else as_integer(max_batch_size, owner, "max_batch_size", self._least)
        )
        self.policy = make_policy(policy, policy_factory)
        acting = accelerate(self.policy, compile_policy, None)
        policy_device = device_of_policy(self.policy, device)
        self.env = env = _pool(create_env_fn, create_env_kwargs, env_backend, timeout)
        try:
            self._check(env)
        except BaseException:
            env.close()
            raise
        self._devices = Devices.of(env, policy_device, storing_device)
        self._served = ServedPolicy(self.policy, acting, self._devices.policy)
        self._after: dict[NestedKey, Tensor] = {}  # recurrent states of all environments
        self._done_keys = [as_tuple(key) for key in leaf_keys(env.full_done_spec)]
        self._postproc = postproc
        self.pre_collect_hook, self.post_collect_hook = pre_collect_hook, post_collect_hook
        self._exploration, self._reset_each = exploration_type, reset_at_each_iter
        self._whole = [WholeTrajectories(1, "cat") for _ in range(env.num_envs)]
        self._finished: list[TensorDictBase] | None = [] if yield_completed_trajectories else None
        self._chunks: list[Any] = []  # steps of some environments, [n, *B] each, in the order in which they came
        self._ids = torch.arange(env.num_envs * self._elements).reshape(env.batch_size)  # of the running trajectories
        self._failed: list[int] = []  # environments that raised, and begin with a reset
        self._root: TensorDictBase | None = None  # rows that wait for an action
        self._started, self._stepped = False, 0
        self._free_id = self._ids.numel()
        super().__init__(replay_buffer, weight_updater)

    def _check(self, env: Any) -> None:
        self._inner = torch.Size(env.batch_size[1:])
        self._elements = self._inner.numel()
        self._steps = -(-self._frames_wanted // max(1, self._elements))
        self.frames_per_batch = self._steps * self._elements
        if not self._elements:
            raise SpecError(f"the environments have batch size {tuple(self._inner)}: nothing to collect")
        if self._least > env.num_envs:
            raise ArgumentError(f"min_batch_size={self._least}, and there are {env.num_envs} environments")
        self._recurrent = RecurrentStates(env, self.policy)
        check_fit(env, self._recurrent, self.policy, self._random)
        check_collector_key(env, self.policy)
        if len(self._recurrent.own) < len(self._recurrent.states):
            raise ArgumentError(
                "AsyncBatchedCollector keeps the recurrent state of the policy itself, and the environment writes it"
                " too: leave TensorDictPrimer out of the environment"
            )

    # ---- collecting

    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached; None if it goes to a replay buffer.

        Raises:
            WorkerError: If an environment fails.
            WorkerTimeoutError: If none answers within `timeout`. The next call waits again.
            RLError: After `shutdown`, and while the background thread collects.
        """
        self._check_usable()
        with keep_modes():
            return self._collect()

    def _collect(self) -> Any:
        if self.pre_collect_hook is not None:
            self.pre_collect_hook()
        if self._interrupted or (self._reset_each and self._finished is None):
            self.reset()
        with self._guard_state():
            batch: Any = self._trajectory() if self._finished is not None else self._batch()
        if self._devices.storing is not None:
            batch = batch.to(self._devices.storing)
        if self._postproc is not None:
            batch = self._postproc(batch)
        if self.post_collect_hook is not None:
            self.post_collect_hook(batch)
        if self.replay_buffer is None:
            return batch
        self.replay_buffer.extend(batch.reshape(-1))
        return None

    def _batch(self) -> TensorDictBase:
        self._gather()
        batch: Any = torch.cat([segment for _, segment, _ in self._segments()], dim=len(self._inner))
        batch.names = [*[None] * len(self._inner), "time"]
        self._frames += self.frames_per_batch
        return batch

    def _trajectory(self) -> TensorDictBase:
        assert self._finished is not None
        while not self._finished:
            self._gather()
            for index, segment, ended in self._segments():
                whole = self._whole[index]
                whole.add(segment, ended)
                while whole.ready:
                    self._finished.append(_given(whole.take()))
        self._frames += self._finished[0].numel()
        return self._finished.pop(0)

    def _gather(self) -> None:
        """Let the environments step until the frames of a batch are there."""
        acting = nullcontext() if self._exploration is None else set_interaction_type(self._exploration)
        with torch.no_grad(), acting, set_recurrent_mode(False), profiled("collect"):
            self._begin()
            while sum(chunk.shape[0] for chunk in self._chunks) < self._steps:
                self._send()
                try:
                    stepped, root = self.env.async_step_and_maybe_reset_recv(self._least, max_get=self._most)
                except WorkerError as error:
                    if error.worker is not None:
                        self._failed.append(error.worker)
                    raise
                self._root = root
                self._take(stepped, root)
            self._send()  # the environments step while the batch is used

    def _begin(self) -> None:
        """Reset all environments at first, and later those that have failed."""
        if not self._started:
            root = self.env.reset()
        elif self._failed:
            self.env.async_reset_send(env_index=self._failed)
            root = self.env.async_reset_recv(len(self._failed))
            self._new_trajectories(self._failed)
        else:
            return
        self._started, self._failed = True, []
        if self._recurrent.own or self._recurrent.marks:
            for key, value in EpisodeStart(self._recurrent, root.batch_size).all(root.get(DONE)).items():
                root.set(key, value)
        waiting: Any = root if self._root is None else torch.cat([self._root.select(*leaf_keys(root)), root])
        self._root = waiting

    def _new_trajectories(self, rows: Sequence[int]) -> None:
        for index in rows:
            self._whole[index].drop_running()
            self._ids[index] = torch.arange(self._free_id, self._free_id + self._elements).reshape(self._inner)
            self._free_id += self._elements

    def _send(self) -> None:
        """Act for the rows that wait, and let their environments step."""
        while self._root is not None:
            part: TensorDictBase = self._root[: self._most]
            acted = self._served(part.copy(), self._devices.env)
            if self.policy is None or self._stepped < self._random:
                acted = self.env.rand_action(acted)
            for state in self._recurrent.own:
                after = acted.get(next_key(state.name))
                if state.name not in self._after:
                    self._after[state.name] = after.new_empty((self.env.num_envs, *after.shape[1:]))
                self._after[state.name][self._rows(part)] = after
            self.env.async_step_and_maybe_reset_send(acted)
            self._stepped += part.numel()
            self._root = self._root[part.shape[0] :] if part.shape[0] < self._root.shape[0] else None

    def _take(self, stepped: TensorDictBase, root: TensorDictBase) -> None:
        """Keep the steps that came back, with the recurrent states of their outcomes."""
        if self._recurrent.own or self._recurrent.marks:
            rows, done = self._rows(stepped), stepped.get((NEXT, DONE))
            after: dict[Any, Tensor] = {state.name: self._after[state.name][rows] for state in self._recurrent.own}
            for key, value in after.items():
                stepped.set(next_key(key), value)
            if self._recurrent.marks:
                stepped.set(next_key(IS_INIT), torch.zeros_like(done))
            for key, value in EpisodeStart(self._recurrent, stepped.batch_size).some(after, done).items():
                root.set(key, value)
        stepped.set(TRAJ_IDS, self._number(stepped))
        private = [key for key in leaf_keys(stepped) if as_tuple(key)[-1].startswith("_")]
        self._chunks.append(stepped.exclude(*private) if private else stepped)

    def _rows(self, data: TensorDictBase) -> Tensor:
        return data.get(INDEX).reshape(data.shape[0], -1)[:, 0]

    def _segments(self) -> Iterator[tuple[int, TensorDictBase, Tensor]]:
        """Return the steps of a batch: environment, ``[*B, T]``, and where trajectories end."""
        steps: Any = torch.cat(self._chunks)
        self._chunks = [steps[self._steps :]] if steps.shape[0] > self._steps else []
        steps = steps[: self._steps]
        order = self._rows(steps).argsort(stable=True)
        steps = steps[order]
        counts = torch.bincount(self._rows(steps), minlength=self.env.num_envs).tolist()
        for index, rows in enumerate(steps.split(counts)):
            if not counts[index]:
                continue
            segment = rows.permute(*range(1, rows.ndim), 0).contiguous() if self._inner else rows
            yield index, segment, self._ended(segment)

    def _ended(self, steps: TensorDictBase) -> Tensor:
        return any_flag([steps.get((NEXT, *key)) for key in self._done_keys], steps.batch_dims)

    def _number(self, stepped: TensorDictBase) -> Tensor:
        """Return the trajectory of each step; new ones begin where it ended."""
        rows, ended = self._rows(stepped).cpu(), self._ended(stepped).cpu()
        ids = self._ids[rows]
        begun = ended.flatten().cumsum(0)
        self._ids[rows] = torch.where(ended, (begun + (self._free_id - 1)).reshape(ended.shape), ids)
        self._free_id += int(begun[-1])
        return ids.to(stepped.device)

    # ---- control

    @property
    def policy_version(self) -> int:
        """Number of calls of `update_policy_weights_`."""
        return self._served.version

    def _load(self, source: Any) -> None:
        self._served.load(source)

    def _collect_in_background(self) -> bool:
        if 0 <= self.total_frames <= self._frames:
            return False
        self.collect()
        return self.total_frames < 0 or self._frames < self.total_frames

    def reset(self) -> None:
        """Drop the running episodes, and begin the next batch with a reset of all environments."""
        with self._background.held():
            settle = self._settle if self._interrupted else self._idle
            with self._guard_state():
                settle()
                self._root, self._started, self._chunks, self._failed = None, False, [], []
                self._new_trajectories(range(self.env.num_envs))

    def _idle(self) -> None:
        """Wait for the environments that step; what they return is dropped."""
        busy = self.env.num_envs - len(self._failed) - (0 if self._root is None else self._root.shape[0])
        if self._started and busy:
            self.env.async_step_and_maybe_reset_recv(busy)

    def _settle(self) -> None:
        """`_idle` where Ctrl-C has left unknown which environments step, or are reset."""
        for receive in (self.env.async_step_and_maybe_reset_recv, self.env.async_reset_recv):
            sent = True
            while sent:
                try:
                    receive(1)
                except WorkerTimeoutError:
                    raise
                except WorkerError as error:
                    if error.ended:
                        raise
                except RLError:  # there are no more
                    sent = False

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        """Seed the environments, and begin new episodes. The order in which they answer is not repeatable.

        Args:
            seed: Seed of the first environment; each other has the one that was returned by the one before.
            static_seed: Whether to return `seed` itself.

        Returns:
            The seed for the next environment.
        """
        self.reset()
        with self._background.held():
            following = self.env.set_seed(seed)
            return seed if static_seed else following

    @property
    def _has_whole_trajectories(self) -> bool:
        return self._finished is not None

    def async_shutdown(self, timeout: float | None = None) -> None:
        """End the background thread and the workers.

        Args:
            timeout: Seconds to wait for the background thread.
        """
        self._background.end(timeout)
        if not self._closed:
            self._closed = True
            self.env.close()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_envs={self.env.num_envs}, frames_per_batch={self.frames_per_batch},"
            f" frames={self._frames}/{self.total_frames})"
        )


def _pool(create_env_fn: Any, kwargs: Any, backend: str, timeout: float | None) -> Any:
    if hasattr(create_env_fn, "async_step_and_maybe_reset_send"):
        return create_env_fn
    if not isinstance(create_env_fn, Sequence) or not create_env_fn or not all(map(callable, create_env_fn)):
        raise ArgumentError(
            "AsyncBatchedCollector takes a list of functions that create environments, or an AsyncEnvPool, got"
            f" {create_env_fn!r:.100}"
        )
    try:
        make = load("env_pool", "async")
    except UnknownComponentError as error:
        raise MissingExtraError(
            "AsyncBatchedCollector steps functions' environments in a pool of rl-envs, which is not installed: pip"
            " install rl-envs"
        ) from error
    return make(create_env_fn, backend=backend, create_env_kwargs=kwargs, timeout=timeout)


def _given(batch: TensorDictBase | None) -> TensorDictBase:
    assert batch is not None
    return batch
