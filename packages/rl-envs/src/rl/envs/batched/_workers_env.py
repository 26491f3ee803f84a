"""What `ParallelEnv` and `AsyncEnvPool` have in common."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl.core.errors import CheckpointError, RLError
from rl.core.interfaces import Env, Leaves
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs import Composite
from rl.core.workers import SharedLeaves, ThreadGroup, WorkerGroup, layout_of
from rl.envs.base._base import EnvBase
from rl.envs.base._specs import leaf_keys
from rl.envs.batched._chunk import (
    CALLABLE,
    HELD,
    INPUT,
    MASK,
    MISSING,
    OUTPUT,
    RESET,
    RESET_ROWS,
    ROOT,
    STEP,
    STEP_ROWS,
    Chunk,
)
from rl.envs.batched._members import check_equal

__all__ = ["WorkersEnv"]

Group = WorkerGroup | ThreadGroup


class WorkersEnv(EnvBase):
    """Environments in workers, as one, with resets and steps of all of them.

    Args:
        makers: functions that make the environments.
        edges: number of the first environment of each worker, and the number of all.
        group: makes the workers from functions that make their handlers.
        shared_memory: exchange data in shared memory.
        device: device of the results; that of the environments if None.
        roots: whether the shared memory has a part for the root after a step and the resets that follow it.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Env]],
        edges: Sequence[int],
        group: Callable[[Sequence[Callable[[], Chunk]]], Group],
        *,
        shared_memory: bool,
        device: torch.device | str | int | None = None,
        roots: bool = False,
    ) -> None:
        owner = type(self).__name__
        self._starts = list(edges)
        shared = SharedLeaves() if shared_memory else None
        try:
            self._workers = group([partial(Chunk, makers[a:b], a, shared) for a, b in pairwise(edges)])
            found = self._workers.call_all("describe")
            for start, other in zip(edges[1:], found[1:], strict=False):
                check_equal(found[0], other, start, owner)
            self._set_up(len(makers), found[0], shared, device, roots=roots)
        except BaseException:
            if "_workers" in vars(self):
                self._workers.close()
            raise
        finally:
            if shared is not None:
                shared.close()

    def _set_up(
        self, count: int, first: Mapping[str, Any], shared: SharedLeaves | None, device: Any, *, roots: bool
    ) -> None:
        specs: dict[str, Composite] = first["specs"]
        owner = type(self).__name__
        EnvBase.__init__(self, batch_size=(count, *first["batch_size"]), device=device)
        self.observation_spec, self.action_spec = specs["observation"], specs["action"]
        self.reward_spec, self.done_spec, self.state_spec = specs["reward"], specs["done"], specs["state"]
        self._name, self._leaf = first["name"], first["leaf"] and shared is not None
        self._in: Leaves = {}
        self._pending: tuple[int, list[int]] | None = None
        if shared is None:
            return
        inputs = {**_by_key(self.full_action_spec), **_by_key(self.full_state_spec)}
        results = {**_by_key(self.full_state_spec), **_by_key(self.observation_spec), **_by_key(self.full_done_spec)}
        results |= _by_key(self.full_reward_spec)
        masks = {
            key: self.full_done_spec[done] for key, done in zip(self.reset_keys, self._rl.flags.done_keys, strict=True)
        }
        flag = ((*self.batch_size, 1), torch.bool)
        layout = {
            **_part(INPUT, layout_of(inputs, owner)),
            **_part(OUTPUT, layout_of(results, owner)),
            **_part(MASK, {"_reset": flag, **layout_of(masks, owner)}),
            **_part(HELD, {"_step": flag}),
        }
        if roots:
            rewards = set(self.reward_keys)
            outcome = {key: spec for key, spec in results.items() if key not in rewards}
            layout |= _part(ROOT, layout_of(outcome, owner))
        mapped = shared.map(layout)
        self._workers.call_all("map", layout)
        parts: dict[str, Leaves] = {part: {} for part in (INPUT, OUTPUT, MASK, HELD, ROOT)}
        for (part, *key), leaf in mapped.items():
            parts[part][unwrap(tuple(key))] = leaf
        self._in, self._out, self._masks, self._roots = parts[INPUT], parts[OUTPUT], parts[MASK], parts[ROOT]
        self._held = parts[HELD]["_step"]
        self._written: dict[bool, list[NestedKey]] = {}

    # ---- steps and resets

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        if not self._in:
            parts = self._split(tensordict)
            return self._joined("reset", [(part, False) for part in parts])
        masks = {} if tensordict is None else {key: tensordict.get(key) for key in leaf_keys(tensordict)}
        return self._tensordict(self._reset_masked(masks))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._in:
            return self._joined("step", [(part,) for part in self._split(tensordict.exclude("next"))])
        self._send_step(tensordict)
        return self._tensordict(self._receive())

    def _send_step(self, root: Any) -> None:
        for key, place in self._in.items():
            leaf = root.get(key)
            if leaf is not None:
                place.copy_(leaf)
        held = root.get("_step", None) if isinstance(root, TensorDictBase) else root.get("_step")
        if held is None:
            self._send(STEP, range(len(self._workers)))
        else:
            self._held.copy_(held.reshape(self._held.shape))
            self._send(STEP_ROWS, self._touched(self._held))

    def _reset_masked(self, masks: Mapping[NestedKey, Tensor]) -> Leaves:
        if not masks:
            self._send(RESET, range(len(self._workers)))
            return self._receive()
        for key, mask in masks.items():
            self._masks[key].copy_(mask)
        self._send(RESET_ROWS, self._touched(self._masks["_reset"]))
        return self._receive()

    def _touched(self, mask: Tensor) -> list[int]:
        """Workers with an environment in the mask."""
        rows = mask.reshape(self.batch_size[0], -1).any(1).tolist()
        return [i for i, a in enumerate(self._starts[:-1]) if any(rows[a : self._starts[i + 1]])]

    def _send(self, command: int, workers: Iterable[int]) -> None:
        group, sent = self._idle(), list(workers)
        self._pending = (command, sent)
        for index in sent:
            group.send(index, command)

    def _idle(self) -> Group:
        """The workers, none of which is executing a command.

        Raises:
            RLError: if one is.
        """
        if self._pending is not None:
            raise RLError(f"{type(self).__name__} is in the middle of a step: call async_step_recv first")
        return self._workers

    def _receive(self) -> Leaves:
        assert self._pending is not None
        (command, sent), self._pending = self._pending, None
        self._workers.wait(sent)
        keys = self._keys(sent[0] if sent else None, step=command in (STEP, STEP_ROWS))
        if self.device is None:
            return {key: self._out[key].clone() for key in keys}
        return {key: self._out[key].to(self.device, copy=True) for key in keys}

    def _keys(self, worker: int | None, *, step: bool) -> list[NestedKey]:
        """Keys that a step or reset of a worker writes; those of state entries may be missing."""
        keys = self._written.get(step)
        if keys is None:
            written = set(self._out) if worker is None else self._workers.call(worker, "written")
            rewards = set(self.reward_keys)
            keys = [key for key in self._out if key in written and (step or key not in rewards)]
            if worker is not None:
                self._written[step] = keys
        return keys

    def _tensordict(self, leaves: Leaves) -> TensorDict:
        entries: Any = leaves
        return TensorDict(entries, batch_size=self.batch_size, device=self.device)

    # ---- messages

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._joined("reset", [(part, True) for part in self._split(tensordict)])

    def _split(self, tensordict: TensorDictBase | None) -> list[TensorDictBase | None]:
        """The part of each worker."""
        return [None if tensordict is None else tensordict[a:b] for a, b in pairwise(self._starts)]

    def _joined(self, method: str, arguments: list[tuple[Any, ...]]) -> TensorDictBase:
        out: Any = torch.cat(self._idle().call_each(method, arguments))
        return out if self.device is None else out.to(self.device)

    def set_seed(self, seed: int) -> int:
        """Seed each environment with the seed that the one before it returned."""
        for number in range(len(self)):
            seed = self.set_member_seed(number, seed)
        return seed

    def set_member_seed(self, number: int, seed: int) -> int:
        """Seed one environment; return the seed for the next one."""
        index = bisect(self._starts, number) - 1
        return self._idle().call(index, "set_seed", number - self._starts[index], seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the environments."""
        parts = self._idle().call_all("state_dict")
        envs = [one for part in parts for one in part["envs"]]
        roots = {key: torch.cat([part["root"][key] for part in parts]) for key in parts[0]["root"]}
        return {"restorable": all(one.get("restorable", False) for one in envs), "envs": envs, "root": roots}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`.

        Raises:
            CheckpointError: if the number of environments differs.
        """
        envs, root = state.get("envs", []), state.get("root", {})
        if len(envs) != self.batch_size[0]:
            raise CheckpointError(
                f"{type(self).__name__} has {self.batch_size[0]} environments, the state has {len(envs)}"
            )
        exact: list[bool] = []
        for index, (a, b) in enumerate(pairwise(self._starts)):
            part: Any = {"envs": envs[a:b], "root": {key: leaf[a:b].clone() for key, leaf in root.items()}}
            # A process that was forked cannot receive tensors of a CUDA device.
            exact.append(self._idle().call(index, "load_state_dict", tree_map_only(Tensor, Tensor.cpu, part)))
        return all(exact)

    # ---- environments

    def __len__(self) -> int:
        return self.batch_size[0]

    def __getattr__(self, name: str) -> Any:
        workers = vars(self).get("_workers")
        if name.startswith("_") or workers is None or not len(workers):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        found = self._idle().call_all("attribute", name)
        if MISSING in found:
            raise AttributeError(
                f"neither {type(self).__name__} nor {self._name} has an attribute {name!r}", name=name, obj=self
            )
        if CALLABLE in found:
            return partial(self._run, name)
        return [value for part in found for value in part]

    def _run(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [value for part in self._idle().call_all("run", name, args, kwargs) for value in part]

    def __getstate__(self) -> dict[str, Any]:
        raise RLError(
            f"{type(self).__name__} has workers and cannot be copied or pickled: pass the function that makes it"
        )

    def _close(self) -> None:
        self._workers.close()


def _by_key(spec: Composite) -> dict[NestedKey, Any]:
    return {key: spec[key] for key in leaf_keys(spec)}


def _part(name: str, layout: Mapping[NestedKey, Any]) -> dict[NestedKey, Any]:
    """A layout with `name` in front of every key."""
    return {(name, *as_tuple(key)): place for key, place in layout.items()}
