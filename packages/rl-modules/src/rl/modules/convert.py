"""Networks of Stable-Baselines3 and CleanRL as ours, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.core.errors import ArgumentError
from rl.core.specs import TensorSpec
from rl.modules.distributions._bounded import TanhDelta, TanhNormal
from rl.modules.distributions._discrete import Categorical, OneHotCategorical
from rl.modules.distributions._normal import IndependentNormal
from rl.modules.nets._heads import NormalHead
from rl.modules.nets._mlp import MLP
from rl.modules.policy._actor import ProbabilisticActor, ValueOperator
from rl.modules.policy._fit import action_space
from rl.modules.policy._qvalue import QValueActor

__all__ = ["LAYOUTS", "export_state", "load_networks"]


@dataclass(frozen=True)
class Part:
    """One network.

    Args:
        kind: Kind: ``"stochastic"`` (logits, or a normal with a standard deviation of its own), ``"squashed"`` (a
            normal squashed into bounds), ``"deterministic"`` (squashed into bounds), ``"values"`` (of all actions),
            ``"value"`` (of a state) or ``"state_action_value"``.
        layers: Names of its linear layers in order; one that ends in ``*`` stands for those of a
            `torch.nn.Sequential` in which layers and activations alternate.
        log_scale: Name of the parameter of a normal, if it has one.
        bounds: Whether there are ``action_scale`` and ``action_bias``.
        optional: Whether a state may lack it.
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
        parts: Networks.
        activation: Activation between their layers.
        scale: Method by which a squashed normal bounds the logarithm of its standard deviation: ``"clamp"`` within -20
            and 2, or ``"tanh"`` within -5 and 2.
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
        part: Network.
        state: Names of all parameters, from which the number of layers follows.
        count: Instead, the number of layers.

    Raises:
        ArgumentError: if layers and activations do not alternate, or their number does not fit.
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
            raise ArgumentError(f"expected linear layers {prefix}0, {prefix}2, ..., got the numbers {places}")
        names += [f"{prefix}{place}" for place in places]
    if count is not None and len(names) != count:
        raise ArgumentError(f"expected {len(names)} linear layers {names}, the network has {count}")
    return names


