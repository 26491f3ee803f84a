"""Selection of the inner loop for an environment and a policy, and checks of the first steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.collectors._assemble import CHUNK
from rl.collectors._env_wrappers import ENDED, GroupLeaves, LimitedEnv, LimitedLeaves, RecurrentEnv, RecurrentLeaves
from rl.collectors._loops import (
    LeafAct,
    LeafLoop,
    LeafStep,
    RecordedLoop,
    TensorDictAct,
    TensorDictLoop,
    TensorDictStep,
    groups_of,
    leaves_of,
    lowered_policy,
    opaque_act,
    opaque_policy,
)
from rl.collectors._pipeline import BackedPolicy, device_of_env, name_of
from rl.collectors._profiling import Clock, Ranges
from rl.collectors._recurrent_state import RecurrentStates
from rl.core.contract import Contract, Key, missing_key_message
from rl.core.errors import ArgumentError, ContractError, SpecError
from rl.core.interfaces import Env, Leaves
from rl.core.keys import DONE, NEXT, NestedKey, key_str, leaf_keys, next_key, unwrap
from rl.core.tensor_functions import as_function, as_tensor_env

_SHORT_CHUNK = 8  # steps between two calls of `stopped`


class Runner:
    """Selected inner loop; all three return the same numbers.

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
        policy_device: Device of the policy if it is not that of the environment.
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
        policy_device: torch.device | None,
        *,
        recurrent: RecurrentStates,
        acting: Any = None,
        limit: int | None = None,
        debug: bool = False,
        clock: Clock | Ranges | None = None,
        stopped: Callable[[], bool] | None = None,
        record: bool = False,
    ) -> None:
        env_device = device_of_env(env)
        self._acting = acting = policy if acting is None else acting
        leaf_env = as_tensor_env(env)
        done_keys = leaf_keys(env.full_done_spec)
        grouped = DONE not in done_keys
        self._stopped, self._chunk = stopped, CHUNK if stopped is None else _SHORT_CHUNK
        writes = bool(recurrent.own) or recurrent.marks
        self._checks = checks = StepChecks(env, policy)
        self._loop: Any
        timed: Any = (lambda _, function: function) if clock is None else clock.timed
        if leaf_env is None:
            self.path = "tensordict"
            driven: Any = env if limit is None else LimitedEnv(env, limit)
            driven = RecurrentEnv(driven, recurrent) if writes else driven
            self._loop = TensorDictLoop(driven, groups_of(env))
            own: Any = None if policy is None else opaque_act(acting, policy_device, env_device)
            random: Any = _random_tensordict_act(env, own)
            step: Any = driven.step_and_maybe_reset
            check_act, check_step, probe = checks.tensordict_act, checks.tensordict_step, None
        else:
            leaf_env = GroupLeaves(leaf_env, done_keys) if grouped else leaf_env
            leaf_env = leaf_env if limit is None else LimitedLeaves(leaf_env, limit)
            leaf_env = RecurrentLeaves(leaf_env, recurrent) if writes else leaf_env
            own, self.path = _leaf_policy(acting, policy_device, env_device, env)
            action_keys = None if self.path == "leaves" else leaf_keys(env.full_action_spec)
            done = ENDED if grouped else DONE
            self._loop = LeafLoop(
                leaf_env, leaf_keys(env.full_reward_spec), timed, action_keys, done, reads_done=not record
            )
            random, step = _random_leaf_act(env, own), leaf_env.step_leaves
            check_act, check_step, probe = checks.leaf_act, checks.leaf_step, ActProbe
        self._first_loop = self._loop
        if record:
            who = f"{name_of(env)} with {'random actions' if policy is None else name_of(policy)}"
            _check_recordable(who, self.path, env_device, policy_device, debug=debug)
            if clock is None:  # times and ranges of single steps are those of steps that run one by one
                self._loop = RecordedLoop(self._loop, env_device, getattr(env, "generators", ()), who)
            self.path = f"{self.path}, CUDA graph"
        checked: Any = check_step(step)
        self._step = timed("env", checked if debug else step)
        self._first_step = timed("env", checked if probe is None else StepProbe(checked, type(env).__name__))
        self._paths = {
            randomly: _PolicyPath(act, probe, check_act, timed, debug=debug)
            for randomly, act in ((True, random), (False, random if own is None else own))
        }

    @property
    def policy_backend(self) -> str:
        """Back end that computes the policy, and why; empty if none was asked for."""
        if not isinstance(self._acting, BackedPolicy):
            return ""
        return "torch, as the environment has no leaf form" if self.path == "tensordict" else self._acting.why

    @property
    def root(self) -> Leaves | None:
        """Root of the next step; None for a reset."""
        return self._loop.root

    @root.setter
    def root(self, leaves: Leaves | None) -> None:
        self._loop.root = leaves

    def run(self, steps: int, random: int, on_steps: Callable[[list[Leaves], list[Leaves]], None]) -> None:
        """Take `steps` steps, or fewer once `stopped` returns true, the first `random` of them with random actions.

        After an exception the loop starts from a reset: the environment may have moved on.

        Args:
            steps: Number of steps.
            random: Number of steps with random actions, from the first on.
            on_steps: Function of chunks of steps: root entries, and entries under ``next``, one dict a step each.
        """
        stopped, begun = self._stopped, False
        for randomly, count in ((True, random), (False, steps - random)):
            policy_path, left = self._paths[randomly], count
            while left:
                if stopped is not None and begun and stopped():
                    return
                begun = True
                roots: list[Leaves] = []
                nexts: list[Leaves] = []
                length = min(left, self._chunk) if policy_path.warmed_up else 1
                if isinstance(self._acting, BackedPolicy):
                    self._acting.prepare(length)
                try:
                    if policy_path.warmed_up:
                        self._loop.run(length, policy_path.act, self._step, roots, nexts)
                    else:
                        self._first_loop.run(1, policy_path.first_act, self._first_step, roots, nexts)
                        policy_path.finish_warmup()
                    on_steps(roots, nexts)
                except Exception:
                    self._loop.root = None
                    self._checks.find_fault(roots, nexts)  # raises a clearer error if an entry differs from its spec
                    raise
                left -= length


