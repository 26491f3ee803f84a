"""`Collector`: batches of experience, in time order, from one process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from math import ceil
from operator import index
from threading import Lock
from time import perf_counter
from typing import Any, Self

import torch
from tensordict import TensorDictBase
from tensordict.nn import CudaGraphModule, InteractionType, set_interaction_type
from torch import Tensor

from rl.collectors import _foreign
from rl.collectors._assemble import Assembler, place
from rl.collectors._checks import name_of
from rl.collectors._finish import Finish
from rl.collectors._loops.runner import Runner
from rl.collectors._profile import Clock
from rl.collectors._profiling import BatchProfiler, ProfileConfig
from rl.collectors._recurrent_state import Carried
from rl.collectors._state import unpack_state
from rl.collectors._trajectories import number_trajectories
from rl.collectors.weights._load import load_weights
from rl.core import check_pipeline, set_recurrent_mode
from rl.core.errors import RLError, SpecError
from rl.core.interfaces import Env, missing_env_members
from rl.core.keys import DONE, NEXT, TRAJ_IDS, TRUNCATED, key_str, leaf_keys, unwrap
from rl.core.mdp import FLAGS, complete_done, done_levels
from rl.core.state import pack

__all__ = ["Collector", "count_of", "make_env"]


@_foreign.collector
class Collector:
    """Iterable of batches ``[*env.batch_size, T]``, last dimension named ``time``.

    Episodes continue from batch to batch. The terminal observation is under ``next``; the following root holds the
    reset. Batches are fresh memory, without gradient; entries whose last name begins with ``_`` are left out. Keys:
    those of the environment and of the policy, and ``("collector", "traj_ids")`` int64 ``[*B, T]``.

    A recurrent policy (`rl.core.states_of`) reads its initial state at the first step of each episode, and its state
    under ``next`` at the following step; the collector writes ``is_init`` where the environment does not.

    Args:
        create_env_fn: an environment (`rl.core.interfaces.Env`), or a function that makes one.
        policy: a TensorDict module or any function from TensorDict to TensorDict; random actions if None.
            It is not copied.
        frames_per_batch: frames (steps times environments) of a batch, rounded up to whole steps.
        total_frames: frames after which iteration ends, rounded up to whole batches; -1 for no end.
        device: device of the policy; that of its parameters if None.
        storing_device: device of the batches; that of the environment if None.
        init_random_frames: number of frames at the start with random actions, rounded up to whole steps. The policy
            still runs, for its other outputs, which belong to its own action.
        reset_at_each_iter: begin every batch with a reset.
        postproc: function that is applied to every batch; its result is yielded.
        exploration_type: exploration type of the policy; None for the ambient one.
        track_traj_ids: write ``("collector", "traj_ids")``.
        set_truncated: mark the last step of every batch as truncated; the episode continues in the next batch with
            the same trajectory id.
        debug: check shapes, dtypes and actions at every step; otherwise only at the first.
        profile: measure the time of policy and environment; see `stats`.
        weight_updater: a `WeightUpdaterBase` that is told about this collector.
        create_env_kwargs: arguments of the function that makes the environment.
        policy_factory: function that makes the policy; takes the place of `policy`.
        compile_policy: call the policy through `torch.compile`; or the arguments of that.
        cudagraph_policy: call the policy through `tensordict.nn.CudaGraphModule`.
        track_policy_version: write ``policy_version`` int64 ``[*B, T]``, the number of calls of
            `update_policy_weights_`.
        pre_collect_hook: called before every batch.
        post_collect_hook: called with every batch, before `split_trajs` and `postproc`.
        split_trajs: split every batch with `split_trajectories`.
        return_same_td: yield the same TensorDict, overwritten by every batch.
        replay_buffer: buffer that is extended by every batch; None is yielded instead.
        extend_buffer: extend it; if false the batch is yielded.

    Raises:
        ContractError: if the policy reads a key that the environment does not write, writes no action, or has a
            recurrent state that it does not write under ``next``.
        SpecError: if an argument is out of range, or `create_env_fn` does not return an environment.

    Example:
        >>> from rl.core.testing import CountingEnv  # episodes of three steps
        >>> collector = Collector(CountingEnv(), frames_per_batch=4, total_frames=8)
        >>> for batch in collector:
        ...     print(batch["observation"].flatten().tolist(), batch["collector", "traj_ids"].tolist())
        [0.0, 1.0, 2.0, 0.0] [0, 0, 0, 1]
        [1.0, 2.0, 0.0, 1.0] [1, 1, 2, 2]
        >>> collector.shutdown()
    """

    def __init__(  # noqa: PLR0913  # each is one documented switch of collection
        self,
        create_env_fn: Env | Callable[[], Env],
        policy: Any = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        device: torch.device | str | None = None,
        storing_device: torch.device | str | None = None,
        init_random_frames: int = 0,
        reset_at_each_iter: bool = False,
        postproc: Callable[[TensorDictBase], Any] | None = None,
        exploration_type: InteractionType | None = InteractionType.RANDOM,
        track_traj_ids: bool = True,
        set_truncated: bool = False,
        debug: bool = False,
        profile: bool = False,
        weight_updater: Any = None,
        create_env_kwargs: Mapping[str, Any] | None = None,
        policy_factory: Callable[[], Any] | None = None,
        compile_policy: bool | Mapping[str, Any] = False,
        cudagraph_policy: bool = False,
        track_policy_version: bool = False,
        pre_collect_hook: Callable[[], object] | None = None,
        post_collect_hook: Callable[[TensorDictBase], object] | None = None,
        split_trajs: bool = False,
        return_same_td: bool = False,
        replay_buffer: Any = None,
        extend_buffer: bool = True,
    ) -> None:
        if policy is not None and policy_factory is not None:
            raise SpecError("Collector takes a policy or a policy_factory, got both")
        frames_per_batch = count_of("frames_per_batch", frames_per_batch, 1)
        total_frames = -1 if total_frames == -1 else count_of("total_frames", total_frames, 1, "or -1 for no end, ")
        init_random_frames = count_of("init_random_frames", init_random_frames, 0)
        self.env = make_env(create_env_fn, create_env_kwargs)
        self.policy = policy = policy if policy_factory is None else policy_factory()
        self._carried = Carried(self.env, policy)
        _check_fit(self.env, self._carried, policy, init_random_frames)
        _check_flags(self.env, track_traj_ids=track_traj_ids, set_truncated=set_truncated)
        self._batch_size = torch.Size(self.env.batch_size)
        self._elements = self._batch_size.numel()
        if not self._elements:
            raise SpecError(f"{type(self.env).__name__} has batch size {tuple(self._batch_size)}: nothing to collect")
        self._steps = ceil(frames_per_batch / self._elements)
        self.frames_per_batch = self._steps * self._elements
        self.total_frames = total_frames
        self._say_rounding(frames_per_batch)
        self._random_frames, self._reset_each = init_random_frames, reset_at_each_iter
        self._storing = None if storing_device is None else torch.device(storing_device)
        self._exploration = exploration_type
        self._track, self._set_truncated = track_traj_ids, set_truncated
        self._clock = Clock() if profile else None
        self._seconds = 0.0
        self._assemble = Assembler(self._batch_size)
        there = None if device is None else torch.device(device)
        acting = _accelerated(policy, compiled=compile_policy, cudagraph=cudagraph_policy)
        self._make_runner = partial(Runner, self.env, acting, there, carried=self._carried, debug=debug)
        self._runner = self._make_runner(clock=self._clock)
        self._profiler: BatchProfiler | None = None
        self._before = pre_collect_hook
        self._finish = Finish(
            postproc,
            post_collect_hook,
            split_trajs,
            return_same_td,
            replay_buffer if extend_buffer else None,
            0 if track_policy_version else None,
        )
        self._ids: Tensor | None = None
        self._free_id = 0
        self._frames = 0
        self._closed = False
        self._levels = done_levels(leaf_keys(self.env.full_done_spec))
        self._lock = Lock()
        if weight_updater is not None:
            weight_updater.register_collector(self)

    # ------------------------------------------------------------------ collecting

    def __iter__(self) -> Iterator[Any]:
        while self.total_frames < 0 or self._frames < self.total_frames:
            yield self.collect()

    def collect(self) -> Any:
        """Collect the next batch, whether or not `total_frames` is reached.

        Raises:
            ContractError: if policy or environment do not write their declared keys.
            SpecError: if an action or a step's outcome does not fit its spec.
            RLError: after `shutdown`, or while another thread collects with this collector.
        """
        if self._closed:
            raise RLError("this collector was shut down and its environment closed: make a new Collector")
        if self._before is not None:
            self._before()
        with self._alone("collect"):
            start = perf_counter() if self._clock is not None else 0.0
            if self._reset_each:
                self._restart()
            with torch.no_grad(), nullcontext() if self._profiler is None else self._profiler.batch():
                batch = self._batch()
                if self._storing is not None:
                    batch = batch.to(self._storing)
            if self._clock is not None:
                self._seconds += perf_counter() - start
            if self._profiler is not None and self._profiler.finished:
                self.disable_profile()
        return self._finish(batch)

    @contextmanager
    def _alone(self, what: str) -> Generator[None]:
        if not self._lock.acquire(blocking=False):
            raise RLError(
                f"Collector.{what} was called while this collector was in use by another thread, or by its own policy:"
                " give each thread a Collector and an environment of its own"
            )
        try:
            yield
        finally:
            self._lock.release()

    def rollout(self) -> Any:
        """The same as `collect`."""
        return self.collect()

    def _batch(self) -> TensorDictBase:
        ids, self._ids = self._ids, None  # after an interrupted batch new ids start
        starts = self._runner.root is None
        left = max(0, self._random_frames - self._frames)
        random = min(self._steps, ceil(left / self._elements))
        self._assemble.begin(self._steps)
        acting = nullcontext() if self._exploration is None else set_interaction_type(self._exploration)
        with acting, set_recurrent_mode(False):  # single steps, also inside of a caller's mode
            self._runner.run(self._steps, random, self._assemble.add)
        entries = self._assemble.entries()
        self._check_done(entries)
        if self._track:
            self._number(entries, ids)
        if self._set_truncated:
            _truncate_last(entries[NEXT], len(self._batch_size))
        self._frames += self.frames_per_batch
        batch = self._assemble.tensordict(entries)
        self._carried.check(batch, starts=starts, cut=self._set_truncated)
        return batch

    def _check_done(self, entries: dict[str, Any]) -> None:
        """Refuse done flags that contradict each other, and resets that return ``done``."""
        owner = name_of(self.env)
        try:
            for level in self._levels:
                group = reduce(dict[str, Any].__getitem__, level, entries[NEXT])
                flags = {unwrap((*level, flag)): group[flag] for flag in FLAGS if flag in group}
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

    def _number(self, entries: dict[str, Any], ids: Tensor | None) -> None:
        done = entries[NEXT][DONE].reshape(*self._batch_size, self._steps)
        if ids is None:
            first = self._free_id
            self._free_id += self._elements
            ids = torch.arange(first, self._free_id, device=done.device).reshape(self._batch_size)
        numbers, self._ids, self._free_id = number_trajectories(done, ids, self._free_id)
        place(entries, TRAJ_IDS, numbers)

    # ------------------------------------------------------------------ control

    def reset(self) -> None:
        """Begin the next batch with a reset of all environments, and with new trajectory ids.

        Raises:
            RLError: while another thread collects with this collector.
        """
        with self._alone("reset"):
            self._restart()

    def _restart(self) -> None:
        self._runner.root = None
        self._ids = None

    def set_seed(self, seed: int) -> int:
        """Seed the environment, and begin the next batch with a reset.

        Policies sample from torch's generator: seed it with ``torch.manual_seed``.

        Returns:
            The seed for the next environment.
        """
        with self._alone("set_seed"):
            self._restart()
            return self.env.set_seed(seed)

    def shutdown(self) -> None:
        """Close the environment. May be called twice."""
        if not self._closed:
            self._closed = True
            self.env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def update_policy_weights_(self, policy_or_weights: Any = None) -> None:
        """Copy new weights into the policy, in place.

        Args:
            policy_or_weights: a policy of the same structure, its ``state_dict()``, or its parameters as a
                TensorDict. None, or the collector's own policy, changes nothing.

        Raises:
            SpecError: if there is no policy with parameters, or the weights do not fit it. Nothing is written.
        """
        if policy_or_weights is not None and policy_or_weights is not self.policy:
            load_weights(self.policy, policy_or_weights)
        if self._finish.version is not None:
            self._finish.version += 1

    def enable_profile(self, *, config: ProfileConfig | None = None, worker_idx: int = 0, **settings: Any) -> None:
        """Record the next batches with `torch.profiler`: ranges ``collect``, ``policy`` and ``env``.

        Args:
            config: what is recorded.
            worker_idx: number in the name of the file.
            settings: those of `ProfileConfig`, in the place of `config`.

        Raises:
            SpecError: if a setting is out of range, or both are given.
        """
        if config is not None and settings:
            raise SpecError(f"enable_profile takes a config or settings, got both: {', '.join(settings)}")
        self._profiler = BatchProfiler(ProfileConfig(**settings) if config is None else config, worker_idx)
        self._call_through(self._profiler)

    def disable_profile(self) -> None:
        """End the recording; happens by itself after the last batch."""
        self._profiler = None
        self._call_through(self._clock)

    def _call_through(self, clock: Clock | BatchProfiler | None) -> None:
        root, self._runner = self._runner.root, self._make_runner(clock=clock)
        self._runner.root = root

    # ------------------------------------------------------------------ properties and state

    @property
    def collected_frames(self) -> int:
        """Number of collected frames, over all batches."""
        return self._frames

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
            warnings.warn(
                f"{type(self.env).__name__} has no state_dict(): a collector that loads this state starts new"
                " episodes; give the environment state_dict() and load_state_dict() for an exact continuation",
                stacklevel=2,
            )
        exact = env_state is not None
        with self._alone("state_dict"):
            state = {
                "frames": self._frames,
                "free_id": self._free_id,
                "ids": self._ids if exact else None,
                "root": self._runner.root if exact else None,
                "root_keys": self._assemble.root_keys,
                "next_keys": self._assemble.next_keys,
            }
            return {**pack(state, "Collector"), "env": env_state() if exact else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; from a reset if the environment is not restorable.

        Raises:
            CheckpointError: if the state is not a collector's, of another batch size, or of a policy with other
                recurrent states. Nothing is loaded then.
        """
        found = unpack_state(state, self._batch_size)
        self._carried.check_continued(found["root"])
        load: Any = getattr(self.env, "load_state_dict", None)
        with self._alone("load_state_dict"):
            # False: the environment was not restored exactly, and warned about it
            exact = found["env"] is not None and load is not None and load(found["env"]) is not False
            self._frames, self._free_id = found["frames"], found["free_id"]
            self._ids, self._runner.root = (found["ids"], found["root"]) if exact else (None, None)
            self._assemble.root_keys, self._assemble.next_keys = found["root_keys"], found["next_keys"]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(env={type(self.env).__name__}, batch={[*self._batch_size, self._steps]},"
            f" frames={self._frames}/{self.total_frames}, path={self.path!r})"
        )

    def _say_rounding(self, asked: int) -> None:
        said: list[str] = []
        if self.frames_per_batch != asked:
            said.append(
                f"frames_per_batch={asked} is no multiple of the {self._elements} environments: each batch has"
                f" {self.frames_per_batch} frames"
            )
        if self.total_frames > 0 and self.total_frames % self.frames_per_batch:
            whole = ceil(self.total_frames / self.frames_per_batch) * self.frames_per_batch
            said.append(
                f"total_frames={self.total_frames} is no multiple of the {self.frames_per_batch} frames of a batch:"
                f" {whole} frames will be collected"
            )
        if said:
            warnings.warn("; ".join(said), stacklevel=3)


