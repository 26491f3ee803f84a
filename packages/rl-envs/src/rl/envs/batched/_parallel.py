"""`ParallelEnv`: environments in worker processes, as one."""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import CheckpointError, RLError
from rl.core.interfaces import Env, LeafEnv, Leaves
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs import Composite
from rl.core.workers import SharedLeaves, WorkerGroup, layout_of
from rl.envs import _foreign
from rl.envs.base._base import PUBLIC_FORM, EnvBase
from rl.envs.base._leaf import LeafCalls, LeafForm
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
    STEP,
    STEP_ROWS,
    Chunk,
)
from rl.envs.batched._members import check_equal, makers_of
from rl.envs.batched._view import EnvView

__all__ = ["ParallelEnv"]


@_foreign.parallel_env
class ParallelEnv(EnvBase, final=("_reset", "_step", *PUBLIC_FORM)):
    """Environments with equal specs in worker processes, stepped at the same time.

    Its batch is ``[num_workers, *B]``, where ``[*B]`` is that of each environment. Each process steps its share of
    the environments one after the other, as a `SerialEnv`. Actions and results are in shared memory; a step costs one
    byte for each process and direction. The results equal those of a `SerialEnv` with the same seed.

    An attribute that this class does not have is read from every environment: ``env.name`` is a list, and
    ``env.method(...)`` calls the method of each and returns a list. ``env[2:]`` is a view of some environments.

    Args:
        num_workers: number of environments.
        create_env_fn: makes one environment, called `num_workers` times in the workers; or a list of such functions.
        create_env_kwargs: arguments of the function, or a list of them.
        processes: worker processes; None for the number of cores, at most `num_workers`.
        shared_memory: exchange data in shared memory. If false it is pickled, which also allows entries that are no
            tensors, such as strings.
        mp_start_method: ``fork``, ``spawn`` or ``forkserver``; fork where there is one if None. With the others the
            functions are pickled, and a script guards its top level with ``if __name__ == "__main__"``.
        num_threads: threads of torch in each worker.
        daemon: whether the workers are daemonic: they end with this process, and have no processes of their own.
        timeout: seconds after which a step or reset that has not returned is an error; None for no limit.
        shutdown_timeout: seconds after which `close` kills the workers.
        device: device of the results; that of the environments if None.

    Raises:
        SpecError: if the number of functions is another, the specs of two environments differ, or entries are no
            tensors and `shared_memory` is true.
        WorkerError: if an environment cannot be made; and by every method if a worker fails or has ended.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> env = ParallelEnv(4, PendulumEnv, processes=2)
        >>> env.rollout(3).batch_size
        torch.Size([4, 3])
        >>> env.close()
    """

    def __init__(  # noqa: PLR0913  # TorchRL's arguments
        self,
        num_workers: int,
        create_env_fn: Callable[..., Env] | Sequence[Callable[..., Env]],
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        processes: int | None = None,
        shared_memory: bool = True,
        mp_start_method: str | None = None,
        num_threads: int = 1,
        daemon: bool = True,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
        device: torch.device | str | int | None = None,
    ) -> None:
        makers = makers_of(num_workers, create_env_fn, create_env_kwargs, type(self).__name__)
        count = _cores() if processes is None else as_integer(processes, "ParallelEnv", "processes", 1)
        edges = [len(makers) * i // min(count, len(makers)) for i in range(min(count, len(makers)) + 1)]
        self._starts = edges
        shared = SharedLeaves() if shared_memory else None
        self._workers = WorkerGroup(
            [partial(Chunk, makers[a:b], a, shared) for a, b in pairwise(edges)],
            owner="ParallelEnv",
            start_method=mp_start_method,
            daemon=daemon,
            num_threads=num_threads,
            timeout=timeout,
            shutdown_timeout=shutdown_timeout,
        )
        try:
            found = self._workers.call_all("describe")
            for start, other in zip(edges[1:], found[1:], strict=False):
                check_equal(found[0], other, start, "ParallelEnv")
            self._set_up(len(makers), found[0], shared, device)
        except BaseException:
            self._workers.close()
            raise
        finally:
            if shared is not None:
                shared.close()

    def _set_up(self, count: int, first: Mapping[str, Any], shared: SharedLeaves | None, device: Any) -> None:
        specs: dict[str, Composite] = first["specs"]
        super().__init__(batch_size=(count, *first["batch_size"]), device=device)
        self.observation_spec, self.action_spec = specs["observation"], specs["action"]
        self.reward_spec, self.done_spec, self.state_spec = specs["reward"], specs["done"], specs["state"]
        self._name, self._leaf = first["name"], first["leaf"] and shared is not None
        self._in: Leaves = {}
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
            **_part(INPUT, layout_of(inputs, "ParallelEnv")),
            **_part(OUTPUT, layout_of(results, "ParallelEnv")),
            **_part(MASK, {"_reset": flag, **layout_of(masks, "ParallelEnv")}),
            **_part(HELD, {"_step": flag}),
        }
        mapped = shared.map(layout)
        self._workers.call_all("map", layout)
        parts: dict[str, Leaves] = {part: {} for part in (INPUT, OUTPUT, MASK, HELD)}
        for (part, *key), leaf in mapped.items():
            parts[part][unwrap(tuple(key))] = leaf
        self._in, self._out, self._masks = parts[INPUT], parts[OUTPUT], parts[MASK]
        self._held = parts[HELD]["_step"]
        self._written: dict[int, list[NestedKey]] = {}
        self._pending: tuple[int, list[int]] | None = None

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

    def lowered(self) -> LeafEnv | None:
        if not self._leaf:
            return None

        def reset(mask: Tensor | None) -> Leaves:
            return self._reset_masked({} if mask is None else {"_reset": mask})

        def step(root: Leaves) -> Leaves:
            self._send_step(root)
            return self._receive()

        return LeafForm(self, LeafCalls(reset, step))

    def async_step_send(self, tensordict: TensorDictBase) -> None:
        """Begin a step; `async_step_recv` returns its outcome. In between no other method may be called.

        Args:
            tensordict: root entries with the action.

        Raises:
            RLError: if a step is running, or the data is not in shared memory.
        """
        self._rl.check_open()
        if not self._in:
            raise RLError("ParallelEnv.async_step_send needs shared memory; make it with shared_memory=True")
        self._send_step(tensordict)

    def async_step_recv(self) -> TensorDictBase:
        """Wait for the step that `async_step_send` began; return the entries under ``next``."""
        if self._pending is None:
            raise RLError("ParallelEnv.async_step_recv was called without async_step_send: send a step first")
        return self._rl.flags.complete(self._tensordict(self._receive()), self.full_done_spec, "ParallelEnv")

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
        if self._pending is not None:
            raise RLError("ParallelEnv is in the middle of a step: call async_step_recv first")
        sent = list(workers)
        self._pending = (command, sent)
        for index in sent:
            self._workers.send(index, command)

    def _receive(self) -> Leaves:
        assert self._pending is not None
        (command, sent), self._pending = self._pending, None
        self._workers.wait(sent)
        kind = command in (STEP, STEP_ROWS)
        keys = self._written.get(kind)
        if keys is None:  # state entries may be missing
            written = self._workers.call(sent[0], "written") if sent else set(self._out)
            rewards = set(self.reward_keys)
            keys = [key for key in self._out if key in written and (kind or key not in rewards)]
            if sent:
                self._written[kind] = keys
        if self.device is None:
            return {key: self._out[key].clone() for key in keys}
        return {key: self._out[key].to(self.device, copy=True) for key in keys}

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
        for index, args in enumerate(arguments):
            self._workers.request(index, method, *args)
        parts = [self._workers.result(index) for index in range(len(arguments))]
        out: Any = torch.cat(parts)
        return out if self.device is None else out.to(self.device)

    def set_seed(self, seed: int) -> int:
        """Seed each environment with the seed that the one before it returned."""
        for number in range(len(self)):
            seed = self.set_member_seed(number, seed)
        return seed

    def set_member_seed(self, number: int, seed: int) -> int:
        """Seed one environment; return the seed for the next one."""
        index = bisect(self._starts, number) - 1
        return self._workers.call(index, "set_seed", number - self._starts[index], seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the environments."""
        parts = self._workers.call_all("state_dict")
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
            raise CheckpointError(f"ParallelEnv has {self.batch_size[0]} environments, the state has {len(envs)}")
        exact: list[bool] = []
        for index, (a, b) in enumerate(pairwise(self._starts)):
            part = {"envs": envs[a:b], "root": {key: leaf[a:b].clone() for key, leaf in root.items()}}
            exact.append(self._workers.call(index, "load_state_dict", part))
        return all(exact)

    # ---- environments

    def share_memory(self) -> ParallelEnv:
        """Return the environment, whose data is in shared memory already.

        Raises:
            RLError: if it is not.
        """
        if not self._in:
            raise RLError("this ParallelEnv was made with shared_memory=False; make it with shared_memory=True")
        return self

    def __getitem__(self, index: Any) -> EnvView:
        """A view of some environments."""
        return EnvView(self, index)

    def __len__(self) -> int:
        return self.batch_size[0]

    def __getattr__(self, name: str) -> Any:
        workers = vars(self).get("_workers")
        if name.startswith("_") or workers is None or not len(workers):
            raise AttributeError(f"ParallelEnv has no attribute {name!r}", name=name, obj=self)
        found = workers.call_all("attribute", name)
        if MISSING in found:
            raise AttributeError(f"neither ParallelEnv nor {self._name} has an attribute {name!r}", name=name, obj=self)
        if CALLABLE in found:
            return partial(self._run, name)
        return [value for part in found for value in part]

    def _run(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [value for part in self._workers.call_all("run", name, args, kwargs) for value in part]

    def __getstate__(self) -> dict[str, Any]:
        raise RLError(
            "a ParallelEnv has worker processes and cannot be copied or pickled: pass the function that makes it"
        )

    def _close(self) -> None:
        self._workers.close()

    def __repr__(self) -> str:
        return f"ParallelEnv(num_workers={self.batch_size[0]}, processes={len(self._starts) - 1}, env={self._name})"


def _by_key(spec: Composite) -> dict[NestedKey, Any]:
    return {key: spec[key] for key in leaf_keys(spec)}


def _part(name: str, layout: Mapping[NestedKey, Any]) -> dict[NestedKey, Any]:
    """A layout with `name` in front of every key."""
    return {(name, *as_tuple(key)): place for key, place in layout.items()}


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
