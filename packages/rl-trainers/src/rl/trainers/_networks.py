"""Networks that fit an environment: from its observations, to its actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import OBSERVATION, NestedKey, key_str, unwrap
from rl.core.specs import Categorical, TensorSpec
from rl.modules import MLP, ConvNet, orthogonal_init

__all__ = ["action_of", "described", "network", "observations_of"]

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}

#: entries that transforms write for bookkeeping; no policy should act on them
BOOKKEEPING = frozenset({"step_count", "episode_reward", "is_init"})


def observations_of(env: Env) -> dict[NestedKey, TensorSpec]:
    """What a policy can read, by key: ``observation`` if there is one, else all entries.

    Raises:
        SpecError: if there is nothing to read, or something that is no tensor.
    """
    spec = env.observation_spec
    keys = [unwrap(key) for key in spec.keys(include_nested=True, leaves_only=True)]
    keys = [key for key in keys if key not in BOOKKEEPING]
    if OBSERVATION in keys:
        keys = [OBSERVATION]
    if not keys:
        raise SpecError(f"{type(env).__name__} has no observation to learn from; its spec is {spec}")
    for key in keys:
        if spec[key].dtype is None:
            raise SpecError(
                f"the observation {key_str(key)} of {type(env).__name__} is no tensor ({type(spec[key]).__name__}),"
                " and networks read numbers only: encode it in the environment, or leave it out there"
            )
    return {key: spec[key] for key in keys}


def action_of(env: Env) -> tuple[NestedKey, Any]:
    """Key of the one action, and its spec without the environment's batch.

    Raises:
        SpecError: if there are several.
    """
    spec = env.full_action_spec
    keys = [unwrap(key) for key in spec.keys(include_nested=True, leaves_only=True)]
    if len(keys) != 1:
        listed = ", ".join(map(key_str, keys)) or "none"
        raise SpecError(f"this recipe trains one action, {type(env).__name__} has {len(keys)}: {listed}")
    leaf = spec[keys[0]]
    first = (0,) * len(env.batch_size)
    return keys[0], leaf[first] if first else leaf


def described(spec: Any) -> str:
    """A spec in a few words, for messages.

    Example:
        >>> described(Categorical(3))
        'a Categorical int64 []'
    """
    name = type(spec).__name__
    article = "an" if name[0] in "AEIOU" else "a"
    return f"{article} {name} {str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}"


def network(
    env: Env,
    *,
    out_features: int,
    hidden: Sequence[int],
    activation: str,
    last_gain: float | None,
    device: str,
    in_features: int | None = None,
) -> nn.Module:
    """An MLP from an environment's observations, behind convolutions where they are pictures.

    Args:
        env: its specs decide the input.
        out_features: width of the output.
        hidden: widths of the hidden layers.
        activation: a key of `ACTIVATIONS`.
        last_gain: scale of the last layer's orthogonal initial weights; all layers keep torch's initial weights
            if None.
        device: where the parameters are.
        in_features: width of an input that takes the place of the observations.

    Shapes: the observations, in order of `observations_of`, to ``[*B, out_features]``.
    """
    parts = [] if in_features is not None else _parts(env)
    width = sum(part.width for part in parts) if in_features is None else in_features
    mlp = MLP(width, out_features, num_cells=list(hidden), activation_class=ACTIVATIONS[activation])
    whole = mlp if not parts or _is_plain(parts) else _Network(parts, mlp)
    if last_gain is not None:
        orthogonal_init(whole, math.sqrt(2), last_gain)
    return whole.to(device)


class _Network(nn.Module):
    """Each observation through its own encoder, then all together through one network."""

    def __init__(self, parts: Sequence[nn.Module], body: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.body = body

    def forward(self, *observations: Tensor) -> Tensor:
        encoded = [part(x) for part, x in zip(self.parts, observations, strict=True)]
        return self.body(torch.cat(encoded, -1))


def _parts(env: Env) -> list[Any]:
    batch = len(env.batch_size)
    return [_part(spec, tuple(spec.shape[batch:])) for spec in observations_of(env).values()]


def _is_plain(parts: Sequence[Any]) -> bool:
    return len(parts) == 1 and isinstance(parts[0], _Vector) and parts[0].plain


class _Vector(nn.Module):
    """Numbers of any shape as one flat float vector."""

    def __init__(self, dims: int, width: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dims, self.width = dims, width
        self.plain = dims == 1 and dtype is torch.float32

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-1) if self.dims == 0 else x
        x = x.flatten(-self.dims) if self.dims > 1 else x
        return x.to(torch.float32)


class _Choice(nn.Module):
    """An index as a one-hot vector."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.width = n

    def forward(self, x: Tensor) -> Tensor:
        return one_hot(x.long(), self.width).to(torch.float32)


class _Picture(nn.Module):
    """A picture, channels first or last, bytes or floats, through convolutions.

    The layers of Mnih et al., "Human-level control through deep reinforcement learning", 2015, where the picture
    is large enough for them.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        super().__init__()
        self.channels_last = shape[-1] in (1, 3, 4) and shape[0] not in (1, 3, 4)
        height, wide, channels = shape if self.channels_last else (*shape[1:], shape[0])
        self.scale = 1 / 255 if dtype is torch.uint8 else 1.0
        large = min(height, wide) >= 36
        self.conv = ConvNet(
            channels,
            num_cells=[32, 64, 64] if large else [16, 32],
            kernel_sizes=[8, 4, 3] if large else [2, 2],
            strides=[4, 2, 1] if large else [1, 1],
            activation_class=nn.ReLU,
        )
        with torch.no_grad():
            self.width = self.conv(torch.zeros(1, channels, height, wide)).shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(-1, -3) if self.channels_last else x
        return self.conv(x.to(torch.float32) * self.scale)


def _part(spec: TensorSpec, shape: tuple[int, ...]) -> Any:
    if type(spec) is Categorical and not shape:
        return _Choice(int(spec.n))
    if len(shape) == 3 and min(shape[-2], shape[0]) >= 1 and min(shape) <= 16 and max(shape) >= 8:
        return _Picture(shape, spec.dtype)
    return _Vector(len(shape), math.prod(shape), spec.dtype)
