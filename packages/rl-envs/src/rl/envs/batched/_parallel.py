"""`ParallelEnv`: environments in worker processes, as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import RLError
from rl.core.interfaces import Env, LeafEnv, Leaves
from rl.core.workers import WorkerGroup
from rl.envs import _foreign
from rl.envs.base._base import PUBLIC_FORM
from rl.envs.base._leaf import LeafCalls, LeafForm
from rl.envs.batched._members import makers_of
from rl.envs.batched._view import EnvView
from rl.envs.batched._workers_env import WorkersEnv, allow_one_thread

__all__ = ["ParallelEnv", "cores"]


@_foreign.parallel_env
class ParallelEnv(WorkersEnv, final=("_reset", "_step", *PUBLIC_FORM)):
    """Environments with specs of the same form (see `SerialEnv`) in worker processes, stepped at the same time.

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
        daemon: whether the workers are daemonic: they end with this process, and have no processes of their own other
            than those of environments such as this one.
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
        super().__init__(makers, edges, group, shared_memory=shared_memory, device=device)

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
            tensordict: root entries with the action.

        Raises:
            RLError: if a step is running, or the data is not in shared memory.
        """
        self._rl.check_open()
        if not self._in:
            raise RLError("ParallelEnv.async_step_send needs shared memory; make it with shared_memory=True")
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
            RLError: if it is not.
        """
        if not self._in:
            raise RLError("this ParallelEnv was made with shared_memory=False; make it with shared_memory=True")
        return self

    def __getitem__(self, index: Any) -> EnvView:
        """A view of some environments."""
        return EnvView(self, index)

    def __repr__(self) -> str:
        return f"ParallelEnv(num_workers={self.batch_size[0]}, processes={len(self._starts) - 1}, env={self._name})"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
