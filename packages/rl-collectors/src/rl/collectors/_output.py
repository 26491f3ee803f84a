"""What is done with a collected batch: its form, `postproc`, hook and replay buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

from rl.collectors._pipeline import Devices, name_of
from rl.collectors._trajectories import WholeTrajectories, split_trajectories
from rl.core import check_pipeline
from rl.core.arguments import as_integer, one_of
from rl.core.errors import ArgumentError
from rl.core.keys import NestedKey, as_tuple, leaf_keys


@dataclass
class Output:
    """The arguments of collectors of the same names.

    Raises:
        ArgumentError: If two of them exclude each other.
    """

    postproc: Callable[[TensorDictBase], Any] | None
    post_collect_hook: Callable[[Any], Any] | None
    replay_buffer: Any
    extend_buffer: bool = True
    split_trajs: bool | None = None
    trajs_per_batch: int | None = None
    traj_format: str = "padded"
    return_same_td: bool = False
    set_truncated: bool = False
    ends_early: bool = False

    def __post_init__(self) -> None:
        self._same: TensorDictBase | None = None
        one_of(self.traj_format, "Collector", "traj_format", ("padded", "cat"))
        whole = None if self.trajs_per_batch is None else f"trajs_per_batch={self.trajs_per_batch}"
        form = "split_trajs=True" if self.split_trajs else whole
        if whole and self.split_trajs:
            self._exclude(whole, "split_trajs=True", "a batch of complete trajectories is split already")
        if whole and self.set_truncated:
            self._exclude(whole, "set_truncated=True", "the end of a batch ends no trajectory")
        if self.return_same_td and (form or self.ends_early):
            self._exclude(form or "interruptor", "return_same_td=True", "the shape of a batch varies")
        if self.split_trajs and not self.extend_buffer:
            self._exclude("split_trajs=True", "extend_buffer=False", "padding would be stored as steps")

    @staticmethod
    def _exclude(one: str, other: str, why: str) -> None:
        raise ArgumentError(f"{one} and {other} exclude each other: {why}. Leave one of them out")

    def whole_trajectories(self) -> WholeTrajectories | None:
        """Return what gathers complete trajectories, or None. Those for a replay buffer are not padded."""
        if self.trajs_per_batch is None:
            return None
        form = self.traj_format if self.replay_buffer is None else "cat"
        return WholeTrajectories(as_integer(self.trajs_per_batch, "Collector", "trajs_per_batch", 1), form)

    def finish(self, batch: Any) -> Any:
        """Return what is yielded for a batch; None if it goes to a replay buffer."""
        if self.return_same_td:
            self._same = batch = batch if self._same is None else self._same.update_(batch)
        if self.split_trajs:
            batch = split_trajectories(batch)
        if self.postproc is not None:
            batch = self.postproc(batch)
        if self.post_collect_hook is not None:
            self.post_collect_hook(batch)
        if self.replay_buffer is None:
            return batch
        if not self.extend_buffer and batch.ndim > 1:  # single steps, in the order of time
            batch = batch.permute(batch.ndim - 1, *range(batch.ndim - 1)).reshape(-1)
        self.replay_buffer.extend(batch)
        return None


def describe(
    collector: Any,
    recurrent: Any,
    devices: Devices,
    output: Output,
    forms: Mapping[tuple[str, ...], tuple[torch.Size, torch.dtype]],
    backend: str,
) -> str:
    """Return the description as text.

    Args:
        collector: The collector.
        recurrent: Recurrent states of its policy.
        devices: Devices of the collector.
        output: Steps that are applied to a batch.
        forms: Shape and dtype of a step's entries; empty before the first step.
        backend: Back end of the policy, and why; empty if none was asked for.
    """
    env, policy = collector.env, collector.policy
    env_device, storing, postproc = devices.env, devices.storing, output.postproc
    where = env_device if devices.policy is None else devices.policy
    moved = "" if storing in (None, env_device) else f" (each batch: {env_device} -> {storing})"
    stages = [
        ("environment", f"{name_of(env)}, batch {list(env.batch_size)}, on {env_device}"),
        ("policy", f"{'random actions' if policy is None else name_of(policy)}, on {where}{_cast(env_device, where)}"),
        *([("steps by", backend)] if backend else []),
        ("postproc", "-" if postproc is None else name_of(postproc)),
        ("storing", f"on {storing or env_device}{moved}"),
    ]
    lines = [repr(collector), *[f"{stage:<12} {text}" for stage, text in stages], ""]
    if policy is None or hasattr(policy, "in_keys"):
        lines.append(str(check_pipeline(env, recurrent, _RandomActions(env) if policy is None else policy)))
    else:
        lines += [str(check_pipeline(env)), f"{name_of(policy)} has no in_keys and out_keys: its keys are not known"]
    if forms:
        lines += ["", "entries of a batch", *_entries(forms, collector)]
    return "\n".join(lines)


class _RandomActions:
    def __init__(self, env: Any) -> None:
        self.in_keys: list[NestedKey] = []
        self.out_keys = leaf_keys(env.full_action_spec)


def _cast(env_device: torch.device, policy_device: torch.device) -> str:
    return (
        ""
        if env_device == policy_device
        else f" (each step: inputs {env_device} -> {policy_device}, outputs {policy_device} -> {env_device})"
    )


def _entries(forms: Mapping[Any, tuple[torch.Size, torch.dtype]], collector: Any) -> list[str]:
    dims = len(collector.env.batch_size)
    keys: dict[NestedKey, tuple[list[int | str], torch.dtype]] = {
        key: ([*shape[:dims], "T", *shape[dims:]], dtype) for key, (shape, dtype) in forms.items()
    }
    width = max(len(".".join(as_tuple(key))) for key in keys)
    return [
        f"{'.'.join(as_tuple(key)):<{width}}  [{', '.join(map(str, shape))}] {str(dtype).removeprefix('torch.')}"
        for key, (shape, dtype) in keys.items()
    ]
