"""Inner loops: of leaves, of TensorDicts, and of CUDA graphs, and the forms of policies that they call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor
from torch import Tensor

from rl.collectors._assemble import check_keys
from rl.core.errors import BackendError, ContractError
from rl.core.interfaces import Env, LeafEnv, Leaves, LoweredModule
from rl.core.keys import DONE, NEXT, NestedKey, unwrap
from rl.core.specs import Composite, group_sizes, set_group_sizes
from rl.core.workers import write_leaves

LeafAct = Callable[[Leaves], Leaves | None]
"""Policy on leaves: writes its root entries into the root, and returns its entries under ``next``, or None."""

LeafStep = Callable[[Leaves], Leaves]
"""`LeafEnv.step_leaves`, possibly with checks or a clock."""

TensorDictAct = Callable[[TensorDictBase], TensorDictBase]
"""Policy that returns its argument, or another TensorDict, with the actions."""

TensorDictStep = Callable[[TensorDictBase], tuple[TensorDictBase, TensorDictBase]]
"""`Env.step_and_maybe_reset`, possibly with checks or a clock."""


def leaves_of(tensordict: TensorDictBase) -> Leaves:
    """Return the entries by flat key, including non-tensor data."""
    entries: Any = tensordict.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return dict(entries)


def groups_of(env: Any) -> dict[NestedKey, torch.Size]:
    """Return the batch sizes of the groups of an environment."""
    specs = [getattr(env, f"full_{part}_spec", None) for part in ("state", "action", "reward", "done")]
    return group_sizes(spec for spec in (env.observation_spec, *specs) if isinstance(spec, Composite))


def tensordict_of(leaves: Leaves, batch_size: Any, groups: Mapping[NestedKey, torch.Size]) -> TensorDict:
    """Return the TensorDict of leaves, with the batch sizes of `groups`: the inverse of `leaves_of`."""
    nested: dict[str, Any] = {}
    for key, leaf in leaves.items():
        if isinstance(key, str):
            nested[key] = leaf
            continue
        place = nested
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place[key[-1]] = leaf
    out = TensorDict(nested, batch_size=batch_size)
    set_group_sizes(out, groups)
    return out


Timed = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Wraps a function that is timed under a name; see `Clock.timed`."""


