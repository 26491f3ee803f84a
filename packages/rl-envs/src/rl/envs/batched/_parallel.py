"""`ParallelEnv`: environments in worker processes, as one."""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from itertools import pairwise
from threading import RLock
from typing import Any, TypeVar, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl.core.arguments import as_integer, constructor_setting, foreign_arguments
from rl.core.errors import CheckpointError, RLError, SpecError
from rl.core.interfaces import Env, LeafEnv, Leaves
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs import Composite
from rl.core.workers import SharedLeaves, ThreadGroup, Undivided, WorkerGroup, layout_of, write_leaves
from rl.envs.base._base import PUBLIC_FORM, EnvBase
from rl.envs.base._leaf import LeafCalls, LeafForm
from rl.envs.base._specs import leaf_keys, mask_shapes
from rl.envs.batched._chunk import (
    CALLABLE,
    HELD,
    INPUT,
    LEGAL,
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
from rl.envs.batched._members import (
    MembersBase,
    MemberView,
    check_same_keys,
    common_device,
    join_specs,
    makers_of,
    view_of,
)

Group = WorkerGroup | ThreadGroup
F = TypeVar("F", bound=Callable[..., Any])


def allow_one_thread(method: F) -> F:
    """Decorate a method of a `WorkersEnv` to reject a call while another thread is in such a method.

    Raises:
        RLError: then, when it is called.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        taken = False
        try:
            with Undivided():
                taken = self._lock.acquire(blocking=False)
            if not taken:
                raise RLError(
                    f"{type(self).__name__} is in use by another thread: give each thread an environment of its own"
                )
            return method(self, *args, **kwargs)
        finally:
            if taken:
                self._lock.release()

    return cast("F", call)


class WorkersEnv(MembersBase):
    """Environments in workers, as one, with resets and steps of all of them.

    Args:
        makers: Functions that create the environments.
        edges: Number of the first environment of each worker, and the number of all.
        group: Function that creates the workers from functions that create their handlers.
        shared_memory: Whether to exchange data in shared memory.
        device: Device of the results; that of the environments if None.
        roots: Whether the shared memory has a part for the root after a step and the resets that follow it.
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
        self._starts, self._lock = list(edges), RLock()
        shared = SharedLeaves() if shared_memory else None
        try:
            self._workers = group([partial(Chunk, makers[a:b], a, shared) for a, b in pairwise(edges)])
            found = dict(zip(edges, self._workers.call_all("describe"), strict=False))
            kinds = {start + i: kind for start, part in found.items() for i, kind in enumerate(part)}
            joined, differ = join_specs([*kinds.values()], [*kinds], owner)
            if not differ:
                self._set_up(len(makers), joined, shared, device, roots=roots)
            elif self._same_form:
                raise SpecError(f"{owner}: {differ}")
            else:
                self._set_up_different(len(makers), kinds, differ, device)
        except BaseException:
            if "_workers" in vars(self):
                self._workers.close()
            raise
        finally:
            if shared is not None:
                shared.close()

    _same_form = True
    """Whether environments whose specs differ are rejected."""

    def _start(self, count: int, first: Mapping[str, Any], name: str, device: Any) -> None:
        EnvBase.__init__(self, batch_size=(count, *first["batch_size"]), device=device)
        self._num_workers, self._name = count, name
        self._options: Mapping[str, Any] | None = None  # of the reset that is running
        self._in: Leaves = {}
        self._legal: Leaves = {}
        self._pending: tuple[int, list[int]] | None = None  # of `async_step_send`
        self._unsettled = False  # whether workers may still execute what an interrupted call has sent
        self._lost: set[int] = set()  # environments at an unknown step, which begin with a reset

    def _set_up_different(self, count: int, kinds: Mapping[int, Mapping[str, Any]], differ: str, device: Any) -> None:
        names = ", ".join(dict.fromkeys(kind["name"] for kind in kinds.values()))
        device = common_device(kinds.values(), type(self).__name__) if device is None else device
        self._start(count, kinds[0], names, device)
        self._leaf = False
        self._masks_of_members: list[Leaves] = [{} for _ in range(count)]
        starts = [*kinds]  # of environments of the same form in one worker there is one description
        members = [MemberView(self, number, kinds[starts[bisect(starts, number) - 1]]) for number in range(count)]
        self._rl.stack_members(members, differ)

    def _set_up(
        self, count: int, first: Mapping[str, Any], shared: SharedLeaves | None, device: Any, *, roots: bool
    ) -> None:
        specs: dict[str, Composite] = first["specs"]
        owner = type(self).__name__
        self._start(count, first, first["name"], device)
        self.observation_spec, self.action_spec = specs["observation"], specs["action"]
        self.reward_spec, self.done_spec, self.state_spec = specs["reward"], specs["done"], specs["state"]
        self._leaf = first["leaf"] and shared is not None
        self._rl.legal_actions = WorkersEnv._legal_actions
        shapes = mask_shapes(self.full_action_spec)
        if shared is None:
            self._legal = {key: torch.zeros(shape, dtype=torch.bool) for key, shape in shapes.items()}
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
            **_part(LEGAL, {key: (shape, torch.bool) for key, shape in shapes.items()}),
        }
        if roots:
            rewards = set(self.reward_keys)
            outcome = {key: spec for key, spec in results.items() if key not in rewards}
            layout |= _part(ROOT, layout_of(outcome, owner))
        mapped = shared.map(layout)
        self._workers.call_all("map", layout)
        parts: dict[str, Leaves] = {part: {} for part in (INPUT, OUTPUT, MASK, HELD, ROOT, LEGAL)}
        for (part, *key), leaf in mapped.items():
            parts[part][unwrap(tuple(key))] = leaf
        self._in, self._out, self._masks, self._roots = parts[INPUT], parts[OUTPUT], parts[MASK], parts[ROOT]
        self._held, self._legal = parts[HELD]["_step"], parts[LEGAL]
        self._written: dict[bool, list[NestedKey]] = {}  # keys of a step, and of a reset
        self._asked: dict[bool, set[int]] = {True: set(), False: set()}  # workers that agree on them

    # ---- steps and resets

    @allow_one_thread
    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        if not self._in or self._options is not None:
            self._check_reset(tensordict)
            return self._joined("reset", [(part, False, self._options) for part in self._split(tensordict)])
        masks = {} if tensordict is None else {key: tensordict.get(key) for key in leaf_keys(tensordict)}
        return self._rl.tensordict(self._reset_masked(masks))

    @allow_one_thread
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self._in:
            self._idle()
            self._check_known(range(len(self)))
            return self._joined("step", [(part,) for part in self._split(tensordict.exclude("next"))])
        return self._rl.tensordict(self._receive(*self._send_step(tensordict)))

    def _send_step(self, root: Any) -> tuple[int, list[int]]:
        self._idle()
        self._check_known(range(len(self)))
        write_leaves(self._in, root, f"{type(self).__name__}.step")
        held = root.get("_step", None) if isinstance(root, TensorDictBase) else root.get("_step")
        if held is None:
            return self._send(STEP, range(len(self._workers)))
        self._held.copy_(held.reshape(self._held.shape))
        return self._send(STEP_ROWS, self._touched(self._held))

    @allow_one_thread
    def _reset_masked(self, masks: Mapping[NestedKey, Tensor]) -> Leaves:
        self._check_reset(masks)
        if not masks:
            return self._receive(*self._send(RESET, range(len(self._workers))))
        write_leaves(self._masks, self._all_masks(masks), f"{type(self).__name__}.reset")
        return self._receive(*self._send(RESET_ROWS, self._touched(self._masks["_reset"])))

    def _all_masks(self, masks: Any) -> Leaves:
        """Masks of a reset, with that of the root for groups that have none of their own."""
        found: Leaves = {key: mask for key in self._masks if (mask := masks.get(key, None)) is not None}
        root = found.get("_reset")
        if root is None:
            return found
        for key, place in self._masks.items():
            if key not in found:
                sizes, inner = root.shape[:-1], place.shape[root.ndim - 1 :]
                found[key] = root.reshape(*sizes, *[1] * len(inner)).expand(*sizes, *inner)
        return found

    def _touched(self, mask: Tensor) -> list[int]:
        """Workers with an environment in the mask."""
        rows = mask.reshape(self.batch_size[0], -1).any(1).tolist()
        return [i for i, a in enumerate(self._starts[:-1]) if any(rows[a : self._starts[i + 1]])]

    def _send(self, command: int, workers: Iterable[int]) -> tuple[int, list[int]]:
        group, sent = self._idle(), list(workers)
        self._begin()
        for index in sent:
            group.send(index, command)
        return command, sent

    def _idle(self) -> Group:
        """Return the workers, none of which is executing a command.

        Raises:
            RLError: If one is.
        """
        if self._pending is not None:
            raise RLError(f"{type(self).__name__} is in the middle of a step: call async_step_recv first")
        if self._unsettled:
            self._workers.settle()
            self._unsettled = False
        return self._workers

    def _receive(self, command: int, sent: list[int]) -> Leaves:
        self._workers.wait(sent)
        keys = self._keys(sent, step=command in (STEP, STEP_ROWS))
        if self.device is None:
            found = {key: self._out[key].clone() for key in keys}
        else:
            found = {key: self._out[key].to(self.device, copy=True) for key in keys}
        self._end()
        return found

    def _legal_actions(self) -> Leaves:
        found: Leaves = {}
        for key, legal in self._legal.items():
            masked = legal.any(-1, keepdim=True)
            if bool(masked.any()):
                found[key] = legal | ~masked
        return found

    def _keep_legal(self, found: Any, rows: Any = slice(None)) -> Any:
        """Keep the masks of legal actions of a result, and remove them from it."""
        masks: Any = found.pop(LEGAL) if self._legal else {}
        for key, place in self._legal.items():
            place[rows] = masks.get(key)
        return found

    # ---- interrupts

    def _begin(self) -> None:
        """Note that all environments change: until `_end`, who is interrupted does not know how far they came."""
        self._unsettled, self._lost = True, {*range(len(self))}

    def _end(self) -> None:
        self._unsettled, self._lost = False, set()

    def _check_known(self, numbers: Iterable[int]) -> None:
        """Raise if one of the environments is at an unknown step.

        Raises:
            RLError: If a step or reset of it was interrupted, or failed.
            WorkerError: If its process has ended.
        """
        lost = self._lost.intersection(numbers)
        if lost:
            for error in self._workers.lost.values():
                raise error.with_traceback(None)
            raise RLError(
                f"{type(self).__name__}: the last step or reset of environment {', '.join(map(str, sorted(lost)))} was"
                " interrupted or failed, and it may have moved on. Call reset() first"
            )

    def _check_reset(self, masks: Any) -> None:
        """Raise if one of the environments that are not reset is at an unknown step."""
        self._idle()
        if self._lost:
            mask = None if masks is None else masks.get("_reset", None)
            kept = [] if mask is None else (~mask.reshape(len(self), -1).any(1)).nonzero().flatten().tolist()
            self._check_known(kept)

    def _keys(self, workers: Sequence[int], *, step: bool) -> list[NestedKey]:
        """Keys that a step or reset writes, the same in all workers; those of state entries may be missing."""
        asked = self._asked[step]
        for worker in workers:
            if worker not in asked:
                written: set[NestedKey] = self._workers.call(worker, "written_keys", step)
                keys = self._written.setdefault(step, [key for key in self._out if key in written])
                method = "step" if step else "reset"
                check_same_keys(keys, written, self._starts[worker], method, type(self).__name__)
                asked.add(worker)
        rewards = () if step else self.reward_keys
        return self._written[step] if asked else [key for key in self._out if key not in rewards]

    # ---- messages

    @allow_one_thread
    def _run_members(
        self,
        method: str,
        parts: Mapping[int, Any],
        *,
        set_state: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> dict[int, TensorDictBase]:
        group = self._idle()
        if self._lost:
            whole = {number for number, part in parts.items() if method == "reset" and _resets_all(part)}
            self._check_known(parts if method == "step" else {*range(len(self))} - whole)
        jobs: dict[int, dict[int, Any]] = {}
        for number, part in parts.items():
            index = bisect(self._starts, number) - 1
            sent = None if part is None else part.exclude("next")
            jobs.setdefault(index, {})[number - self._starts[index]] = sent
        self._unsettled = True
        self._lost.update(parts)
        options = self._options if options is None else options
        try:
            for index, job in jobs.items():
                group.request(index, "run_members", method, job, set_state, options)
            found = {index: group.result(index) for index in jobs}
        except BaseException:
            group.drop(jobs)  # the results of the others belong to this call
            raise
        self._unsettled = False
        self._lost.difference_update(parts)
        rows: dict[int, TensorDictBase] = {}
        for index, answers in found.items():
            for place, (row, masks) in answers.items():
                number = self._starts[index] + place
                rows[number] = row if self.device is None else row.to(self.device)
                self._masks_of_members[number] = masks
                self._rl.members[number].update_masks()
        return rows

    def _member_masks(self, number: int) -> Leaves:
        return self._masks_of_members[number]

    @allow_one_thread
    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._check_reset(tensordict)
        return self._joined("reset", [(part, True, self._options) for part in self._split(tensordict)])

    def _set_options(self, options: Mapping[str, Any] | None) -> None:
        self._options = options

    def _split(self, tensordict: TensorDictBase | None) -> list[TensorDictBase | None]:
        """Return the part of each worker."""
        return [None if tensordict is None else tensordict[a:b] for a, b in pairwise(self._starts)]

    def _joined(self, method: str, arguments: list[tuple[Any, ...]]) -> TensorDictBase:
        group = self._idle()
        self._begin()
        out: Any = self._keep_legal(torch.cat(group.call_each(method, arguments)))
        self._end()
        return out if self.device is None else out.to(self.device)

    def _member_numbers(self) -> Iterable[int]:
        return range(len(self))

    @allow_one_thread
    def set_member_seed(self, number: int, seed: int, *, static_seed: bool = False) -> int:
        """Seed one environment; return the seed for the next one."""
        index = bisect(self._starts, number) - 1
        return self._idle().call(index, "set_seed", number - self._starts[index], seed, static_seed)

    @allow_one_thread
    def state_dict(self) -> dict[str, Any]:
        """Return the states of the environments."""
        parts = self._idle().call_all("state_dict")
        envs = [one for part in parts for one in part["envs"]]
        roots = _joined_roots([part["root"] for part in parts], [b - a for a, b in pairwise(self._starts)])
        return {"restorable": all(one.get("restorable", False) for one in envs), "envs": envs, "root": roots}

    @allow_one_thread
    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`.

        Raises:
            CheckpointError: If the number of environments differs.
        """
        envs, root = state.get("envs", []), state.get("root", {})
        if len(envs) != self.batch_size[0]:
            raise CheckpointError(
                f"{type(self).__name__} has {self.batch_size[0]} environments, the state has {len(envs)}"
            )
        exact: list[bool] = []
        self._idle()
        self._lost = {*range(len(self))}
        for index, (a, b) in enumerate(pairwise(self._starts)):
            part: Any = {"envs": envs[a:b], "root": {key: leaf[a:b].clone() for key, leaf in root.items()}}
            # A process that was forked cannot receive tensors of a CUDA device.
            exact.append(self._idle().call(index, "load_state_dict", tree_map_only(Tensor, Tensor.cpu, part)))
        self._lost = set()
        return all(exact)

    # ---- environments

    def __len__(self) -> int:
        return self.batch_size[0]

    def __getattr__(self, name: str) -> Any:
        workers = vars(self).get("_workers")
        if name.startswith("_") or workers is None or not len(workers):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        found = self._attribute(name)
        if MISSING in found:
            raise AttributeError(
                f"neither {type(self).__name__} nor {self._name} has an attribute {name!r}", name=name, obj=self
            )
        if CALLABLE in found:
            return partial(self._run, name)
        return [value for part in found for value in part]

    def _set_inside(self, name: str, value: Any) -> bool:
        answers: list[str] = [MISSING] if self.is_closed else self._assign(name, value)
        for answer in answers:
            if answer not in ("", MISSING):
                raise AttributeError(answer)
        return MISSING not in answers

    @allow_one_thread
    def _assign(self, name: str, value: Any) -> list[str]:
        return self._idle().call_all("assign", name, value)

    @allow_one_thread
    def _attribute(self, name: str) -> list[Any]:
        return self._idle().call_all("attribute", name)

    @allow_one_thread
    def _run(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [value for part in self._idle().call_all("run", name, args, kwargs) for value in part]

    def __getstate__(self) -> dict[str, Any]:
        raise RLError(
            f"{type(self).__name__} has workers and cannot be copied or pickled: pass the function that creates it"
        )

    def _close(self) -> None:
        self._workers.close()


def _resets_all(part: Any) -> bool:
    """Whether a reset with these root entries resets every element."""
    masks = [] if part is None else [part.get(key) for key in leaf_keys(part) if as_tuple(key)[-1] == "_reset"]
    return all(bool(mask.all()) for mask in masks)


def _by_key(spec: Composite) -> dict[NestedKey, Any]:
    return {key: spec[key] for key in leaf_keys(spec)}


def _part(name: str, layout: Mapping[NestedKey, Any]) -> dict[NestedKey, Any]:
    """Return a layout with `name` in front of every key."""
    return {(name, *as_tuple(key)): place for key, place in layout.items()}


def _joined_roots(parts: Sequence[Leaves], rows: Sequence[int]) -> Leaves:
    """Root entries of all workers; zeros for the rows of a worker whose last reset did not write a state entry."""
    first = {key: leaf for part in reversed(parts) for key, leaf in part.items()}
    return {
        key: torch.cat(
            [
                part[key] if key in part else leaf.new_zeros((n, *leaf.shape[1:]))
                for part, n in zip(parts, rows, strict=True)
            ]
        )
        for key, leaf in first.items()
    }


@foreign_arguments()
class ParallelEnv(WorkersEnv, final=("_reset", "_step", *PUBLIC_FORM)):
    """Environments in worker processes, stepped at the same time.

    Its batch is ``[num_workers, *B]``, where ``[*B]`` is that of each environment. Each process steps its share of
    the environments one after the other, as a `SerialEnv`. Actions and results are in shared memory; a step costs one
    byte for each process and direction. The results equal those of a `SerialEnv` with the same seed, also where they
    are lazy stacks, because the specs of the environments differ; these are exchanged in messages.

    An attribute that this class does not have is read from every environment: ``env.name`` is a list, and
    ``env.method(...)`` calls the method of each and returns a list. ``env[2:]`` is a view of some environments.

    Args:
        num_workers: Number of environments.
        create_env_fn: Function that makes one environment, called `num_workers` times in the workers; or a list of such
            functions.
        create_env_kwargs: Arguments of the function, or a list of them.
        processes: Worker processes; None for the number of cores, at most `num_workers`.
        shared_memory: Whether to exchange data in shared memory. If false it is pickled, which also allows entries that
            are no tensors, such as strings.
        mp_start_method: Start method of the processes: ``fork``, ``spawn`` or ``forkserver``; fork where there is one
            if None. With the others the functions are pickled, and a script guards its top level with ``if __name__ ==
            "__main__"``.
        num_threads: Threads of torch in each worker.
        daemon: Whether the workers are daemonic: they end with this process, and have no processes of their own other
            than those of environments such as this one.
        timeout: Seconds after which a step or reset that has not returned is an error; None for no limit.
        shutdown_timeout: Seconds after which `close` kills the workers.
        device: Device of the results; that of the environments if None.

    Raises:
        ArgumentError: If the number of functions is another.
        SpecError: If the batch sizes of two environments differ, or entries are no tensors and `shared_memory` is true.
        WorkerError: If an environment cannot be created; and by every method if a worker fails or has ended.

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
        makers = makers_of(num_workers, create_env_fn, create_env_kwargs, "ParallelEnv")
        most = cores() if processes is None else as_integer(processes, "ParallelEnv", "processes", 1)
        count = min(most, len(makers))
        group = partial(
            WorkerGroup,
            owner="ParallelEnv",
            start_method=mp_start_method,
            daemon=daemon,
            num_threads=num_threads,
            timeout=timeout,
            shutdown_timeout=shutdown_timeout,
        )
        edges = [len(makers) * i // count for i in range(count + 1)]
        self._timeout, self._num_threads, self._daemon = timeout, num_threads, daemon
        self._shared_memory, self._mp_start_method = shared_memory, mp_start_method
        super().__init__(makers, edges, group, shared_memory=shared_memory, device=device)

    timeout: float | None = constructor_setting("_timeout")
    """Seconds after which a step or reset that has not returned is an error."""
    num_threads: int = constructor_setting("_num_threads")
    """Threads of torch in each worker."""
    daemon: bool = constructor_setting("_daemon")
    """Whether the workers are daemonic."""
    shared_memory: bool = constructor_setting("_shared_memory")
    """Whether data is exchanged in shared memory."""
    mp_start_method: str | None = constructor_setting("_mp_start_method")
    """Start method of the processes; the default one if None."""

    _same_form = False

    def lowered(self) -> LeafEnv | None:
        if not self._leaf:
            return None

        def reset(mask: Tensor | None) -> Leaves:
            return self._reset_masked({} if mask is None else {"_reset": mask})

        return LeafForm(self, LeafCalls(reset, self._step_leaves))

    @allow_one_thread
    def _step_leaves(self, root: Leaves) -> Leaves:
        return self._receive(*self._send_step(root))

    @allow_one_thread
    def async_step_send(self, tensordict: TensorDictBase) -> None:
        """Begin a step; `async_step_recv` returns its outcome. In between no other method may be called.

        Args:
            tensordict: Root entries with the action.

        Raises:
            RLError: If a step is running, or the data is not in shared memory.
        """
        self._rl.check_open()
        if not self._in:
            raise RLError(
                "ParallelEnv.async_step_send needs shared memory: create it with shared_memory=True, of environments"
                " whose specs do not differ"
            )
        self._pending = self._send_step(tensordict)

    @allow_one_thread
    def async_step_recv(self) -> TensorDictBase:
        """Wait for the step that `async_step_send` began; return the entries under ``next``."""
        if self._pending is None:
            raise RLError("ParallelEnv.async_step_recv was called without async_step_send: send a step first")
        sent, self._pending = self._pending, None
        found = self._rl.flags.complete(self._rl.tensordict(self._receive(*sent)), self.full_done_spec, "ParallelEnv")
        self._rl.update_masks(self, look=False)
        return found

    def share_memory(self) -> ParallelEnv:
        """Return the environment, whose data is in shared memory already.

        Raises:
            RLError: If it is not.
        """
        if not self._in:
            raise RLError(
                "this ParallelEnv exchanges messages: create it with shared_memory=True, of environments whose specs do"
                " not differ"
            )
        return self

    def __getitem__(self, index: Any) -> EnvBase:
        """Return a view of some environments."""
        return view_of(self, index)

    def __repr__(self) -> str:
        return f"ParallelEnv(num_workers={self.batch_size[0]}, processes={len(self._starts) - 1}, env={self._name})"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
