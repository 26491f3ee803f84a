"""Several learners of one run: processes that collect with their shares of the environments, and average gradients.

A learner has the same networks as the others, and its own environments, replay buffer and random numbers. Gradients
are averaged between backward pass and clipping, in one message of all parameters: what `DistributedDataParallel` does,
which wraps one `forward` and could not follow losses that call parts of their networks. The first learner is the
process that the user has started, or the one with rank 0 of torchrun; it alone writes the run folder.
"""

from __future__ import annotations

import atexit
import gc
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, distributed

from rl.core.errors import ArgumentError, RLError, WorkerError
from rl.core.workers import import_ray, start_ray
from rl.trainers._storage import first_line
from rl.trainers.config import RunConfig, config_of_learner

OWN = ("collector", "buffer", "multi_step")
"""Parts of a run that each learner has of its own; all others are the same in all learners."""

WAIT = timedelta(days=1)
"""Time that learners wait for each other, such as for an evaluation of the first; a killed one is noticed at once."""

_joined = False

# ------------------------------------------------------------------ what learners tell each other


def count() -> int:
    """Return the number of learners of the run in this process."""
    return distributed.get_world_size() if _joined else 1


def rank() -> int:
    """Return the number of this learner; the first one is 0."""
    return distributed.get_rank() if _joined else 0


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace gradients by their means over the learners."""
    if count() == 1:
        return
    kernels: Any = torch  # those on many tensors have no public names
    gradients = [one.grad for one in parameters if one.grad is not None]
    flat = torch.cat([one.reshape(-1) for one in gradients])
    distributed.all_reduce(flat)
    pieces = flat.div_(count()).split([one.numel() for one in gradients])
    kernels._foreach_copy_(gradients, [piece.view_as(one) for piece, one in zip(pieces, gradients, strict=True)])


def gather(value: Tensor) -> Tensor:
    """Return the tensors of all learners, of the same shape and on the CPU, in a new first dimension."""
    if count() == 1:
        return value.unsqueeze(0)
    value = value.cpu().contiguous()
    found = [torch.empty_like(value) for _ in range(count())]
    distributed.all_gather(found, value)
    return torch.stack(found)


def any_of(*flags: bool) -> list[bool]:
    """Return for each flag whether it is set in any learner."""
    return gather(torch.tensor(flags)).any(0).tolist() if count() > 1 else [*flags]


def mean_values(values: Mapping[str, float]) -> dict[str, float]:
    """Return the means of metrics over the learners."""
    if count() == 1:
        return dict(values)
    means = gather(torch.tensor([*values.values()], dtype=torch.float64)).mean(0)
    return dict(zip(values, means.tolist(), strict=True))


def mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of values, of which all learners have equally many."""
    variance, mean = torch.var_mean(values, correction=0)
    variances, means = gather(torch.stack([variance, mean])).to(values.device).unbind(-1)
    # law of total variance
    return means.mean(), (variances.mean() + means.var(correction=0)).sqrt()