def _is_weight(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name.removeprefix(prefix).removesuffix(".weight").isdigit()


def _given(count: Any) -> int:
    assert isinstance(count, int)  # the caller passes a state or a count
    return count


def load_networks(layout: str, state: Mapping[str, Any], spec: TensorSpec | None = None) -> nn.ModuleDict:
    """Build networks with the parameters of a policy of Stable-Baselines3 or CleanRL.

    Their outputs are the same. Actions are unclipped, where a normal without bounds is: clip them as that library does.

    Args:
        layout: One of `LAYOUTS`, such as ``"sb3/ppo"`` or ``"cleanrl/sac_continuous_action"``. Of Stable-Baselines3,
            the `MlpPolicy` with its default activation.
        state: Parameters by name: ``model.policy.state_dict()`` or the file ``policy.pth`` of Stable-Baselines3;
            ``agent.state_dict()`` of CleanRL, or of a script with several networks ``{"actor":
            actor.state_dict(), "qf1": qf1.state_dict(), ...}``.
        spec: Spec of the action; it tells one-hot from integer actions (integers if None), and has the bounds of
            squashed actions (from the state, or -1 and 1, if None).

    Returns:
        A `ProbabilisticActor` or `QValueActor` under ``actor``, and critics and target networks under ``critic``,
        ``critic_0``, ``target_critic_0``, ``target_actor``, ``target``; all read ``observation``.

    Raises:
        ArgumentError: if the layout is unknown, or has other parameters than the state.

    Example:
        >>> agent = nn.ModuleDict({"actor": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))})
        >>> agent["critic"] = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> networks = load_networks("cleanrl/ppo", agent.state_dict())
        >>> x = torch.randn(3, 4)
        >>> networks["critic"](x).equal(agent["critic"](x))
        True
    """
    known, flat = _layout(layout), _flat(state)
    networks, used = nn.ModuleDict(), set[str]()
    for name, part in known.parts.items():
        names = layer_names(part, flat)
        needed = [f"{one}.{parameter}" for one in names for parameter in ("weight", "bias")]
        if part.optional and not any(one in flat for one in needed):
            continue
        missing = [one for one in needed if one not in flat]
        if missing or not names:
            raise ArgumentError(
                f"load_networks: the layout {layout!r} has {missing or list(part.layers)}, the state {sorted(flat)}:"
                " choose the layout of the algorithm that wrote the file"
            )
        network = _build(part, known, [flat[f"{one}.weight"] for one in names], flat, spec)
        with torch.no_grad():
            for theirs, layer in zip(names, _linear(network), strict=True):
                layer.weight.copy_(flat[f"{theirs}.weight"])
                layer.bias.copy_(flat[f"{theirs}.bias"])
            log_scale = _log_scale(network)
            if part.log_scale in flat and log_scale is not None:
                log_scale.copy_(flat[part.log_scale].reshape(log_scale.shape))
        used.update(needed, {one for one in (part.log_scale, *_bound_names(part)) if one is not None})
        networks[name] = network
    unknown = sorted(set(flat) - used)
    if unknown:
        raise ArgumentError(f"load_networks: the layout {layout!r} has no {unknown}: another policy was saved")
    return networks


def export_state(layout: str, networks: Mapping[str, Any] | nn.ModuleDict) -> dict[str, Tensor]:
    """Return the parameters of networks, named as another library names them; the inverse of `load_networks`.

    Args:
        layout: One of `LAYOUTS`.
        networks: Networks by name, as `load_networks` returns them.

    Returns:
        Copies by name. Of CleanRL's scripts with several networks, names start with that of the network.

    Raises:
        ArgumentError: if the layout is unknown, or a network is missing or has another number of linear layers.

    Example:
        >>> policy = nn.ModuleDict({"network": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))})
        >>> networks = load_networks("cleanrl/dqn", policy.state_dict())
        >>> sorted(export_state("cleanrl/dqn", networks)) == sorted(policy.state_dict())
        True
    """
    known = _layout(layout)
    given: dict[str, Any] = dict(networks.items())
    state: dict[str, Tensor] = {}
    for name, part in known.parts.items():
        if name not in given:
            if part.optional:
                continue
            raise ArgumentError(f"export_state: the layout {layout!r} has {list(known.parts)}, got {list(given)}")
        layers = _linear(given[name])
        for theirs, layer in zip(layer_names(part, count=len(layers)), layers, strict=True):
            state[f"{theirs}.weight"] = layer.weight.detach().clone()
            state[f"{theirs}.bias"] = layer.bias.detach().clone()
        log_scale = _log_scale(given[name])
        if part.log_scale is not None and log_scale is not None:
            rows = log_scale.detach().clone()
            state[part.log_scale] = rows.unsqueeze(0) if layout.startswith("cleanrl/") else rows
        if part.bounds is not None:
            kwargs = given[name].head.distribution_kwargs
            low, high = (torch.as_tensor(kwargs.get(end, start)) for end, start in (("low", -1.0), ("high", 1.0)))
            width = layers[-1].out_features
            for one, value in zip(_bound_names(part), ((high - low) / 2, (high + low) / 2), strict=True):
                state[one] = value.expand(width).clone()
    return state


class LogScaleHead(nn.Module):
    """Features to the mean and the standard deviation of a squashed normal.

    Args:
        in_features: Width of the features.
        action_features: Number of action dimensions.
        bound: Bound: ``"clamp"`` keeps the logarithm of the standard deviation within -20 and 2, ``"tanh"`` squashes it
            to -5 and 2.
    """

    def __init__(self, in_features: int, action_features: int, bound: str) -> None:
        super().__init__()
        self.loc, self.log_scale = nn.Linear(in_features, action_features), nn.Linear(in_features, action_features)
        self.bound = bound

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, ``[*B, A]`` each."""
        raw = self.log_scale(features)
        log_scale = raw.clamp(-20, 2) if self.bound == "clamp" else -5 + 3.5 * (raw.tanh() + 1)
        return self.loc(features), log_scale.exp()


def _build(
    part: Part, layout: Layout, weights: list[Tensor], state: Mapping[str, Tensor], spec: TensorSpec | None
) -> nn.Module:
    """Build a network of the kind, with the widths of the weights."""
    heads = 2 if part.kind == "squashed" else 1
    cells, width_in = [len(one) for one in weights[:-heads]], weights[0].shape[1]
    width_out = len(weights[-1])
    head: nn.Module | None = None
    if part.kind == "squashed":
        head = LogScaleHead(weights[-1].shape[1], width_out, layout.scale)
    elif part.kind == "stochastic" and part.log_scale is not None and part.log_scale in state:
        head = NormalHead(weights[-1].shape[1], width_out)
    if head is None:
        net: nn.Module = MLP(width_in, width_out, cells, activation_class=layout.activation)
    elif cells:
        body = MLP(width_in, num_cells=cells, activation_class=layout.activation, activate_last_layer=True)
        net = nn.Sequential(body, head)
    else:
        net = head
    if part.kind in {"value", "state_action_value"}:
        return ValueOperator(net, None if part.kind == "value" else ["observation", "action"])
    if part.kind == "values":
        return QValueActor(net, spec=spec, action_space=None if spec is not None else "categorical")
    return _policy(part, net, head, state, spec)


def _policy(
    part: Part, net: nn.Module, head: nn.Module | None, state: Mapping[str, Tensor], spec: TensorSpec | None
) -> ProbabilisticActor:
    if head is not None:
        keys: list[Any] = ["loc", "scale"]
        distribution: Any = TanhNormal if part.kind == "squashed" else IndependentNormal
    elif part.kind == "deterministic":
        keys, distribution = ["param"], TanhDelta
    else:
        keys, distribution = ["logits"], OneHotCategorical if action_space(spec) == "one-hot" else Categorical
    kwargs: dict[str, Any] = {}
    if part.bounds is not None and spec is None:
        scale, middle = (state.get(name) for name in _bound_names(part))
        if scale is not None and middle is not None:
            scale, middle = scale.flatten(), middle.flatten()
            kwargs = {"low": middle - scale, "high": middle + scale}
    module = TensorDictModule(net, ["observation"], keys)
    return ProbabilisticActor(module, keys, spec=spec, distribution_class=distribution, distribution_kwargs=kwargs)


def _bound_names(part: Part) -> list[str]:
    return [] if part.bounds is None else [f"{part.bounds}.action_scale", f"{part.bounds}.action_bias"]


def _linear(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def _log_scale(network: nn.Module) -> nn.Parameter | None:
    heads = [module for module in network.modules() if isinstance(module, NormalHead)]
    return heads[0].log_scale if heads else None


def _layout(name: str) -> Layout:
    if name not in LAYOUTS:
        raise ArgumentError(f"no layout is called {name!r}: use one of {sorted(LAYOUTS)}")
    return LAYOUTS[name]


def _flat(state: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for name, value in state.items():
        flat |= {f"{prefix}{name}": value} if isinstance(value, Tensor) else _flat(value, f"{prefix}{name}.")
    return flat