class _PolicyPath:
    """A policy, or random actions: checked at the first two steps, then called directly.

    Args:
        act: The policy, or random actions.
        probe: Class `ActProbe` for the leaf loop, which keeps the outputs of the policy; None for the other.
        check: Function that adds checks to a policy.
        timed: Function that adds a clock.
        debug: Whether to check every step.
    """

    def __init__(self, act: Any, probe: Any, check: Any, timed: Any, *, debug: bool) -> None:
        self._probe = None if probe is None else probe(act)
        self._finish: Any = (lambda a: timed("policy", check(a))) if debug else (lambda a: timed("policy", a))
        self._seen = 0
        self.warmed_up = False
        self.act: Any = self._finish(act)
        self.first_act: Any = timed("policy", check(act if self._probe is None else self._probe))

    def finish_warmup(self) -> None:
        """Count a step of `first_act`; after two, `act` is ready."""
        self._seen += 1
        self.warmed_up = self._seen >= 2
        if self.warmed_up and self._probe is not None:
            self.act = self._finish(self._probe.finish_warmup())
            self._probe = self.first_act = None  # they hold the first steps' tensors


def _check_recordable(
    who: str, path: str, env_device: torch.device, policy_device: torch.device | None, *, debug: bool
) -> None:
    """Check that steps can be recorded in a CUDA graph.

    Raises:
        ArgumentError: If they run on another device, or through TensorDicts, or are all to be checked.
    """
    if env_device.type != "cuda" or policy_device is not None:
        where = f"{who} is on {env_device}" + ("" if policy_device is None else f", the policy on {policy_device}")
        raise ArgumentError(
            f"Collector(cudagraph=True) needs environment and policy on one CUDA device, and {where}: create them there"
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


def _leaf_policy(
    policy: Any, policy_device: torch.device | None, env_device: torch.device, env: Env
) -> tuple[Any, str]:
    """Return the policy of the leaf loop, or None without one, and the name of the path."""
    lowered = None if policy is None else as_function(policy)
    if lowered is not None:
        return lowered_policy(lowered, policy_device, env_device), "leaves"
    if policy is not None:
        return opaque_policy(
            opaque_act(policy, policy_device, env_device), env.batch_size, groups_of(env)
        ), "leaves, TensorDict policy"
    return None, "leaves"


class StepChecks:
    """Checks of the entries that a policy and an environment write against the environment's specs.

    Args:
        env: Environment with the specs.
        policy: Policy that messages about actions name.
    """

    def __init__(self, env: Env, policy: object) -> None:
        self._env = env
        self._policy_name = "the random policy" if policy is None else f"the policy ({name_of(policy)})"
        contract = getattr(policy, "contract", None)  # knows which keys may be absent
        needs = contract.in_keys if isinstance(contract, Contract) else getattr(policy, "in_keys", None) or ()
        self._in_keys = [unwrap(key) for key in needs]

    def actions(self, root: Leaves) -> None:
        """Check keys, shapes, dtypes and domain of the actions.

        Raises:
            ContractError: If the policy wrote no action.
            SpecError: If an action is not in its spec.
        """
        for key, spec in _specs(self._env.full_action_spec):
            action = root.get(key)
            if action is None:
                key_ = Key(key, remedy=f"{self._policy_name} must write it: add it to out_keys")
                where = "the policy's output"
                raise ContractError(missing_key_message(name_of(self._env), key_, root, where=where))
            self._form(key, action, spec, self._policy_name)
            try:
                spec.assert_is_in(action)
            except SpecError as error:
                raise SpecError(
                    f"{self._policy_name} wrote {key_str(key)} outside its spec: {error}; use a head with these bounds"
                    " (TanhNormal for a box, QValueActor(..., spec=env.action_spec) for choices), or project it"
                    " (env.action_spec.project)"
                ) from None

    def inputs(self, root: Leaves) -> None:
        """Check that the root has the keys that the policy reads.

        Raises:
            ContractError: If a key is missing.
        """
        for key in self._in_keys:
            if key not in root:
                where = "the environment's root"
                raise ContractError(missing_key_message(self._policy_name, Key(key), root, where=where))

    def outcome(self, nxt: Leaves) -> None:
        """Check keys, shapes and dtypes of the entries under ``next``.

        Raises:
            ContractError: If the environment did not write a key of its specs.
            SpecError: If an entry has another shape or dtype than its spec.
        """
        owner, env = name_of(self._env), self._env
        for composite in (env.observation_spec, env.full_reward_spec, env.full_done_spec):
            for key, spec in _specs(composite):
                if key not in nxt:
                    raise ContractError(
                        f"{owner}.step did not write {key_str(next_key(key))}, which its specs promise (it wrote under"
                        f" 'next': {', '.join(map(key_str, nxt)) or 'nothing'}). Write it, or"
                        " take it out of the specs"
                    )
                self._form(next_key(key), nxt[key], spec, f"{owner}.step")

    def restart(self, root: Leaves) -> None:
        """Check shapes and dtypes of the root entries of a reset.

        Raises:
            SpecError: If an entry has another shape or dtype than its spec.
        """
        for composite in (self._env.observation_spec, self._env.full_done_spec):
            for key, spec in _specs(composite):
                if key in root:
                    self._form(key, root[key], spec, f"{name_of(self._env)}.reset")

    def find_fault(self, roots: Sequence[Leaves], nexts: Sequence[Leaves]) -> None:
        """Check steps after an operation on them failed, in their order; nothing if they agree with the specs.

        Args:
            roots: Roots of the steps, with actions; one more than `nexts` if the last step failed.
            nexts: Entries under ``next``.

        Raises:
            ContractError: If the environment did not write a key of its specs.
            SpecError: If an entry or an action is not in its spec.
        """
        for root, nxt in zip_longest(roots, nexts):
            if root is not None:
                self.restart(root)
                self.actions(root)
            if nxt is not None:
                self.outcome(nxt)

    def leaf_act(self, act: LeafAct) -> LeafAct:
        """Return `act` with checks before and after."""

        def checked(root: Leaves) -> Leaves | None:
            self.inputs(root)
            extra = act(root)
            self.actions(root)
            return extra

        return checked

    def leaf_step(self, step: LeafStep) -> LeafStep:
        """Return `step` with a check after it."""

        def checked(root: Leaves) -> Leaves:
            nxt = step(root)
            self.outcome(nxt)
            return nxt

        return checked

    def tensordict_act(self, act: TensorDictAct) -> TensorDictAct:
        """Return `act` with checks before and after."""

        def checked(td: TensorDictBase) -> TensorDictBase:
            self.inputs(leaves_of(td))
            out = act(td)
            self.actions(leaves_of(out))
            return out

        return checked

    def tensordict_step(self, step: TensorDictStep) -> TensorDictStep:
        """Return `step` with a check after it."""

        def checked(td: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
            stepped, root = step(td)
            nxt = stepped.get(NEXT, None)
            if nxt is None:
                raise ContractError(f"{name_of(self._env)}.step_and_maybe_reset wrote nothing under 'next'")
            self.outcome(leaves_of(nxt))
            return stepped, root

        return checked

    def _form(self, key: NestedKey, value: Any, spec: Any, owner: str) -> None:
        if not isinstance(value, Tensor):
            if spec.dtype is None:
                return
            raise SpecError(
                f"{owner} wrote {key_str(key)} as {type(value).__name__}, expected a tensor {_dtype(spec.dtype)}"
                f" {tuple(spec.shape)} ({type(spec).__name__}): write it at every step"
            )
        if value.shape != spec.shape:
            raise SpecError(
                f"{owner} wrote {key_str(key)} with shape {tuple(value.shape)}, expected {tuple(spec.shape)}"
                f" ({type(spec).__name__}, environment batch {tuple(self._env.batch_size)}){_shape_hint(value, spec)}"
            )
        if spec.dtype is not None and value.dtype != spec.dtype:
            raise SpecError(
                f"{owner} wrote {key_str(key)} as {_dtype(value.dtype)}, expected {_dtype(spec.dtype)}"
                f" ({type(spec).__name__}): convert it, or author the spec with that dtype"
            )


def _specs(composite: Any) -> list[tuple[NestedKey, Any]]:
    return [(key, composite[key]) for key in leaf_keys(composite)]


def _shape_hint(value: Tensor, spec: Any) -> str:
    if value.shape == (*spec.shape, 1):
        return ": drop the last dimension (squeeze(-1))"
    if (*value.shape, 1) == tuple(spec.shape):
        return ": keep a last dimension of 1 (unsqueeze(-1))"
    return ": the last layer's width or the out_keys do not fit this environment"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class ActProbe:
    """Wrapper of a policy that copies its outputs and records their memory.

    Args:
        act: The policy.
    """

    def __init__(self, act: LeafAct) -> None:
        self._act = act
        self._seen: list[Leaves] = []

    def __call__(self, root: Leaves) -> Leaves | None:
        before = root.copy()
        extra = self._act(root) or {}
        written = {key: leaf for key, leaf in root.items() if before.get(key) is not leaf}
        self._seen.append({**written, **{next_key(key): leaf for key, leaf in extra.items()}})
        root.update({key: leaf.clone() for key, leaf in written.items()})
        return {key: leaf.clone() for key, leaf in extra.items()} or None

    def finish_warmup(self) -> LeafAct | None:
        """Return, after two steps, the policy itself, or with copies of reused entries; None before."""
        if len(self._seen) < 2:
            return None
        reused = _same_memory(*self._seen[-2:])
        act = self._act
        if not reused:
            return act

        def copying(root: Leaves) -> Leaves | None:
            extra = act(root)
            for key in reused:
                if key in root:
                    root[key] = root[key].clone()
            return extra and {k: leaf.clone() if next_key(k) in reused else leaf for k, leaf in extra.items()}

        return copying


class StepProbe:
    """Wrapper of a step that rejects an environment whose leaf form returns the same memory twice.

    Args:
        step: Method `LeafEnv.step_leaves`.
        owner: Name of the environment, for messages.
    """

    def __init__(self, step: LeafStep, owner: str) -> None:
        self._step, self._owner = step, owner
        self._last: Leaves = {}
        self._copies: Leaves = {}

    def __call__(self, root: Leaves) -> Leaves:
        nxt = self._step(root)
        kept = self._last
        # constants (flags that are rarely set) may share memory: what counts is that kept values stay
        reused = [key for key in _same_memory(kept, nxt) if not torch.equal(kept[key], self._copies[key])]
        if reused:
            raise ContractError(
                f"{self._owner}.step_leaves returned {', '.join(map(key_str, reused))} in the memory of the previous"
                " step, which the collector still holds: return new tensors (clone them), or offer no lowered()"
            )
        self._last, self._copies = nxt, {key: leaf.clone() for key, leaf in nxt.items()}
        return nxt


def _same_memory(one: Leaves, other: Leaves) -> list[NestedKey]:
    return [
        key for key, leaf in other.items() if key in one and leaf.numel() and leaf.data_ptr() == one[key].data_ptr()
    ]