def pool_statistics(statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the statistics of the values of all learners, from the ``count``, ``mean`` and ``square`` of each.

    The count is the mean of theirs, so that what they had in common before is weighted once: pooled statistics that
    all learners continue from, and pool again, are those of all values.
    """
    counts, means, squares = (gather(statistics[name]) for name in ("count", "mean", "square"))
    weights = counts.reshape(-1, *[1] * (means.ndim - 1)) / counts.sum().clamp_min(1e-12)
    mean = (weights * means).sum(0)
    spread = (weights * (means - mean).square()).sum(0)  # of the means
    return {"count": counts.mean(), "mean": mean, "square": squares.mean(0) + spread * counts.mean()}


def collect_states(own: Any) -> list[Any]:
    """Return the states of all learners in the first one; an empty list in the others."""
    found: list[Any] = [None] * count() if rank() == 0 else []
    distributed.gather_object(own, found or None)
    return found


def hand_out_states(states: Sequence[Any]) -> Any:
    """Return the state of this learner, of those that the first one has for all."""
    found: list[Any] = [None]
    distributed.scatter_object_list(found, [*states] if rank() == 0 else None)
    return found[0]


class OtherLearners:
    """States of the learners besides the first one, as a part of its checkpoint.

    Attributes:
        states: States of these learners that were loaded; None without.
    """

    states: list[Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the states, which the other learners send with `collect_states`."""
        return {"states": collect_states(None)[1:]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the states."""
        self.states = state["states"]


# ------------------------------------------------------------------ how learners start and end


def number_in_torchrun(config: RunConfig) -> int:
    """Join the processes of torchrun if it has started this one, and return the number of this one; 0 otherwise.

    Raises:
        ArgumentError: If there are more or fewer processes than learners.
    """
    if not distributed.is_torchelastic_launched():
        return 0
    if not distributed.is_initialized():
        _start_group(config.device)
        atexit.register(leave)
    started = distributed.get_world_size()
    if started != config.learners:
        raise ArgumentError(
            f"torchrun has started {started} processes: pass --learners {started}, got {config.learners}"
        )
    return distributed.get_rank()


def train(call: Callable[..., Any], config: RunConfig, options: Mapping[str, Any]) -> Any:
    """Train with several learners.

    Args:
        call: Function that trains as one of the learners, called with a config and options.
        config: Settings of the run.
        options: Arguments ``out``, ``resume``, ``display``, ``should_stop`` and ``callbacks``, for the first learner.

    Raises:
        ArgumentError: If the settings cannot be divided, or there are too few devices.
        WorkerError: If a learner has ended.
    """
    config_of_learner(config)  # raises before anything is started
    if config.device != "cpu":
        _check_device(config)
    if distributed.is_torchelastic_launched():
        return _train_in_torchrun(call, config, options)
    started = _in_ray if config.ray else _in_processes
    with started(call, config) as others, _end_is_reported(others.failure):
        join(0, config.learners, others.store, config.device)
        try:
            return call(config, **options)
        finally:
            leave()


def _train_in_torchrun(call: Callable[..., Any], config: RunConfig, options: Mapping[str, Any]) -> Any:
    number_in_torchrun(config)
    _take_device(config.device)
    if rank() == 0:
        with _end_is_reported(lambda: WorkerError("a learner has ended; its output says why")):
            return call(config, **options)
    try:
        return call(_of_follower(config), display="none")
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        raise SystemExit(1) from error  # the learner that has ended says why


def _store(*place: Any, **options: Any) -> Any:
    """Return what learners find each other through; the first one creates it."""
    return distributed.TCPStore(*place, **options)  # pyright: ignore[reportPrivateImportUsage]


def follow(call: Callable[..., Any], config: RunConfig, number: int, host: str, port: int) -> None:
    """Train as one of the learners besides the first."""
    store = _store(host, port, config.learners, is_master=False)
    store.set(f"started/{number}", "")
    join(number, config.learners, store, config.device)
    try:
        call(_of_follower(config), display="none")
    finally:
        leave()


def _of_follower(config: RunConfig) -> RunConfig:
    """Return the settings of a learner that writes nothing, and ends with the first one."""
    return replace(config, loggers=(), video_every=0, stop_at_return=math.inf, stop_after=0.0)


def join(number: int, learners: int, store: Any, device: str) -> None:
    """Join the other learners.

    Args:
        number: Number of this learner.
        learners: Number of all.
        store: Where they find each other.
        device: Device of the run.
    """
    _start_group(device, store=store, rank=number, world_size=learners)
    _take_device(device)


def _start_group(device: str, **place: Any) -> None:
    distributed.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", timeout=WAIT, **place)


def _take_device(device: str) -> None:
    """Begin to be one of several learners, on a device of its own."""
    global _joined  # noqa: PLW0603  as torch has one default group in a process
    _joined = True
    if device == "cuda":
        torch.cuda.set_device(local_device(device))


def leave() -> None:
    """Leave the other learners."""
    global _joined  # noqa: PLW0603  as in `join`
    _joined = False
    if distributed.is_initialized():
        distributed.destroy_process_group()


def local_device(device: str) -> str:
    """Return the device of this learner: ``cuda`` is a GPU of its own.

    Raises:
        ArgumentError: If this machine has fewer GPUs than learners.
    """
    if device != "cuda" or count() == 1:
        return device
    number: int = distributed.get_node_local_rank(fallback_rank=rank())  # pyright: ignore[reportPrivateImportUsage]
    if number >= torch.cuda.device_count():
        raise ArgumentError(
            f"learners have a GPU each, and this machine has {torch.cuda.device_count()}: set learners to at most that,"
            " or device to cpu"
        )
    return f"cuda:{number}"


def _check_device(config: RunConfig) -> None:
    if config.device != "cuda":
        raise ArgumentError(
            f"learners have a GPU each: device must be cpu or cuda with learners, got {config.device!r}"
        )
    if config.ray:
        raise ArgumentError("learners in Ray are on the CPU: set device to cpu, or start them with torchrun")


@contextmanager
def _end_is_reported(failure: Callable[[], RLError | None]) -> Generator[None]:
    """Raise what ended another learner in place of the error that its absence causes here."""
    try:
        yield
    except RLError:
        raise
    except RuntimeError as error:
        why = failure()
        if why is None:
            raise
        raise why from error


class _Others:
    """Learners that this process has started.

    Args:
        count: Number of all learners.
        host: Address at which they find this process.
    """

    def __init__(self, count: int, host: str) -> None:
        self.store = _store(host, 0, count, is_master=True, wait_for_workers=False)
        self.address = (host, self.store.port)
        self.ended: Callable[[], RLError | None] = lambda: None

    def failure(self, seconds: float = 5.0) -> RLError | None:
        """Return what ended a learner, which may become known after the connection to it is lost."""
        limit = time.monotonic() + seconds
        while (found := self.ended()) is None and time.monotonic() < limit:
            time.sleep(0.02)
        return found

    def wait(self, numbers: Iterable[int]) -> None:
        """Wait until learners have started; raise if one has ended before."""
        keys = [f"started/{number}" for number in numbers]
        while not self.store.check(keys):
            if (found := self.ended()) is not None:
                raise found
            time.sleep(0.02)


@contextmanager
def _in_processes(call: Callable[..., Any], config: RunConfig) -> Generator[_Others]:
    """Learners in processes of this machine: forks, or new ones where a GPU or threads of torch are used."""
    forks = config.device == "cpu" and config.threads == 1 and hasattr(os, "fork")  # a fork can use neither
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    others = _Others(config.learners, "127.0.0.1")
    pipes = [context.Pipe(duplex=False) for _ in range(1, config.learners)]
    processes = [
        # daemons end with this process, also where it ends within this block
        context.Process(target=_run_follower, args=(sender, call, config, number, *others.address), daemon=True)
        for number, (_, sender) in enumerate(pipes, 1)
    ]

    def ended() -> RLError | None:
        for number, (process, (receiver, _)) in enumerate(zip(processes, pipes, strict=True), 1):
            if process.exitcode:
                with suppress(EOFError, OSError):
                    if receiver.poll():  # later forks have the other end, too, and may wait for this process
                        return receiver.recv()
                return _killed(number, f"exit code {process.exitcode}")
        return None

    others.ended = ended
    try:
        sys.stdout.flush()
        with warnings.catch_warnings():  # Python warns of a fork in a process with threads; torch's hold no lock here
            warnings.simplefilter("ignore", DeprecationWarning)
            for process in processes:
                process.start()
        for _, sender in pipes:
            sender.close()
        others.wait(range(1, config.learners))
        yield others
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _killed(number: int, how: str) -> WorkerError:
    error = WorkerError(f"learner {number} has ended ({how}), and without it the run cannot go on")
    error.worker, error.ended = number, True
    return error


def _run_follower(sender: Connection, call: Any, config: RunConfig, number: int, *address: Any) -> None:
    """Train in a process, and send the error that ends it."""
    gc.freeze()  # groups of earlier runs wait for threads when they are freed, which a fork does not have
    torch.set_num_threads(1)
    try:
        follow(call, config, number, *address)
    except BaseException as error:  # noqa: BLE001  the first learner raises it
        if _is_lost_connection(error):
            os._exit(0)  # another learner has ended, and says why
        own = isinstance(error, RLError)
        with suppress(OSError):
            sender.send(RLError(str(error)) if own else WorkerError(f"learner {number} raised {first_line(error)}"))
        os._exit(1)


def _is_lost_connection(error: BaseException) -> bool:
    """Whether an error says that another learner has ended, or that the user interrupted all of them."""
    of_torch = isinstance(error, RuntimeError) and "gloo" in str(error)
    return isinstance(error, KeyboardInterrupt | distributed.DistError) or of_torch


@contextmanager
def _in_ray(call: Callable[..., Any], config: RunConfig) -> Generator[_Others]:
    """Learners in tasks of Ray, spread over its nodes; the first one is this process."""
    ray = import_ray("rl train", "rl-trainers[ray]")
    owns = not ray.is_initialized()
    if owns:
        start_ray(ray, {} if config.ray == "local" else {"address": config.ray}, "rl train")
    tasks: list[Any] = []

    def ended() -> RLError | None:
        done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=0)
        for task in done:
            try:
                ray.get(task)
            except ray.exceptions.RayTaskError as error:
                if not _is_lost_connection(error.cause):
                    own = isinstance(error.cause, RLError)
                    number = tasks.index(task) + 1
                    return error.cause if own else WorkerError(f"learner {number} raised {first_line(error.cause)}")
            except ray.exceptions.RayError as error:
                return _killed(tasks.index(task) + 1, type(error).__name__)
        return None

    try:
        free, needed = ray.cluster_resources().get("CPU", 0), config.learners - 1 + config.workers
        if free < needed:
            raise ArgumentError(
                f"learners and workers need {needed} CPUs of the Ray cluster besides this process, and it has {free:g}"
            )
        others = _Others(config.learners, ray.util.get_node_ip_address())
        others.ended = ended
        remote = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(follow)
        tasks += [remote.remote(call, config, number, *others.address) for number in range(1, config.learners)]
        others.wait(range(1, config.learners))
        yield others
        ray.get(tasks)
    finally:
        for task in tasks:
            with suppress(Exception):  # one that has ended
                ray.cancel(task, force=True)
        if owns:
            ray.shutdown()
