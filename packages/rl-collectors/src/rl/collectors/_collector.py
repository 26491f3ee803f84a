"""`Collector`: batches of experience, in time order, from one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from math import ceil
from threading import Lock, get_ident
from time import perf_counter
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor

from rl.collectors._assemble import Assembler
from rl.collectors._background import BackgroundCollector
from rl.collectors._loops import groups_of
from rl.collectors._output import Output, describe
from rl.collectors._pipeline import (
    Devices,
    accelerate,
    as_random_frames,
    as_total_frames,
    check_collector_key,
    check_fit,
    check_flags,
    device_of_policy,
    make_env,
    make_policy,
    move_env,
    name_of,
    rounding_messages,
    unpack_state,
)
from rl.collectors._profiling import BatchProfiler, Clock, ProfileConfig, Ranges
from rl.collectors._recurrent_state import RecurrentStates
from rl.collectors._runner import Runner
from rl.collectors._trajectories import WholeTrajectories, any_flag, number_trajectories
from rl.core import set_recurrent_mode
from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, RLError, SpecError, issue_warning
from rl.core.interfaces import Env
from rl.core.keys import DONE, NEXT, TRAJ_IDS, TRUNCATED, leaf_keys, unwrap
from rl.core.mdp import FLAGS, complete_done, done_levels
from rl.core.profiling import profiled, profiling_enabled
from rl.core.recurrent import keep_modes
from rl.core.state import pack
from rl.core.workers import Undivided

VERSION = "policy_version"
"""Key of the number of weight updates."""


@foreign_arguments()
class Collector(BackgroundCollector):
    """Iterable of batches ``[*env.batch_size, T]``, last dimension named ``time``.

    Episodes continue from batch to batch. The terminal observation is under ``next``; the following root holds the
    reset. Batches are fresh memory, without gradient; entries whose last name begins with ``_`` are left out. Keys:
    those of the environment and of the policy, and ``("collector", "traj_ids")`` int64 ``[*B, T]``.

    A recurrent policy (`rl.core.states_of`) reads its initial state at the first step of each episode, and its state
    under ``next`` at the following step; the collector writes ``is_init`` where the environment does not.

    Args:
        create_env_fn: An environment (`rl.core.interfaces.Env`), or a function that creates one.
        policy: A TensorDict module or any function from TensorDict to TensorDict; random actions if None.
            It is not copied.
        policy_factory: Function that creates the policy; takes the place of `policy`.
        create_env_kwargs: Arguments of `create_env_fn`.
        frames_per_batch: Frames (steps times environments) of a batch, rounded up to full steps.
        total_frames: Frames after which iteration ends, rounded up to full batches; -1 for no end.
        device: The default of `policy_device` and `env_device`.
        policy_device: Device of the policy, whose parameters must be there; that of its parameters if None.
        env_device: Device to which the environment is moved with ``env.to(device)``; not moved if None.
        storing_device: Device of the batches; that of the environment if None.
        max_frames_per_traj: Steps after which an episode is truncated and reset; None or 0 for no limit.
        init_random_frames: Number of frames at the start with random actions, rounded up to full steps; None and -1
            for none. The policy still runs, for its other outputs, which belong to its own action.
        reset_at_each_iter: Whether to begin every batch with a reset.
        split_trajs: Whether to split every batch with `split_trajectories`.
        trajs_per_batch: Number of trajectories of a batch, which are complete then; parts of running ones are kept for
            the next batch. The last batch before `total_frames` may have fewer.
        traj_format: Form of a batch with `trajs_per_batch`: ``"padded"`` for ``[n, T_max]`` with ``("collector",
            "mask")``, or ``"cat"`` for ``[sum T]``; in the order in which trajectories end.
        postproc: Function that is applied to every batch; its result is yielded.
        replay_buffer: Buffer that is extended by every batch; None is yielded instead.
        extend_buffer: Whether a row of the buffer is a row of the batch, as in ``buffer.extend(batch)``. If false, it
            is a single step, in the order of time.
        return_same_td: Whether to return the same TensorDict each time, overwritten.
        exploration_type: Exploration type of the policy; None for the ambient one.
        track_traj_ids: Whether to write ``("collector", "traj_ids")``.
        set_truncated: Whether to mark the last step of every batch as truncated; the episode continues in the next
            batch with the same trajectory id.
        track_policy_version: Whether to write ``policy_version``, int64 ``[*B, T]``: the number of
            `update_policy_weights_`.
        compile_policy: Whether to compile the policy: True, or the arguments of `torch.compile`.
        cudagraph_policy: Whether to record the policy in a CUDA graph: True, or the arguments of
            `tensordict.nn.CudaGraphModule`.
        policy_backend: Name of a back end that computes the steps of the policy, ``"native"`` of rl-native; PyTorch if
            None. Its random numbers differ from PyTorch's, its values by rounding. A policy that it cannot compute runs
            in PyTorch; `explain` says why.
        cudagraph: Whether to record the steps of policy, environment and resets in CUDA graphs, and replay them. Both
            have to be on one CUDA device, in leaf form, and never read a value of it; what they count in Python stands
            still.
        pre_collect_hook: Function that is called before every batch.
        post_collect_hook: Function that is called with every batch, after `postproc`.
        interruptor: An `Interruptor`; a batch ends early once it is stopped.
        debug: Whether to check shapes, dtypes and actions at every step; otherwise only at the first.
        profile: Whether to measure the time of policy and environment; see `stats`.
        weight_updater: A `WeightUpdaterBase`, with which this collector is registered.

    Raises:
        ContractError: If the policy reads a key that the environment does not write, writes no action, or has a
            recurrent state that it does not write under ``next``.
        ArgumentError: If an argument is out of range, two exclude each other, the policy's parameters are on another
            device than `policy_device`, or `create_env_fn` does not return an environment.
        BackendError: If no back end `policy_backend` is installed.

    Example:
        >>> from rl.testing import CountingEnv  # episodes of three steps
        >>> collector = Collector(CountingEnv(), frames_per_batch=4, total_frames=8)
        >>> for batch in collector:
        ...     print(batch["observation"].flatten().tolist(), batch["collector", "traj_ids"].tolist())
        [0.0, 1.0, 2.0, 0.0] [0, 0, 0, 1]
        [1.0, 2.0, 0.0, 1.0] [1, 1, 2, 2]
        >>> collector.shutdown()
    """

    _free_id = 0
    _seconds = 0.0
    _ids: Tensor | None = None
    _profiler: BatchProfiler | None = None
    _named = False

    def __init__(  # noqa: PLR0913  # each is one documented switch of collection
        self,
        create_env_fn: Env | Callable[[], Env],
        policy: Any = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        policy_factory: Callable[[], Any] | None = None,
        create_env_kwargs: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        policy_device: torch.device | str | None = None,
        env_device: torch.device | str | None = None,
        storing_device: torch.device | str | None = None,
        max_frames_per_traj: int | None = None,
        init_random_frames: int | None = 0,
        reset_at_each_iter: bool = False,
        split_trajs: bool | None = None,
        trajs_per_batch: int | None = None,
        traj_format: str = "padded",
        postproc: Callable[[TensorDictBase], Any] | None = None,
        replay_buffer: Any = None,
        extend_buffer: bool = True,
        return_same_td: bool = False,
        exploration_type: InteractionType | None = InteractionType.RANDOM,
        track_traj_ids: bool = True,
        set_truncated: bool = False,
        track_policy_version: bool = False,
        compile_policy: bool | Mapping[str, Any] | None = None,
        cudagraph_policy: bool | Mapping[str, Any] | None = None,
        policy_backend: str | None = None,
        cudagraph: bool = False,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[Any], Any] | None = None,
        interruptor: Any = None,
        debug: bool = False,
        profile: bool = False,
        weight_updater: Any = None,
    ) -> None:
        frames_per_batch = as_integer(frames_per_batch, type(self).__name__, "frames_per_batch", 1)
        self.total_frames = as_total_frames(total_frames, type(self).__name__)
        self._random_frames = as_random_frames(init_random_frames, type(self).__name__)
        limit = max_frames_per_traj or None
        limit = None if limit in (None, -1) else as_integer(limit, type(self).__name__, "max_frames_per_traj", 1)
        self._output = Output(
            postproc,
            post_collect_hook,
            replay_buffer,
            extend_buffer=extend_buffer,
            split_trajs=split_trajs,
            trajs_per_batch=trajs_per_batch,
            traj_format=traj_format,
            return_same_td=return_same_td,
            set_truncated=set_truncated,
            ends_early=interruptor is not None,
        )
        self.policy = make_policy(policy, policy_factory)
        if cudagraph and cudagraph_policy:
            raise ArgumentError(
                "a collector takes cudagraph_policy or cudagraph, which records the policy too; got both"
            )
        policy_device = device_of_policy(self.policy, device if policy_device is None else policy_device)
        acting = accelerate(self.policy, compile_policy, cudagraph_policy, policy_backend, policy_device)
        env = make_env(create_env_fn, create_env_kwargs)
        self._recurrent = RecurrentStates(env, self.policy)
        check_fit(env, self._recurrent, self.policy, self._random_frames)
        check_flags(env, set_truncated=set_truncated, limit=limit)
        if track_traj_ids or split_trajs or trajs_per_batch is not None:
            check_collector_key(env, self.policy)
        self._batch_size = torch.Size(env.batch_size)
        self._elements = self._batch_size.numel()
        if not self._elements:
            raise ArgumentError(f"{type(env).__name__} has batch size {tuple(self._batch_size)}: nothing to collect")
        self._whole = self._output.whole_trajectories()
        self.env = move_env(env, device if env_device is None else env_device)
        self._devices = Devices.of(self.env, policy_device, storing_device)
        self._steps = ceil(frames_per_batch / self._elements)
        self.frames_per_batch = self._steps * self._elements
        self._warn_rounding(frames_per_batch)
        self._reset_each, self.pre_collect_hook = reset_at_each_iter, pre_collect_hook
        self._exploration = exploration_type
        self._track, self._set_truncated, self._track_version = track_traj_ids, set_truncated, track_policy_version
        self._clock = Clock() if profile else None
        self._assembler = Assembler(self._batch_size, groups_of(self.env))
        self._make_runner = partial(
            Runner,
            self.env,
            self.policy,
            self._devices.policy,
            recurrent=self._recurrent,
            acting=acting,
            limit=limit,
            debug=debug,
            stopped=None if interruptor is None else interruptor.collection_stopped,
            record=cudagraph,
        )
        self._runner = self._make_runner(clock=self._clock)
        self._levels = {
            level: {flag: unwrap((*level, flag)) for flag in FLAGS}
            for level in done_levels(leaf_keys(self.env.full_done_spec))
        }
        self._lock = Lock()
        self._user: tuple[int, FrameType] | None = None  # thread, and the call that has the lock
        super().__init__(replay_buffer, weight_updater)

    # ------------------------------------------------------------------ collecting

    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached; None if it goes to a replay buffer.

        Raises:
            ContractError: If policy or environment do not write their declared keys.
            SpecError: If an action or a step's outcome does not fit its spec.
            RLError: After `shutdown`, or while another thread collects with this collector.
        """
        batch = self._next_result(-1)
        assert batch is not None
        return batch[0]

    def _next_result(self, until: int) -> tuple[Any] | None:
        """Collect and finish a batch; with complete trajectories None if none ended within `until` frames."""
        self._check_usable()
        with keep_modes():
            if self.pre_collect_hook is not None:
                self.pre_collect_hook()
            with self._guard_state() as interrupted, self._exclusive("collect"):
                start = perf_counter() if self._clock is not None else 0.0
                if interrupted or self._reset_each:
                    self._restart()
                if profiling_enabled() is not self._named:
                    self._switch_ranges()
                recorded = profiled("collect") if self._profiler is None else self._profiler.batch()
                with torch.no_grad(), recorded:
                    batch = self._batch() if self._whole is None else self._trajectories(self._whole, until)
                if self._clock is not None:
                    self._seconds += perf_counter() - start
                if self._profiler is not None and self._profiler.finished:
                    self.disable_profile()
            return None if batch is None else (self._output.finish(batch),)

    def _switch_ranges(self) -> None:
        """Follow `set_profiling_enabled`, which may be called between two batches."""
        self._named = not self._named
        if self._clock is None and self._profiler is None:
            self._time_with(Ranges() if self._named else None)

    def _trajectories(self, whole: WholeTrajectories, until: int) -> TensorDictBase | None:
        while not whole.ready and (until < 0 or self._frames < until):
            self._batch()
        return whole.take()

    @contextmanager
    def _exclusive(self, what: str) -> Generator[None]:
        """Keep out other threads, the background thread included, and calls by the own policy."""
        with self._background.held():
            acquired = False
            try:
                with Undivided():
                    acquired = self._lock.acquire(blocking=False) or self._is_left_locked()
                    if acquired:
                        self._user = get_ident(), sys._getframe(2)  # noqa: SLF001  past contextlib
                if not acquired:
                    raise RLError(
                        f"Collector.{what} was called while this collector was in use by another thread, or by its own"
                        " policy: give each thread a Collector and an environment of its own"
                    )
                yield
            finally:
                if acquired:
                    with Undivided():
                        self._user = None  # it keeps a batch alive
                        self._lock.release()

    def _is_left_locked(self) -> bool:
        """Return whether Ctrl-C came after the last use in this thread, and before the lock was released."""
        if self._user is None:
            return False
        thread, user = self._user
        return thread == get_ident() and all(frame is not user for frame, _ in walk_stack(None))

    def _batch(self) -> TensorDictBase:
        ids, self._ids = self._ids, None  # after an interrupted batch new ids start
        starts = self._runner.root is None
        version = self.policy_version
        if starts and self._whole is not None:
            self._whole.drop_running()
        left = max(0, self._random_frames - self._frames)
        random = min(self._steps, ceil(left / self._elements))
        self._assembler.start(self._steps)
        acting = nullcontext() if self._exploration is None else set_interaction_type(self._exploration)
        with acting, set_recurrent_mode(False):  # single steps, also inside of a caller's mode
            self._runner.run(self._steps, random, self._assembler.add)
        entries = self._assembler.entries()
        self._check_done(entries)
        ended = self._ended(entries[NEXT]) if self._track or self._whole is not None else None
        if ended is not None and self._track:
            self._number(entries, ended, ids)
        if self._set_truncated:
            _truncate_last(entries[NEXT], len(self._batch_size))
        self._frames += self._assembler.steps * self._elements
        batch = self._assembler.tensordict(entries)
        if self._track_version:
            batch.set(VERSION, torch.full(batch.batch_size, version, device=self._devices.env))
        self._recurrent.check(batch, starts=starts, cut=self._set_truncated)
        if self._devices.storing is not None:
            batch = batch.to(self._devices.storing)
        if ended is not None and self._whole is not None:
            self._whole.add(batch, ended)
        return batch

    def _ended(self, nxt: dict[str, Any]) -> Tensor:
        """Whether a step is the last one of its element's trajectory, bool ``[*B, T]``."""
        if DONE in nxt:
            return nxt[DONE].reshape(*self._batch_size, self._assembler.steps)
        groups = [reduce(dict[str, Any].__getitem__, level, nxt) for level in self._levels]
        flags = [group[flag] for group in groups for flag in FLAGS if flag in group]
        return any_flag(flags, len(self._batch_size) + 1)

    def _check_done(self, entries: dict[str, Any]) -> None:
        """Reject done flags that contradict each other, and resets that return ``done``."""
        owner = name_of(self.env)
        try:
            for level, keys in self._levels.items():
                group = reduce(dict[str, Any].__getitem__, level, entries[NEXT])
                flags = {key: group[flag] for flag, key in keys.items() if flag in group}
                complete_done(flags, level=level, flags=(), owner=f"{owner}.step")
            root = entries.get(DONE)
            if root is not None and bool(root.any()):
                raise SpecError(
                    f"{owner}.reset returned {DONE!r} true (at {root.nonzero()[0].tolist()} of {list(root.shape)}): an"
                    " episode cannot begin at its end"
                )
        except RLError:
            self._runner.root = None
            raise

    def _number(self, entries: dict[str, Any], ended: Tensor, ids: Tensor | None) -> None:
        if ids is None:
            first = self._free_id
            self._free_id += self._elements
            ids = torch.arange(first, self._free_id, device=ended.device).reshape(self._batch_size)
        numbers, self._ids, self._free_id = number_trajectories(ended, ids, self._free_id)
        group, name = TRAJ_IDS
        entries.setdefault(group, {})[name] = numbers

    # ------------------------------------------------------------------ control

    def reset(self) -> None:
        """Begin the next batch with a reset of all environments, and with new trajectory ids.

        Raises:
            RLError: While another thread collects with this collector.
        """
        with self._exclusive("reset"):
            self._restart()

    def _restart(self) -> None:
        self._runner.root = None
        self._ids = None

    def set_seed(self, seed: int, *, static_seed: bool = False) -> int:
        """Seed the environment, and begin the next batch with a reset.

        Policies sample from torch's generator: seed it with ``torch.manual_seed``.

        Args:
            seed: Seed of the environment.
            static_seed: Whether to return `seed` itself, so that the next environment has the same.

        Returns:
            The seed for the next environment.
        """
        with self._exclusive("set_seed"):
            self._restart()
            following = self.env.set_seed(seed)
            return seed if static_seed else following

    def async_shutdown(self, timeout: float | None = None) -> None:
        """End the background thread after its batch, and close the environment.

        Args:
            timeout: Seconds to wait for the batch; no limit if None.

        Raises:
            RLError: If the batch takes longer; the environment is then not closed.
        """
        if not self._background.end(timeout):
            raise RLError(f"the background thread of this collector has not completed its batch within {timeout} s")
        if not self._closed:
            self._closed = True
            self.env.close()
        self._background.raise_error()

    def _collect_in_background(self) -> bool:
        return self._next_of_iteration() is not None and (self.total_frames < 0 or self._frames < self.total_frames)

    def enable_profile(self, *, config: ProfileConfig | None = None, worker_idx: int = 0, **settings: Any) -> None:
        """Record the next batches with `torch.profiler`: ranges ``collect``, ``policy`` and ``env``.

        Args:
            config: Settings of the recording.
            worker_idx: Number in the name of the file.
            settings: Settings of `ProfileConfig`, in place of `config`.

        Raises:
            ArgumentError: If a setting is out of range, or both are given.
        """
        self.profile_config = ProfileConfig.of(config, settings)
        self._profiler = BatchProfiler(self.profile_config, worker_idx)
        self._time_with(self._profiler)

    def disable_profile(self) -> None:
        """End the recording; happens by itself after the last batch."""
        self._profiler = self.profile_config = None
        self._time_with(Ranges() if self._clock is None and self._named else self._clock)

    def _time_with(self, clock: Clock | Ranges | None) -> None:
        root, self._runner = self._runner.root, self._make_runner(clock=clock)
        self._runner.root = root

    def explain(self) -> str:
        """Return a description to print: stages, devices, casts, and the writers and readers of each key.

        Example:
            >>> from rl.testing import CountingEnv
            >>> print(Collector(CountingEnv, frames_per_batch=4, storing_device="cpu").explain())
            Collector(env=CountingEnv, batch=[4], frames=0/-1, path='leaves')
            environment  CountingEnv, batch [], on cpu
            policy       random actions, on cpu
            postproc     -
            storing      on cpu
            ...
        """
        return describe(
            self, self._recurrent, self._devices, self._output, self._assembler.forms, self._runner.policy_backend
        )

    # ------------------------------------------------------------------ properties and state

    @property
    def post_collect_hook(self) -> Callable[[Any], Any] | None:
        """Function that is called with every batch, after `postproc`."""
        return self._output.post_collect_hook

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        self._output.post_collect_hook = hook

    @property
    def _has_whole_trajectories(self) -> bool:
        return self._whole is not None

    @property
    def path(self) -> str:
        """Name of the inner loop: ``leaves``, ``leaves, TensorDict policy`` or ``tensordict``, fastest first."""
        return self._runner.path

    @property
    def stats(self) -> dict[str, float]:
        """Number of frames; with ``profile=True`` also seconds in ``env``, ``policy`` and the ``rest``."""
        out: dict[str, float] = {"frames": self._frames}
        if self._clock is not None:
            out.update(self._clock.seconds)
            out["rest"] = self._seconds - sum(self._clock.seconds.values())
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the state that an exact continuation needs, besides torch's generator and the policy.

        An environment without ``state_dict`` is not restorable: the collector warns, and loading the state resets it.
        """
        env_state: Any = getattr(self.env, "state_dict", None)
        if env_state is None:
            issue_warning(
                f"{type(self.env).__name__} has no state_dict(): a collector that loads this state starts new"
                " episodes; give the environment state_dict() and load_state_dict() for an exact continuation"
            )
        with self._exclusive("state_dict"):
            exact = env_state is not None and not self._interrupted
            state = {
                "frames": self._frames,
                "free_id": self._free_id,
                "ids": self._ids if exact else None,
                "root": self._runner.root if exact else None,
                "root_keys": self._assembler.root_keys,
                "next_keys": self._assembler.next_keys,
                "policy_version": self.policy_version,
                "trajectories": None if self._whole is None else self._whole.state(),
            }
            return {**pack(state, "Collector"), "env": env_state() if exact and env_state is not None else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; from a reset if the environment is not restorable.

        Raises:
            CheckpointError: If the state is not a collector's, of another batch size, or of a policy with other
                recurrent states. Nothing is loaded then.
        """
        env_device = self._devices.env
        found = unpack_state(state, self._batch_size, env_device, self._devices.storing or env_device)
        self._recurrent.check_continued(found["root"])
        load: Any = getattr(self.env, "load_state_dict", None)
        with self._exclusive("load_state_dict"):
            # False: the environment was not restored exactly, and warned about it
            exact = found["env"] is not None and load is not None and load(found["env"]) is not False
            self._frames, self._free_id = found["frames"], found["free_id"]
            self._ids, self._runner.root = (found["ids"], found["root"]) if exact else (None, None)
            self._assembler.expect_keys(found["root_keys"], found["next_keys"])
            self.policy_version = found["policy_version"]
            self._interrupted = False
            if self._whole is not None:
                self._whole.load(found["trajectories"], exact=exact)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(env={type(self.env).__name__}, batch={[*self._batch_size, self._steps]},"
            f" frames={self._frames}/{self.total_frames}, path={self.path!r})"
        )

    def _warn_rounding(self, requested: int) -> None:
        messages: list[str] = []
        if self.frames_per_batch != requested:
            messages.append(
                f"frames_per_batch={requested} is no multiple of the {self._elements} environments: each batch has"
                f" {self.frames_per_batch} frames"
            )
        messages += rounding_messages(self.total_frames, self.frames_per_batch)
        if messages:
            issue_warning("; ".join(messages))


def _truncate_last(nxt: dict[str, Any], time: int) -> None:
    done, truncated = nxt[DONE].select(time, -1), nxt[TRUNCATED].select(time, -1)
    truncated |= ~done
    done |= truncated
