"""Names of the parameters of other libraries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from rl.core.errors import SpecError

__all__ = ["LAYOUTS", "Layout", "Part", "layer_names"]


@dataclass(frozen=True)
class Part:
    """One network.

    Args:
        kind: ``"stochastic"`` (logits, or a normal with a standard deviation of its own), ``"squashed"`` (a normal
            squashed into bounds), ``"deterministic"`` (squashed into bounds), ``"values"`` (of all actions),
            ``"value"`` (of a state) or ``"state_action_value"``.
        layers: names of its linear layers in order; one that ends in ``*`` stands for those of a
            `torch.nn.Sequential` in which layers and activations alternate.
        log_scale: name of the parameter of a normal, if it has one.
        bounds: whether there are ``action_scale`` and ``action_bias``.
        optional: whether a state may lack it.
    """

    kind: str
    layers: tuple[str, ...]
    log_scale: str | None = None
    bounds: str | None = None
    optional: bool = False


@dataclass(frozen=True)
class Layout:
    """All networks of a file, by the name that they get here.

    Args:
        parts: the networks.
        activation: between their layers.
        scale: how a squashed normal bounds the logarithm of its standard deviation: ``"clamp"`` within -20 and 2, or
            ``"tanh"`` within -5 and 2.
    """

    parts: dict[str, Part]
    activation: type[nn.Module] = nn.ReLU
    scale: str = "clamp"


def _sb3_on_policy() -> Layout:
    return Layout(
        {
            "actor": Part("stochastic", ("mlp_extractor.policy_net.*", "action_net"), log_scale="log_std"),
            "critic": Part("value", ("mlp_extractor.value_net.*", "value_net")),
        },
        nn.Tanh,
    )


def _sb3_off_policy(kind: str, layers: tuple[str, ...], critics: int, *, target_actor: bool) -> Layout:
    parts = {"actor": Part(kind, tuple(f"actor.{one}" for one in layers))}
    if target_actor:
        parts["target_actor"] = Part(kind, tuple(f"actor_target.{one}" for one in layers))
    for name, prefix in (("critic", "critic"), ("target_critic", "critic_target")):
        parts |= {f"{name}_{i}": Part("state_action_value", (f"{prefix}.qf{i}.*",)) for i in range(critics)}
    return Layout(parts)


def _cleanrl_off_policy(kind: str, heads: tuple[str, ...], *, target_actor: bool) -> Layout:
    def actor(prefix: str, *, optional: bool = False) -> Part:
        names = tuple(f"{prefix}.{one}" for one in ("fc1", "fc2", *heads))
        return Part(kind, names, bounds=prefix, optional=optional)

    parts = {"actor": actor("actor")}
    if target_actor:
        parts["target_actor"] = actor("target_actor", optional=True)
    for i, prefix in enumerate(("qf1", "qf2")):
        for target in (False, True):
            theirs = f"{prefix}_target" if target else prefix
            name = f"target_critic_{i}" if target else f"critic_{i}"
            names = tuple(f"{theirs}.fc{j}" for j in (1, 2, 3))
            parts[name] = Part("state_action_value", names, optional=True)
    return Layout(parts, scale="tanh")


_DQN = {
    name: Part("values", (f"{prefix}.q_net.*",)) for name, prefix in (("actor", "q_net"), ("target", "q_net_target"))
}

LAYOUTS = MappingProxyType(
    {
        "sb3/ppo": _sb3_on_policy(),
        "sb3/a2c": _sb3_on_policy(),
        "sb3/dqn": Layout(_DQN),
        "sb3/sac": _sb3_off_policy("squashed", ("latent_pi.*", "mu", "log_std"), 2, target_actor=False),
        "sb3/td3": _sb3_off_policy("deterministic", ("mu.*",), 2, target_actor=True),
        "sb3/ddpg": _sb3_off_policy("deterministic", ("mu.*",), 1, target_actor=True),
        "cleanrl/ppo": Layout(
            {"actor": Part("stochastic", ("actor.*",)), "critic": Part("value", ("critic.*",))}, nn.Tanh
        ),
        "cleanrl/ppo_continuous_action": Layout(
            {
                "actor": Part("stochastic", ("actor_mean.*",), log_scale="actor_logstd"),
                "critic": Part("value", ("critic.*",)),
            },
            nn.Tanh,
        ),
        "cleanrl/dqn": Layout({"actor": Part("values", ("network.*",))}),
        "cleanrl/sac_continuous_action": _cleanrl_off_policy("squashed", ("fc_mean", "fc_logstd"), target_actor=False),
        "cleanrl/td3_continuous_action": _cleanrl_off_policy("deterministic", ("fc_mu",), target_actor=True),
    }
)
"""Known layouts by name: ``library/algorithm``."""


def layer_names(part: Part, state: Iterable[str] | None = None, count: int | None = None) -> list[str]:
    """Names of the linear layers of a network, in order.

    Args:
        part: the network.
        state: names of all parameters, from which the number of layers follows.
        count: instead, the number of layers.

    Raises:
        SpecError: if layers and activations do not alternate, or their number does not fit.
    """
    names: list[str] = []
    for pattern in part.layers:
        if not pattern.endswith(".*"):
            names.append(pattern)
            continue
        prefix = pattern.removesuffix("*")
        if state is not None:
            found = [one.removeprefix(prefix).removesuffix(".weight") for one in state if _is_weight(one, prefix)]
            places = sorted(int(one) for one in found)
        else:
            places = list(range(0, 2 * (_given(count) - len(part.layers) + 1), 2))
        if places != list(range(0, 2 * len(places), 2)):
            raise SpecError(f"expected linear layers {prefix}0, {prefix}2, ..., got the numbers {places}")
        names += [f"{prefix}{place}" for place in places]
    if count is not None and len(names) != count:
        raise SpecError(f"expected {len(names)} linear layers {names}, the network has {count}")
    return names


def _is_weight(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name.removeprefix(prefix).removesuffix(".weight").isdigit()


def _given(count: Any) -> int:
    assert isinstance(count, int)  # the caller gives a state or a count
    return count
