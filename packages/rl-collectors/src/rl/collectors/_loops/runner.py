"""Selection of the inner loop for an environment and a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.collectors._assemble import CHUNK
from rl.collectors._groups import ENDED, GroupLeaves
from rl.collectors._loops.checks import StepChecks
from rl.collectors._loops.leaves import LeafAct, LeafLoop, TensorDictAct, groups_of
from rl.collectors._loops.limit import ActProbe, LimitedEnv, LimitedLeaves, StepProbe
from rl.collectors._loops.policies import RecordedLoop, TensorDictLoop, lowered_policy, opaque_act, opaque_policy
from rl.collectors._pipeline import device_of_env, name_of
from rl.collectors._profiling import Clock, Ranges
from rl.collectors._recurrent_state import RecurrentEnv, RecurrentLeaves, RecurrentStates
from rl.core.errors import ArgumentError
from rl.core.interfaces import Env, Leaves
from rl.core.keys import DONE, leaf_keys
from rl.core.lowering import lower, lower_env

_SHORT_CHUNK = 8  # steps between two calls of `stopped`


class Runner:
    """Selected inner loop; all three give the same numbers.

    ============== =============== ==============================================================
    environment    policy          cost of a step besides theirs
    ============== =============== ==============================================================
    leaf form      leaf form       dictionary operations (`path` is ``"leaves"``)
    leaf form      any callable    one light TensorDict (``"leaves, TensorDict policy"``)
    any            any             the environment's TensorDict step and copies (``"tensordict"``)
    ============== =============== ==============================================================

    Args:
        env: The environment.
        policy: A TensorDict module, any callable on TensorDicts, or None for random actions.
        away: Device of the policy if it is not that of the environment.
        recurrent: Recurrent states of the policy.
        acting: The policy as it is called, if compiled; `policy` if None.
        limit: Maximum number of steps of an episode, or None.
        debug: Whether to check every step, not only the first two.
        clock: Clock or profiler of policy and environment, or None.
        stopped: Function that returns whether to end a batch early; it is called every few steps.
        record: Whether to replay steps from CUDA graphs.

    Raises:
        ArgumentError: If steps should be recorded and cannot be.
    """

    def __init__(
        self,
        env: Env,
        policy: Any,
        away: torch.device | None,
        *,
        recurrent: RecurrentStates,
        acting: Any = None,
        limit: int | None = None,
        debug: bool = False,
        clock: Clock | Ranges | None = None,
        stopped: Callable[[], bool] | None = None,
        record: bool = False,
    ) -> None:
        home = device_of_env(env)
        acting = policy if acting is None else acting
        leaf_env = lower_env(env)
        done_keys = leaf_keys(env.full_done_spec)
        grouped = DONE not in done_keys
        self._stopped, self._chunk = stopped, CHUNK if stopped is None else _SHORT_CHUNK
        writes = bool(recurrent.own) or recurrent.marks
        self._checks = checks = StepChecks(env, policy)
        self._loop: Any
        around: Any = (lambda _, function: function) if clock is None else clock.around
        if leaf_env is None:
            self.path = "tensordict"
            driven: Any = env if limit is None else LimitedEnv(env, limit)
            driven = RecurrentEnv(driven, recurrent) if writes else driven
            self._loop = TensorDictLoop(driven, groups_of(env))
            own: Any = None if policy is None else opaque_act(acting, away, home)
            random: Any = _random_tensordict_act(env, own)
            step: Any = driven.step_and_maybe_reset
            check_act, check_step, probe = checks.tensordict_act, checks.tensordict_step, None
        else:
            leaf_env = GroupLeaves(leaf_env, done_keys) if grouped else leaf_env
            leaf_env = leaf_env if limit is None else LimitedLeaves(leaf_env, limit)
            leaf_env = RecurrentLeaves(leaf_env, recurrent) if writes else leaf_env
            own, self.path = _leaf_policy(acting, away, home, env)
            acts = None if self.path == "leaves" else leaf_keys(env.full_action_spec)
            done = ENDED if grouped else DONE
            self._loop = LeafLoop(leaf_env, leaf_keys(env.full_reward_spec), around, acts, done, asks=not record)
            random, step = _random_leaf_act(env, own), leaf_env.step_leaves
            check_act, check_step, probe = checks.leaf_act, checks.leaf_step, ActProbe
        self._first_loop = self._loop
        if record:
            who = f"{name_of(env)} with {'random actions' if policy is None else name_of(policy)}"
            _check_recordable(who, self.path, home, away, debug=debug)
            if clock is None:  # times and ranges of single steps are those of steps that run one by one
                self._loop = RecordedLoop(self._loop, home, getattr(env, "generators", ()), who)
            self.path = f"{self.path}, CUDA graph"
        checked: Any = check_step(step)
        self._step = around("env", checked if debug else step)
        self._first_step = around("env", checked if probe is None else StepProbe(checked, type(env).__name__))
        self._lanes = {
            randomly: _Lane(act, probe, check_act, around, debug=debug)
            for randomly, act in ((True, random), (False, random if own is None else own))
        }

    @property
    def root(self) -> Leaves | None:
        """Root of the next step; None for a reset."""
        return self._loop.root

    @root.setter
    def root(self, leaves: Leaves | None) -> None:
        self._loop.root = leaves

    def run(self, steps: int, random: int, take: Callable[[list[Leaves], list[Leaves]], None]) -> None:
        """Take `steps` steps, or fewer once `stopped` returns true, the first `random` of them with random actions.

        After an exception the loop starts from a reset: the environment may have moved on.

        Args:
            steps: Number of steps.
            random: Number of steps with random actions, from the first on.
            take: Function of chunks of steps: root entries, and entries under ``next``, one dict a step each.
        """
        stopped, begun = self._stopped, False
        for randomly, count in ((True, random), (False, steps - random)):
            lane, left = self._lanes[randomly], count
            while left:
                if stopped is not None and begun and stopped():
                    return
                begun = True
                roots: list[Leaves] = []
                nexts: list[Leaves] = []
                length = min(left, self._chunk) if lane.settled else 1
                try:
                    if lane.settled:
                        self._loop.run(length, lane.act, self._step, roots, nexts)
                    else:
                        self._first_loop.run(1, lane.first_act, self._first_step, roots, nexts)
                        lane.settle()
                    take(roots, nexts)
                except Exception:
                    self._loop.root = None
                    self._checks.find_fault(roots, nexts)  # raises a clearer error if an entry differs from its spec
                    raise
                left -= length


class _Lane:
    """A policy, or random actions: checked at the first two steps, then called directly.

    Args:
        act: The policy, or random actions.
        probe: Class `ActProbe` for the leaf loop, which keeps the outputs of the policy; None for the other.
        check: Function that adds checks to a policy.
        around: Function that adds a clock.
        debug: Whether to check every step.
    """

    def __init__(self, act: Any, probe: Any, check: Any, around: Any, *, debug: bool) -> None:
        self._probe = None if probe is None else probe(act)
        self._wrap: Any = (lambda a: around("policy", check(a))) if debug else (lambda a: around("policy", a))
        self._seen = 0
        self.settled = False
        self.act: Any = self._wrap(act)
        self.first_act: Any = around("policy", check(act if self._probe is None else self._probe))

    def settle(self) -> None:
        """Count a step of `first_act`; after two, `act` is ready."""
        self._seen += 1
        self.settled = self._seen >= 2
        if self.settled and self._probe is not None:
            self.act = self._wrap(self._probe.settle())
            self._probe = self.first_act = None  # they hold the first steps' tensors


def _check_recordable(who: str, path: str, home: torch.device, away: torch.device | None, *, debug: bool) -> None:
    """Check that steps can be recorded in a CUDA graph.

    Raises:
        ArgumentError: If they run on another device, or through TensorDicts, or are all to be checked.
    """
    if home.type != "cuda" or away is not None:
        where = f"{who} is on {home}" + ("" if away is None else f", the policy on {away}")
        raise ArgumentError(
            f"Collector(cudagraph=True) needs environment and policy on one CUDA device, and {where}: make them there"
            " (device='cuda'), or leave cudagraph out"
        )
    if path != "leaves":
        raise ArgumentError(
            f"Collector(cudagraph=True) needs an environment and a policy with a leaf form, and the path of {who} is"
            f" {path!r}: see docs/performance.md, or use cudagraph_policy=True"
        )
    if debug:
        raise ArgumentError("Collector(cudagraph=True) cannot check every step: leave out debug=True, or cudagraph")


def _random_leaf_act(env: Env, policy: LeafAct | None) -> LeafAct:
    """Random actions in the leaf loop; `policy` still runs, for its other outputs."""
    keys = leaf_keys(env.full_action_spec)

    def act(root: Leaves) -> Leaves | None:
        extra = policy(root) if policy is not None else None
        spec = env.full_action_spec  # read at each step: an environment may change its masks
        root.update({key: spec[key].rand() for key in keys})
        return extra

    return act


def _random_tensordict_act(env: Env, policy: TensorDictAct | None) -> TensorDictAct:
    """Random actions in the TensorDict loop; `policy` still runs, for its other outputs."""

    def act(td: TensorDictBase) -> TensorDictBase:
        out = policy(td) if policy is not None else td
        return out.update(env.full_action_spec.rand())

    return act


def _leaf_policy(policy: Any, away: torch.device | None, home: torch.device, env: Env) -> tuple[Any, str]:
    """Return the policy of the leaf loop, or None without one, and the name of the path."""
    lowered = None if policy is None else lower(policy)
    if lowered is not None:
        return lowered_policy(lowered, away, home), "leaves"
    if policy is not None:
        return opaque_policy(
            opaque_act(policy, away, home), env.batch_size, groups_of(env)
        ), "leaves, TensorDict policy"
    return None, "leaves"