def make_env(create_env_fn: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
    env = create_env_fn
    if isinstance(env, type) or (callable(env) and not isinstance(env, Env)):
        env = create_env_fn(**(kwargs or {}))
    elif kwargs:
        raise SpecError("Collector got create_env_kwargs with an environment: they are for a function that makes one")
    if lacking := missing_env_members(env):
        raise SpecError(
            f"create_env_fn gave {type(env).__name__}, expected an environment or a function that makes one"
            f" (rl.core.interfaces.Env; it lacks {', '.join(lacking)})"
        )
    return env


def _accelerated(policy: Any, *, compiled: bool | Mapping[str, Any], cudagraph: bool) -> Any:
    """The policy as it is called."""
    if policy is None and (compiled or cudagraph):
        raise SpecError("Collector got compile_policy or cudagraph_policy without a policy: leave them out")
    acting: Any = policy
    if compiled or isinstance(compiled, Mapping):
        acting = torch.compile(policy, **(compiled if isinstance(compiled, Mapping) else {}))
    if cudagraph:
        if not torch.cuda.is_available():
            raise SpecError("Collector got cudagraph_policy=True, and torch finds no GPU: leave it out")
        acting = CudaGraphModule(acting)
    return acting


def count_of(name: str, value: Any, least: int, alternative: str = "") -> int:
    """An argument as an integer; booleans and fractions are refused."""
    number = None if isinstance(value, bool) or not hasattr(value, "__index__") else index(value)
    if number is None or number < least:
        raise SpecError(f"{name} must be an integer of at least {least}, {alternative}got {value!r}")
    return number


def _check_fit(env: Env, carried: Carried, policy: Any, init_random_frames: int) -> None:
    if policy is None:
        return
    if isinstance(policy, type):
        raise SpecError(f"policy is the class {policy.__name__}: pass an object, {policy.__name__}(...)")
    if not callable(policy):
        raise SpecError(
            f"policy is {type(policy).__name__}, expected a TensorDict module or a function from TensorDict to"
            " TensorDict; leave it out for random actions"
        )
    if isinstance(policy, torch.nn.Module) or hasattr(policy, "in_keys"):
        check_pipeline(env, carried, policy)
    scores = [key for key in getattr(policy, "out_keys", None) or () if str(key).rstrip("')").endswith("log_prob")]
    if init_random_frames and scores:
        raise SpecError(
            f"init_random_frames={init_random_frames} with a policy that writes {scores[0]!r}: that would be the"
            " log-probability of another action than the one taken; build the actor with return_log_prob=False, or"
            " collect no random frames"
        )


def _check_flags(env: Env, *, track_traj_ids: bool, set_truncated: bool) -> None:
    flags = [str(key) for key in env.full_done_spec.keys()]
    for wanted, key, switch in ((track_traj_ids, DONE, "track_traj_ids"), (set_truncated, TRUNCATED, "set_truncated")):
        if wanted and key not in flags:
            raise SpecError(
                f"{switch}=True needs {key!r} at the root of {type(env).__name__}'s done specs, which hold"
                f" {flags}: add it there, or pass {switch}=False"
            )
    for key in leaf_keys(env.full_done_spec):
        dtype = env.full_done_spec[key].dtype
        if dtype is not torch.bool:
            raise SpecError(
                f"{type(env).__name__}.full_done_spec has {key_str(key)} as {dtype}, expected torch.bool: write"
                " flags that are true or false"
            )


def _truncate_last(nxt: dict[str, Any], time: int) -> None:
    done, truncated = nxt[DONE].select(time, -1), nxt[TRUNCATED].select(time, -1)
    truncated |= ~done
    done |= truncated
