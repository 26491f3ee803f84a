"""Devices of environment and policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rl.core.errors import SpecError
from rl.core.keys import leaf_keys

__all__ = ["Devices", "device_of_env", "device_of_policy", "move_env"]


@dataclass(frozen=True)
class Devices:
    """Devices of a collector.

    Args:
        env: of the environment.
        policy: of the policy if that is another one, else None.
        storing: to which batches are moved, or None.
    """

    env: torch.device
    policy: torch.device | None
    storing: torch.device | None

    @classmethod
    def of(cls, env: Any, policy: torch.device | None, storing: torch.device | str | None) -> Devices:
        """Return the devices of an environment, of a policy (None if it is unknown) and of batches."""
        home = device_of_env(env)
        away = None if policy is None or policy == concrete(home) else policy
        return cls(home, away, None if storing is None else torch.device(storing))


def device_of_env(env: Any) -> torch.device:
    """Return the device of the environment's action specs."""
    spec = env.full_action_spec
    for key in leaf_keys(spec):
        if spec[key].device is not None:
            return spec[key].device
    return torch.device("cpu")


def move_env(env: Any, device: torch.device | str | None) -> Any:
    """Return the environment, moved with ``env.to(device)`` if it is elsewhere.

    Raises:
        SpecError: if it is elsewhere and has no ``to``.
    """
    if device is None or concrete(torch.device(device)) == concrete(device_of_env(env)):
        return env
    if not callable(getattr(env, "to", None)):
        raise SpecError(
            f"{type(env).__name__} is on {device_of_env(env)} and has no to(device), the collector was given {device}"
            " for it: make it there, or name the device of the policy with policy_device= alone"
        )
    return env.to(device)


def device_of_policy(policy: Any, device: torch.device | str | None) -> torch.device | None:
    """Return the device of the policy; None if it is unknown.

    Args:
        policy: with parameters, or any function.
        device: its device; that of its parameters if None.

    Raises:
        SpecError: if the parameters are elsewhere.
    """
    parameter = next(policy.parameters(), None) if isinstance(policy, nn.Module) else None
    own = None if parameter is None else parameter.device
    target = own if device is None else concrete(torch.device(device))
    if own is not None and target != own:
        raise SpecError(
            f"the policy's parameters are on {own} and the collector was given device={device}: call"
            f" policy.to({str(device)!r}) first; the collector never copies a policy"
        )
    return target


def concrete(device: torch.device) -> torch.device:
    """Return the device with its index, such as ``cuda:0`` for ``cuda``."""
    return device if device.type == "cpu" or ":" in str(device) else torch.empty(0, device=device).device
