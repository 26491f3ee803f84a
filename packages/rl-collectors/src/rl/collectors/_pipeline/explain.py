"""Description of a collector: its stages, keys, shapes, devices and casts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl.collectors._pipeline.arguments import name_of
from rl.collectors._pipeline.output import Output
from rl.collectors._pipeline.placement import Devices
from rl.core import check_pipeline
from rl.core.keys import NestedKey, as_tuple, leaf_keys

__all__ = ["describe"]


def describe(
    collector: Any,
    recurrent: Any,
    devices: Devices,
    output: Output,
    forms: Mapping[tuple[str, ...], tuple[torch.Size, torch.dtype]],
) -> str:
    """Return the description as text.

    Args:
        collector: the collector.
        recurrent: recurrent states of its policy.
        devices: its devices.
        output: what it does with a batch.
        forms: shape and dtype of a step's entries; empty before the first step.
    """
    env, policy = collector.env, collector.policy
    home, storing, postproc = devices.env, devices.storing, output.postproc
    where = home if devices.policy is None else devices.policy
    stages = [
        ("environment", f"{name_of(env)}, batch {list(env.batch_size)}, on {home}"),
        ("policy", f"{'random actions' if policy is None else name_of(policy)}, on {where}{_cast(home, where)}"),
        ("postproc", "-" if postproc is None else name_of(postproc)),
        ("storing", f"on {storing or home}{'' if storing in (None, home) else f' (each batch: {home} -> {storing})'}"),
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


def _cast(home: torch.device, away: torch.device) -> str:
    return "" if home == away else f" (each step: inputs {home} -> {away}, outputs {away} -> {home})"


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
