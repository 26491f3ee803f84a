"""`AsyncEnvPool`: environments that are stepped and reset independently of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Literal

import torch
from tensordict import TensorDict, TensorDictBase, lazy_stack
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments, one_of
from rl.core.errors import ArgumentError, ContractError, RLError, SpecError, WorkerError, WorkerTimeoutError
from rl.core.interfaces import Env
from rl.core.keys import NestedKey
from rl.core.specs import Categorical, set_group_sizes
from rl.core.workers import ThreadGroup, Undivided, WorkerGroup, write_leaves
from rl.envs.base._base import PUBLIC_FORM
from rl.envs.base._checks import check_action
from rl.envs.batched._chunk import RESET, RESET_ROWS, STEP, STEP_AND_RESET
from rl.envs.batched._members import makers_of
from rl.envs.batched._parallel import Group, WorkersEnv, allow_one_thread

_MESSAGES = {STEP: "step", RESET: "reset", STEP_AND_RESET: "step_and_maybe_reset"}
_NAMES = {STEP: "async_step", RESET: "async_reset", STEP_AND_RESET: "async_step_and_maybe_reset"}


@foreign_arguments()
class AsyncEnvPool(WorkersEnv, final=("_reset", "_step", *PUBLIC_FORM)):
    """Environments in workers of their own that are stepped independently of each other.

    Their specs are of the same form (see `SerialEnv`).
    A ``send`` method starts environments and returns at once; the ``recv`` method of the same name waits until
    `min_get` of them have answered, and returns these, in the order of their indices. The entry ``env_index`` (int64
    ``[n, *B]``) says which environment a row belongs to. A busy environment, which was sent to and not received,
    cannot be sent to again.

    `reset`, `step`, `rollout` and the other methods of an `EnvBase` run all environments, ``[num_envs, *B]``; none may
    be busy. The results equal those of a `SerialEnv` with the same seed, in whatever order they come.

    Args:
        env_makers: Functions that create the environments, or one function for one environment.
        backend: Kind of the workers: ``"multiprocessing"`` for one process for each environment, ``"threading"`` for
            one thread for each: for simulators that wait, or release the interpreter lock.
        stack: Form of results: ``"dense"`` for contiguous results, ``"lazy"`` for lazy stacks of the rows.
        create_env_kwargs: Arguments of the functions, or a list of them.
        min_get: Number of environments that the ``recv`` methods wait for.
        timeout: Seconds that they, and resets and steps of all environments, wait; None for no limit.
        shared_memory: Whether to exchange data in shared memory. If false, data that is sent to another process is
            pickled, which also allows entries that are no tensors, such as strings.
        mp_start_method: See `ParallelEnv`.
        num_threads: Threads of torch in each process.
        daemon: See `ParallelEnv`.
        shutdown_timeout: Seconds after which `close` kills the processes.

    Raises:
        SpecError: If the specs of two environments differ, or entries are no tensors and `shared_memory` is true.
        WorkerError: If an environment cannot be created; and by every method if one fails or its process has ended.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> pool = AsyncEnvPool([PendulumEnv] * 3, backend="threading")
        >>> pool.async_step_send(pool.rand_action(pool.reset()))
        >>> done = pool.async_step_recv(min_get=3)
        >>> done["env_index"].tolist(), done["next", "reward"].shape
        ([0, 1, 2], torch.Size([3, 1]))
        >>> pool.close()
    """

    def __init__(  # noqa: PLR0913  # TorchRL's arguments, and those of ParallelEnv
        self,
        env_makers: Callable[..., Env] | Sequence[Callable[..., Env]],
        *,
        backend: Literal["multiprocessing", "threading"] = "multiprocessing",
        stack: Literal["dense", "lazy"] = "dense",
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        min_get: int = 1,
        timeout: float | None = None,
        shared_memory: bool = True,
        mp_start_method: str | None = None,
        num_threads: int = 1,
        daemon: bool = True,
        shutdown_timeout: float = 10.0,
    ) -> None:
        owner = type(self).__name__
        one_of(backend, owner, "backend", ("multiprocessing", "threading"))
        one_of(stack, owner, "stack", ("dense", "lazy"))
        count = len(env_makers) if isinstance(env_makers, Sequence) else 1
        makers = makers_of(count, env_makers, create_env_kwargs, owner)
        self.backend, self.stack, self.num_envs = backend, stack, count
        self.min_get, self.timeout = as_integer(min_get, owner, "min_get", 1), timeout
        self._busy: dict[int, int] = {}  # command by environment
        self._ready: dict[int, list[int]] = {command: [] for command in _MESSAGES}
        self._sent: dict[int, TensorDictBase | None] = {}
        self._root_keys: set[NestedKey] | None = None
        self._checked = False  # whether an action was compared with its spec
        limits = {"owner": owner, "timeout": timeout, "shutdown_timeout": shutdown_timeout}
        group: Callable[..., Group] = partial(ThreadGroup, **limits)
        if backend == "multiprocessing":
            options: Any = {"start_method": mp_start_method, "daemon": daemon, "num_threads": num_threads}
            group = partial(WorkerGroup, **limits, **options)
        super().__init__(makers, range(count + 1), group, shared_memory=shared_memory, roots=True)
        state = self.state_spec_unbatched.clone()
        state["env_index"] = Categorical(count, shape=(), dtype=torch.int64)
        self.state_spec = state

    # ---- all environments

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return super()._reset(tensordict).set("env_index", self._index(torch.arange(self.num_envs)))

    def _set_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._set_state(tensordict).set("env_index", self._index(torch.arange(self.num_envs)))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        given = tensordict.get("env_index", None)
        rows = self._index(torch.arange(self.num_envs))
        if given is not None and not torch.equal(given.reshape(rows.shape), rows):
            raise ArgumentError(
                f"{type(self).__name__}.step takes the rows of all environments in their order, got env_index"
                f" {given.flatten().tolist()}: sort the rows, or use async_step_send"
            )
        return super()._step(tensordict)

    def _idle(self) -> Group:
        if self._busy:
            raise RLError(f"{type(self).__name__}: {self._are_busy(self._busy)}")
        return super()._idle()

    def _are_busy(self, indices: Any) -> str:
        first = min(indices)
        listed = ", ".join(str(index) for index in sorted(indices))
        return f"environment {listed} is busy: call {_NAMES[self._busy[first]]}_recv first"

    # ---- some environments

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write random actions, for all environments or for the rows of some."""
        if tensordict is None or tensordict.batch_size == self.batch_size:
            return super().rand_action(tensordict)
        one = tensordict.ndim == len(self.batch_size) - 1
        rows: Any = tensordict.get("env_index", None)
        if rows is None:
            rows = torch.arange(1 if one else tensordict.shape[0])
        first = rows.reshape(1 if one else rows.shape[0], -1)[:, 0].tolist()
        return tensordict.update(self.full_action_spec.rand()[first[0] if one else first])

    def async_step_send(self, tensordict: TensorDictBase, env_index: int | Sequence[int] | None = None) -> None:
        """Start a step of some environments.

        Args:
            tensordict: Root entries with the action, ``[n, *B]``, or ``[*B]`` for one environment.
            env_index: The environment of each row; the entry ``env_index`` if None.

        Raises:
            RLError: If an environment is busy.
            ArgumentError: If the rows are not those of different environments.
            SpecError: If an action is not in its spec.
            ContractError: If the action or ``env_index`` is missing.
        """
        self._send_rows(STEP, tensordict, env_index)

    @allow_one_thread
    def async_step_recv(
        self, min_get: int | None = None, *, max_get: int | None = None, timeout: float | None = None
    ) -> TensorDictBase:
        """Wait for steps.

        Args:
            min_get: Number of environments to wait for; that of the constructor if None.
            max_get: Number of environments to return at most; all that have answered if None.
            timeout: Seconds to wait; those of the constructor if None.

        Returns:
            ``[n, *B]``: what was sent, ``env_index``, and the outcome under ``next``.

        Raises:
            RLError: If fewer than `min_get` environments were sent a step.
            WorkerError: If an environment failed, which is no longer busy; the others are returned by the next call.
            WorkerTimeoutError: If fewer have answered in time; they are returned by the next call.
        """
        rows = self._collect(STEP, min_get, max_get, timeout)
        outcome: Any = self._read(self._out, rows, step=True) if self._in else self._joined_results(rows)
        self._rl.update_masks(self, look=True)
        stepped = self._received(rows).set("next", outcome)
        self._lost.difference_update(rows)
        return stepped

    def async_step_and_maybe_reset_send(
        self, tensordict: TensorDictBase, env_index: int | Sequence[int] | None = None
    ) -> None:
        """Start a step of some environments, after which done elements are reset; see `async_step_send`."""
        self._send_rows(STEP_AND_RESET, tensordict, env_index)

    @allow_one_thread
    def async_step_and_maybe_reset_recv(
        self, min_get: int | None = None, *, max_get: int | None = None, timeout: float | None = None
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Wait for steps with resets; see `async_step_recv`.

        Returns:
            What `async_step_recv` returns, and the root of the next step, whose done elements were reset.
        """
        rows = self._collect(STEP_AND_RESET, min_get, max_get, timeout)
        if self._in:
            outcome: Any = self._read(self._out, rows, step=True)
            keys = self._workers.call(rows[0], "root_keys") if self._root_keys is None else self._root_keys
            self._root_keys = keys
            root = self._read({key: leaf for key, leaf in self._roots.items() if key in keys}, rows)
        else:
            pairs = self._results(rows)
            outcome, root = (torch.cat(parts) for parts in zip(*pairs, strict=True))
            root = self._keep_legal(root, rows)
        self._rl.update_masks(self, look=True)
        stepped = self._received(rows).set("next", outcome)
        root = self.step_mdp(stepped).update(root)
        self._lost.difference_update(rows)
        return stepped, root

    def async_reset_send(
        self, tensordict: TensorDictBase | None = None, env_index: int | Sequence[int] | None = None
    ) -> None:
        """Start a reset of some environments.

        Args:
            tensordict: Entries to update, with a mask ``_reset`` if only some elements of the environments are reset.
            env_index: The environment of each row; the entry ``env_index`` if None, and all without a `tensordict`.

        Raises:
            RLError: If an environment is busy.
        """
        self._send_rows(RESET, tensordict, env_index)

    @allow_one_thread
    def async_reset_recv(
        self, min_get: int | None = None, *, max_get: int | None = None, timeout: float | None = None
    ) -> TensorDictBase:
        """Wait for resets; see `async_step_recv`.

        Returns:
            ``[n, *B]``: root entries of new episodes, and ``env_index``.
        """
        rows = self._collect(RESET, min_get, max_get, timeout)
        fresh: Any = self._read(self._out, rows, step=False) if self._in else self._joined_results(rows)
        self._rl.update_masks(self, look=True)
        fresh = self._received(rows).update(fresh)
        self._lost.difference_update(rows)
        return fresh

    # ---- sending

    @allow_one_thread
    def _send_rows(self, command: int, tensordict: TensorDictBase | None, env_index: Any) -> None:
        self._rl.check_open()
        if tensordict is None and env_index is None:
            env_index = range(self.num_envs)
        if tensordict is not None and tensordict.ndim == len(self.batch_size) - 1:
            tensordict = tensordict.unsqueeze(0)
        rows = self._rows(tensordict, env_index)
        busy = self._busy.keys() & rows
        if busy:
            raise RLError(f"{type(self).__name__}: {self._are_busy(busy)}")
        if self._unsettled:
            self._idle()
        if command != RESET:
            self._check_known(rows)
        self._workers.drop(self._lost.intersection(rows))
        if tensordict is None:
            parts: list[Any] = [None] * len(rows)
        else:
            if command != RESET:
                self._check_step(tensordict, rows)
            if self._in:
                command = self._write(command, tensordict, rows)
            parts = [*tensordict.exclude("next").unbind(0)]
        kind = RESET if command == RESET_ROWS else command
        for index, part in zip(rows, parts, strict=True):
            with Undivided():
                self._send_row(command, kind, index, part)

    def _send_row(self, command: int, kind: int, index: int, part: Any) -> None:
        if self._in:
            self._workers.send(index, command)
        else:
            given = None if part is None else part.exclude("env_index").unsqueeze(0)
            self._workers.request(index, _MESSAGES[kind], *([given, False, None] if kind == RESET else [given]))
        self._busy[index] = kind
        self._sent[index] = None if part is None else part.exclude("_reset", *self.reset_keys)

    def _rows(self, tensordict: TensorDictBase | None, env_index: Any) -> list[int]:
        """Return the environment of each row."""
        owner = type(self).__name__
        given: Any = env_index
        if tensordict is not None and env_index is None:
            given = tensordict.get("env_index", None)
            if given is None:
                raise ContractError(
                    f"{owner}: the entry 'env_index' says which environment each row belongs to, and is missing. Keep"
                    " that of reset and of the recv methods, or pass env_index="
                )
            given = given.reshape(tensordict.shape[0], -1)[:, 0].tolist()
        rows = [given] if isinstance(given, int) else [int(index) for index in given]
        expected = (len(rows), *self.batch_size[1:])
        if tensordict is not None and tensordict.batch_size != expected:
            raise SpecError(
                f"{owner}: rows of {len(rows)} environments have batch size {expected}, got"
                f" {tuple(tensordict.batch_size)}"
            )
        if len(set(rows)) < len(rows) or not all(0 <= index < self.num_envs for index in rows):
            raise ArgumentError(f"{owner}: env_index must be different numbers below {self.num_envs}, got {rows}")
        return rows

    def _check_step(self, tensordict: TensorDictBase, rows: list[int]) -> None:
        owner = type(self).__name__
        if tensordict.get("_step", None) is not None:
            raise ArgumentError(f"{owner}: '_step' has no meaning here: send the rows to step, and no others")
        missing = any(tensordict.get(key, None) is None for key in self.action_keys)
        if missing or self.debug or not self._checked:
            check_action(tensordict, self.full_action_spec[torch.tensor(rows)], owner=owner)
            self._checked = True

    def _write(self, command: int, tensordict: TensorDictBase, rows: list[int]) -> int:
        """Write rows to the shared memory; return the command."""
        owner, where = f"{type(self).__name__}.{_NAMES[command]}_send", torch.tensor(rows)
        if command != RESET:
            write_leaves(self._in, tensordict, owner, where)
            return command
        masks = self._all_masks(tensordict)
        write_leaves(self._masks, masks, owner, where)
        return RESET_ROWS if masks else RESET

    # ---- receiving

    def _collect(self, command: int, min_get: int | None, max_get: int | None, timeout: float | None) -> list[int]:
        """Wait for answers; return the environments that have answered, in their order. They are no longer busy."""
        self._rl.check_open()
        owner, name = type(self).__name__, _NAMES[command]
        count = as_integer(self.min_get if min_get is None else min_get, owner, "min_get", 1)
        timeout = self.timeout if timeout is None else timeout
        limit = None if timeout is None else monotonic() + timeout
        sent = sum(one == command for one in self._busy.values())
        if count > sent:
            raise RLError(f"{owner}.{name}_recv waits for {count} environments, {name}_send was called for {sent}")
        ready = self._ready[command]
        self._answered(0.0)
        while len(ready) < count:
            if not self._answered(None if limit is None else max(0.0, limit - monotonic())):
                raise WorkerTimeoutError(
                    f"{owner}.{name}_recv: {len(ready)} of {count} environments have answered within {timeout} s. The"
                    " next call returns them too"
                )
        with Undivided():
            rows = sorted(ready[:max_get])
            del ready[: len(rows)]
            for index in rows:
                del self._busy[index]
            self._lost.update(rows)  # until their outcome is complete
        return rows

    def _answered(self, wait: float | None) -> list[int]:
        self._workers.await_any(1, wait)
        with Undivided():
            try:
                found = self._workers.wait_any(1, 0.0)
            except WorkerError as error:
                if error.worker is not None:
                    self._busy.pop(error.worker, None)
                    self._sent.pop(error.worker, None)
                    self._lost.add(error.worker)
                raise
            for index in found:
                self._ready[self._busy[index]].append(index)
        return found

    def _read(self, leaves: Mapping[Any, Tensor], rows: list[int], *, step: bool | None = None) -> TensorDict:
        """Rows of the shared memory; of what a step or a reset writes, or all."""
        where = torch.tensor(rows)
        keys = leaves if step is None else self._keys(rows, step=step)
        entries: Any = {key: leaves[key][where] for key in keys}
        out = TensorDict(entries, batch_size=(len(rows), *self.batch_size[1:]), device=self.device)
        set_group_sizes(out, {key: torch.Size((len(rows), *size[1:])) for key, size in self._rl.groups.items()})
        return out

    def _results(self, rows: list[int]) -> list[Any]:
        return [self._workers.result(index) for index in rows]

    def _joined_results(self, rows: list[int]) -> Any:
        return self._keep_legal(torch.cat(self._results(rows)), rows)

    def _received(self, rows: list[int]) -> TensorDictBase:
        """Return the stacked data of the environments, with ``env_index``."""
        empty = TensorDict({}, batch_size=self.batch_size[1:], device=self.device)
        parts: list[Any] = [self._sent.pop(index) for index in rows]
        parts = [empty.copy() if part is None else part for part in parts]
        stacked: Any = lazy_stack(parts) if self.stack == "lazy" else torch.stack(parts)
        return stacked.set("env_index", self._index(torch.tensor(rows)))

    def _index(self, rows: Tensor) -> Tensor:
        """Return the number of the environment of each element."""
        inner = self.batch_size[1:]
        return rows.reshape(-1, *[1] * len(inner)).expand(-1, *inner).clone()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_envs={self.num_envs}, backend={self.backend!r}, env={self._name})"


class ProcessorAsyncEnvPool(AsyncEnvPool):
    """`AsyncEnvPool` with one process for each environment.

    Args:
        env_makers: See `AsyncEnvPool`.
        kwargs: The other arguments of `AsyncEnvPool`.
    """

    def __init__(self, env_makers: Callable[..., Env] | Sequence[Callable[..., Env]], **kwargs: Any) -> None:
        super().__init__(env_makers, backend="multiprocessing", **kwargs)


class ThreadingAsyncEnvPool(AsyncEnvPool):
    """`AsyncEnvPool` with one thread for each environment.

    Args:
        env_makers: See `AsyncEnvPool`.
        kwargs: The other arguments of `AsyncEnvPool`.
    """

    def __init__(self, env_makers: Callable[..., Env] | Sequence[Callable[..., Env]], **kwargs: Any) -> None:
        super().__init__(env_makers, backend="threading", **kwargs)