def _untimed(_: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class LeafLoop:
    """Loop over a `LeafEnv` that keeps the root of the next step; None stands for a reset.

    Args:
        env: Leaf form of the environment.
        rewards: Reward keys; they are written under ``next`` and not copied to the root.
        timed: Function that adds a clock to resets.
        action_keys: Action keys, if the other root entries of the policy are copied to the next root, as
            `rl.core.step_mdp` does; None for a policy of known inputs, which does not need them.
        done: Key of the flag of elements that are reset.
        reads_done: Whether to reset only after steps at which an element is done, which reads a value of the device. If
            false, every step resets, with a mask that may be empty.
    """

    def __init__(
        self,
        env: LeafEnv,
        rewards: Iterable[NestedKey],
        timed: Timed = _untimed,
        action_keys: Iterable[NestedKey] | None = None,
        done: NestedKey = DONE,
        *,
        reads_done: bool = True,
    ) -> None:
        self.root: Leaves | None = None
        self.reset = timed("env", env.reset_leaves)
        self._rewards, self._done = list(rewards), done
        self._action_keys = None if action_keys is None else list(action_keys)
        # reading one flag is eight times cheaper than a reduction
        self._any: Callable[[Tensor], Any] = _itself if env.batch_size.numel() == 1 else Tensor.any
        if not reads_done:
            self._any = _always

    def run(self, steps: int, act: LeafAct, step: LeafStep, roots: list[Leaves], nexts: list[Leaves]) -> None:
        """Take `steps` steps and append their entries to `roots` and `nexts`.

        Args:
            steps: Number of steps.
            act: Policy.
            step: Step of the environment.
            roots: List for one dict a step: observations, flags, policy outputs.
            nexts: List for one dict a step: entries under ``next``.
        """
        root = self.reset() if self.root is None else self.root
        self.root = None  # after an exception the environment is at an unknown step
        rewards, any_of, reset, action_keys, key_done = (
            self._rewards,
            self._any,
            self.reset,
            self._action_keys,
            self._done,
        )
        known, constants = list(root), None
        for _ in range(steps):
            extra = act(root)
            roots.append(root)
            nxt = step(root)
            if extra:
                nxt = {**extra, **nxt}
            nexts.append(nxt)
            if constants is None:  # entries that only a reset writes are constant
                kept = (
                    known
                    if action_keys is None
                    else [*known, *[key for key in root if key not in (*known, *action_keys)]]
                )
                constants = [key for key in kept if key not in nxt]
            following = nxt.copy()
            for key in rewards:
                del following[key]
            for key in constants:
                following[key] = root[key]
            done = nxt[key_done]
            if any_of(done):
                following.update(reset(following, done))
            root = following
        self.root = root


def _itself(done: Tensor) -> Tensor:
    return done


def _always(_: Tensor) -> bool:
    return True


def lowered_policy(module: LoweredModule, device: torch.device | None, env_device: torch.device) -> LeafAct:
    """Return a function that runs `module` on the leaves of the root.

    Args:
        module: TensorFunction policy.
        device: Device of the policy; None if it is that of the environment.
        env_device: Device of the environment.
    """
    call = getattr(module, "fn", module)  # saves one call a step
    reads, writes = list(module.in_keys), list(module.out_keys)
    if device is not None:
        call = _on_device(call, device, env_device)
    if any(_under_next(key) for key in writes):
        return _act_with_next(call, reads, writes)
    if len(reads) == 1:
        (only,) = reads

        def act_on_one(root: Leaves) -> None:
            root.update(zip(writes, call(root[only]), strict=True))

        return act_on_one

    def act(root: Leaves) -> None:
        root.update(zip(writes, call(*[root[key] for key in reads]), strict=True))

    return act


def _act_with_next(call: LoweredModule, reads: list[NestedKey], writes: list[NestedKey]) -> LeafAct:
    """Return a recurrent policy, which also writes under ``next``."""
    here = [(i, key) for i, key in enumerate(writes) if not _under_next(key)]
    there = [(i, unwrap(key[1:])) for i, key in enumerate(writes) if _under_next(key)]

    def act(root: Leaves) -> Leaves:
        out = call(*[root[key] for key in reads])
        for i, key in here:
            root[key] = out[i]
        return {key: out[i] for i, key in there}

    return act


def _under_next(key: NestedKey) -> bool:
    return isinstance(key, tuple) and key[0] == NEXT


def _on_device(call: LoweredModule, device: torch.device, env_device: torch.device) -> LoweredModule:
    def call_there(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple([out.to(env_device) for out in call(*[leaf.to(device) for leaf in leaves])])

    return call_there  # pyright: ignore[reportReturnType]  # only called; its keys are not read


def opaque_act(policy: Callable[..., Any], device: torch.device | None, env_device: torch.device) -> TensorDictAct:
    """Return the policy as a function that always returns the TensorDict with its outputs.

    Args:
        policy: Function of the root, which writes in place, or returns the result.
        device: Device of the policy; None if it is that of the environment.
        env_device: Device of the environment.
    """

    def act(td: TensorDictBase) -> TensorDictBase:
        out = policy(td)
        # a policy may return only its own entries
        return td if out is None or out is td else td.update(_check_output(out, policy))

    def act_elsewhere(td: TensorDictBase) -> TensorDictBase:
        there = td.to(device)
        before = leaves_of(there)
        out = policy(there)
        out = there if out is None else _check_output(out, policy)
        return td.update(out.exclude(*unchanged_leaves(before, leaves_of(out))).to(env_device))

    return act if device is None else act_elsewhere


def unchanged_leaves(before: Leaves, after: Leaves) -> set[NestedKey]:
    """Return the keys of new tensors that a function has neither replaced nor written in place.

    Args:
        before: Tensors that were created for the function.
        after: Tensors after its call.
    """
    kept = {key for key, leaf in before.items() if isinstance(leaf, Tensor) and after.get(key) is leaf}
    # tensors of inference mode do not count changes
    return {key for key in kept if not before[key].is_inference() and not before[key]._version}  # noqa: SLF001


def opaque_policy(act: TensorDictAct, batch_size: torch.Size, groups: Mapping[NestedKey, torch.Size]) -> LeafAct:
    """Return a function that wraps the root's leaves into a TensorDict and calls the policy.

    Args:
        act: Function that `opaque_act` returns.
        batch_size: Batch of the environment.
        groups: Batch sizes of groups.
    """

    def leaf_act(root: Leaves) -> Leaves | None:
        out = leaves_of(act(tensordict_of(root, batch_size, groups)))
        extra = {unwrap(key[1:]): out.pop(key) for key in list(out) if isinstance(key, tuple) and key[0] == NEXT}
        root.update(out)
        return extra or None

    return leaf_act


def _check_output(out: Any, policy: Any) -> TensorDictBase:
    if isinstance(out, TensorDictBase):
        return out
    raise ContractError(
        f"the policy ({type(policy).__name__}) returned {type(out).__name__}, expected a TensorDict with the action:"
        " wrap a network as TensorDictModule(network, in_keys=['observation'], out_keys=['action'])"
    )


class TensorDictLoop:
    """Loop over an `Env` that keeps the root of the next step.

    The environment may return the same buffers at every step, so each step is copied before the next one.

    Args:
        env: Environment of the protocol.
        groups: Batch sizes of groups.
    """

    def __init__(self, env: Env, groups: Mapping[NestedKey, torch.Size]) -> None:
        self._env, self._groups = env, groups
        self._td: TensorDictBase | None = None

    @property
    def root(self) -> Leaves | None:
        """Root of the next step; None for a reset."""
        return None if self._td is None else leaves_of(self._td)

    @root.setter
    def root(self, leaves: Leaves | None) -> None:
        self._td = None if leaves is None else tensordict_of(leaves, self._env.batch_size, self._groups)

    def run(
        self, steps: int, act: TensorDictAct, step: TensorDictStep, roots: list[Leaves], nexts: list[Leaves]
    ) -> None:
        """Take `steps` steps and append their entries to `roots` and `nexts`.

        Args:
            steps: Number of steps.
            act: Policy.
            step: Step of the environment, with the reset of done elements.
            roots: List for one dict a step: observations, flags, policy outputs.
            nexts: List for one dict a step: entries under ``next``.
        """
        td = self._env.reset() if self._td is None else self._td
        self._td = None  # after an exception the environment is at an unknown step
        for _ in range(steps):
            acted = act(td)
            roots.append(leaves_of(acted.exclude(NEXT).clone()))
            stepped, td = step(acted)
            nexts.append(leaves_of(stepped.get(NEXT).clone()))
        self._td = td


class _Steps(NamedTuple):
    """A chunk of steps.

    Args:
        roots: Entries of the steps.
        nexts: Entries under ``next``.
        last: Root of the step that follows.
    """

    roots: list[Leaves]
    nexts: list[Leaves]
    last: Leaves


class _Graph(NamedTuple):
    """A recorded chunk of steps.

    Args:
        inputs: Memory that the graph reads the first root from.
        steps: Memory that each replay overwrites.
        replay: Function that takes the steps.
    """

    inputs: Leaves
    steps: _Steps
    replay: Callable[[], None]


class RecordedLoop:
    """`LeafLoop` that replays chunks of steps from CUDA graphs: policy, environment and resets.

    A chunk of a length that comes for the first time is run step by step, on the stream of the recording, so that all
    kernels are loaded; from the second time on it is replayed. The results are those of `LeafLoop`. What Python does in
    a step happens only when it is recorded: counters of a policy or an environment that are no tensors stand still.

    Args:
        loop: The loop, with ``reads_done=False``.
        device: CUDA device of all entries.
        generators: Generators that the environment draws from, besides torch's own.
        who: Names of environment and policy, for messages.
    """

    def __init__(self, loop: LeafLoop, device: torch.device, generators: Iterable[torch.Generator], who: str) -> None:
        self._loop, self._device, self._who = loop, device, who
        self._generators = tuple(generators)
        self._stream: Any = None
        self._seen: set[tuple[LeafAct, int]] = set()
        self._graphs: dict[tuple[LeafAct, int], _Graph] = {}

    @property
    def root(self) -> Leaves | None:
        """Root of the next step; None for a reset."""
        return self._loop.root

    @root.setter
    def root(self, leaves: Leaves | None) -> None:
        self._loop.root = leaves

    def run(self, steps: int, act: LeafAct, step: LeafStep, roots: list[Leaves], nexts: list[Leaves]) -> None:
        """Take `steps` steps and append their entries to `roots` and `nexts`; the next call overwrites them.

        Args:
            steps: Number of steps.
            act: Policy.
            step: Step of the environment.
            roots: List for one dict a step: observations, flags, policy outputs.
            nexts: List for one dict a step: entries under ``next``.

        Raises:
            BackendError: If the steps cannot be recorded.
        """
        key, root = (act, steps), self._loop.root
        if root is None or key not in self._seen:  # a reset of all elements is not part of a recording
            if root is not None:
                self._seen.add(key)
            self._aside(lambda: self._loop.run(steps, act, step, roots, nexts))
            return
        if key not in self._graphs:
            self._graphs[key] = self._record(root, steps, act, step)
        graph = self._graphs[key]
        check_keys(graph.inputs, root, "Collector(cudagraph=True)")
        write_leaves(graph.inputs, root, "Collector(cudagraph=True)")
        self._loop.root = None  # after an exception the environment is at an unknown step
        graph.replay()
        roots.extend(graph.steps.roots)
        nexts.extend(graph.steps.nexts)
        self._loop.root = {name: leaf.clone() for name, leaf in graph.steps.last.items()}

    def _record(self, root: Leaves, steps: int, act: LeafAct, step: LeafStep) -> _Graph:
        inputs = {name: leaf.clone() for name, leaf in root.items()}

        def take() -> _Steps:
            roots: list[Leaves] = []
            nexts: list[Leaves] = []
            self._loop.root = inputs.copy()
            self._loop.run(steps, act, step, roots, nexts)
            assert self._loop.root is not None
            return _Steps(roots, nexts, self._loop.root)

        try:
            recorded, replay = record(take, self._device, self._generators)
        except RuntimeError as error:
            raise BackendError(
                f"the steps of {self._who} cannot be recorded in a CUDA graph ({_first_line(error)}): one of the two"
                " reads a value of the device, or draws from a generator that the environment's `generators` do not"
                " list; use cudagraph=False, or cudagraph_policy=True if it is the environment"
            ) from error
        return _Graph(inputs, recorded, replay)

    def _aside(self, call: Callable[[], None]) -> None:
        """Call on a stream of the loop's own, ordered with the current one."""
        if self._device.type != "cuda":
            call()
            return
        here = torch.cuda.current_stream(self._device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            call()
        here.wait_stream(self._stream)


def record(
    call: Callable[[], _Steps], device: torch.device, generators: Iterable[torch.Generator]
) -> tuple[_Steps, Callable[[], None]]:
    """Record what a call launches, without running it.

    Args:
        call: Function that launches work on the device alone.
        device: The device.
        generators: Generators that it draws from, besides torch's own.

    Returns:
        The result of the call, memory without its values, and a function that computes them.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = call()
    return result, graph.replay


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
