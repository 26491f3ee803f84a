"""Networks that fit an environment: from its observations, to its actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import OBSERVATION, NestedKey, key_str, leaf_keys
from rl.core.specs import Categorical, TensorSpec
from rl.modules import MLP, ImageEncoder, orthogonal_init

__all__ = [
    "ACTIVATIONS",
    "EPISODE_REWARD",
    "MASK",
    "SUCCESS",
    "action_of",
    "bookkeeping_names",
    "described",
    "described_observations",
    "network",
    "observations_of",
    "readings_of",
    "yaml_key",
]


ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}

#: height and width that the convolutions need at least
SMALLEST_IMAGE = 3

#: where `RewardSum` writes the return so far
EPISODE_REWARD = "episode_reward"

#: entries that transforms write for bookkeeping; no policy should act on them
BOOKKEEPING = frozenset({"step_count", EPISODE_REWARD, "is_init"})

#: where environments write which actions are legal; policies choose by it, and do not read it
MASK = "action_mask"

#: where environments write whether an episode is a success; policies do not read it
SUCCESS = "is_success"

#: what an environment with goals has beside `OBSERVATION`; without the goal no policy can know what to do
GOALS = ("achieved_goal", "desired_goal")


def observations_of(env: Env) -> dict[NestedKey, TensorSpec]:
    """List what a policy can read, by key: ``observation`` if there is one, with the goals, else all entries.

    Raises:
        SpecError: If there is nothing to read, or something that is no tensor.
    """
    spec = env.observation_spec
    keys = leaf_keys(spec)
    keys = [key for key in keys if key not in BOOKKEEPING and key not in (MASK, SUCCESS)]
    if OBSERVATION in keys:
        goals = GOALS if GOALS[1] in keys else ()
        keys = [key for key in keys if key == OBSERVATION or key in goals]
    if not keys:
        raise SpecError(f"{type(env).__name__} has no observation to learn from; its spec is {spec}")
    for key in keys:
        if spec[key].dtype is None:
            raise SpecError(
                f"the observation {key_str(key)} of {type(env).__name__} is no tensor ({type(spec[key]).__name__}),"
                f" and networks read numbers only: leave it out with --transform"
                f" 'exclude:{{excluded_keys: [{yaml_key(key)}]}}'"
            )
    return {key: spec[key] for key in keys}


def bookkeeping_names(env: Env) -> set[str]:
    """Entries of the environment itself that have the name of one that transforms write for bookkeeping."""
    from rl.envs import Compose, ParallelEnv, SerialEnv, TransformedEnv

    inner: Any = env
    written: set[NestedKey] = set()
    while isinstance(inner, TransformedEnv | SerialEnv):
        if isinstance(inner, SerialEnv):
            inner = inner.envs[0]
            continue
        chain = inner.transform if isinstance(inner.transform, Compose) else [inner.transform]
        written |= {key for one in chain for key in one.out_keys if key not in one.in_keys}
        inner = inner.base_env
    own = {*BOOKKEEPING.intersection(leaf_keys(inner.observation_spec), leaf_keys(env.observation_spec)) - written}
    if own and isinstance(inner, ParallelEnv):  # its members may have transforms of their own, in the workers
        own.difference_update(*getattr(inner, "transform.out_keys", []))
    return own


def action_of(env: Env) -> tuple[NestedKey, Any]:
    """Key of the one action, and its spec without the environment's batch.

    Raises:
        SpecError: If there are several.
    """
    spec = env.full_action_spec
    keys = leaf_keys(spec)
    if len(keys) != 1:
        listed = ", ".join(map(key_str, keys)) or "none"
        raise SpecError(
            f"this recipe trains one action, {type(env).__name__} has {len(keys)}: {listed}; make them one with a"
            " transform of your own (--transform module:Class), or train groups of agents with mappo or qmix"
        )
    leaf = spec[keys[0]]
    first = (0,) * len(env.batch_size)
    return keys[0], leaf[first] if first else leaf


def yaml_key(key: NestedKey) -> str:
    """Write a key as the arguments of ``--transform`` have it.

    Example:
        >>> yaml_key(("agents", "action"))
        '[agents, action]'
    """
    return key if isinstance(key, str) else f"[{', '.join(key)}]"


def described(spec: Any) -> str:
    """Describe a spec in a few words, for messages.

    Example:
        >>> described(Categorical(3))
        'a Categorical int64 []'
    """
    return _describe(spec, tuple(spec.shape))


def _describe(spec: Any, shape: tuple[int, ...]) -> str:
    name = type(spec).__name__
    article = "an" if name[0] in "AEIOU" else "a"
    return f"{article} {name} {str(spec.dtype).removeprefix('torch.')} {list(shape)}"


def network(  # noqa: PLR0913  one for each setting
    env: Env,
    *,
    out_features: int,
    num_cells: Sequence[int],
    activation: str,
    last_gain: float | None,
    device: str,
    in_features: int | None = None,
    layout: str = "auto",
    action: Any = None,
    layer_class: Any = nn.Linear,
    body: Callable[[int], nn.Module] | None = None,
    scale_bytes: bool = True,
) -> nn.Module:
    """Create an MLP from an environment's observations, which first go through convolutions if they are images.

    Args:
        env: Environment, whose specs decide the input.
        out_features: Width of the output.
        num_cells: Widths of the hidden layers.
        activation: A key of `ACTIVATIONS`.
        last_gain: Scale of the last layer's orthogonal initial weights; all layers keep torch's initial weights
            if None.
        device: Device of the parameters.
        in_features: Width of an input that takes the place of the observations.
        layout: Reading of observations with two or more dimensions, a name of `rl.trainers.config.LAYOUTS`.
        action: Spec of a vector of bounded floats that is a further input, scaled to [-1, 1]; none if None.
        layer_class: Constructor of the layers of the MLP, called like `torch.nn.Linear`.
        body: Constructor of the network that takes the place of the MLP, from the width of its input; then
            `out_features`, `num_cells`, `activation` and `layer_class` are not read.
        scale_bytes: Whether to divide images of bytes by 255; not for images that come normalized.

    Shapes: the observations, in order of `observations_of`, and the action to ``[*B, out_features]``.

    Raises:
        SpecError: If `layout` does not say how to read an observation.
    """
    parts = [] if in_features is not None else _parts(env, layout, scale_bytes=scale_bytes)
    if action is not None:
        parts.append(_Part(_Scaled(action.low, action.high), action.low.numel(), "a bounded vector"))
    width = sum(part.width for part in parts) if in_features is None else in_features
    layers: dict[str, Any] = {"activation_class": ACTIVATIONS[activation], "layer_class": layer_class}
    mlp = MLP(width, out_features, num_cells=list(num_cells), **layers) if body is None else body(width)
    plain = not parts or (len(parts) == 1 and parts[0].plain)
    whole = mlp if plain else _Network([part.module for part in parts], mlp)
    if last_gain is not None:
        orthogonal_init(whole, math.sqrt(2), last_gain)
    return whole.to(device)


class _Network(nn.Module):
    """Each observation through an encoder, then all encodings through one network."""

    def __init__(self, parts: Sequence[nn.Module], body: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.body = body

    def forward(self, *observations: Tensor) -> Tensor:
        encoded = [part(x) for part, x in zip(self.parts, observations, strict=True)]
        return self.body(torch.cat(encoded, -1))


def described_observations(env: Env, layout: str = "auto") -> str:
    """Describe in a line how each observation is read.

    Example:
        >>> from rl.envs import GymEnv
        >>> described_observations(GymEnv("CartPole-v1"))
        "reads 'observation': float32 [4] as a vector"
    """
    batch = len(env.batch_size)
    read = [
        f"{key_str(key)}: {str(spec.dtype).removeprefix('torch.')} {list(spec.shape[batch:])} as {part.read_as}"
        for (key, spec), part in zip(observations_of(env).items(), _parts(env, layout), strict=True)
    ]
    seen = leaf_keys(env.observation_spec)
    masked = f"; takes actions that {key_str(MASK)} allows" if MASK in seen else ""
    ignored = BOOKKEEPING - bookkeeping_names(env) | {MASK, SUCCESS}
    left = [key for key in seen if key not in observations_of(env) and key not in ignored]
    if not left:
        return f"reads {'; '.join(read)}{masked}"
    first = [OBSERVATION] if OBSERVATION in seen else observations_of(env)
    joined = ", ".join(yaml_key(key) for key in [*first, *left])
    return (
        f"reads {'; '.join(read)}{masked}. It leaves out {', '.join(map(key_str, left))}; to read vectors together:"
        f" --transform 'cat-tensors:{{in_keys: [{joined}], out_key: {OBSERVATION}}}'"
    )


def readings_of(env: Env, layout: str = "auto") -> dict[NestedKey, str]:
    """How a policy reads each observation: ``vector``, ``index``, or an image ``channels-first`` or ``channels-last``.

    Raises:
        SpecError: If `layout` does not say how to read one.
    """
    batch = len(env.batch_size)
    return {key: _reading(key, spec, tuple(spec.shape[batch:]), layout) for key, spec in observations_of(env).items()}


def _parts(env: Env, layout: str, *, scale_bytes: bool = True) -> list[_Part]:
    batch = len(env.batch_size)
    return [
        _part(key, spec, tuple(spec.shape[batch:]), layout, scale_bytes=scale_bytes)
        for key, spec in observations_of(env).items()
    ]


class _Part(NamedTuple):
    """Encoder of one input, the width of its output, how it reads the input, and whether it changes nothing."""

    module: nn.Module
    width: int
    read_as: str
    plain: bool = False


class _Vector(nn.Module):
    """Numbers of any shape as one flat float vector."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-1) if self.dims == 0 else x
        x = x.flatten(-self.dims) if self.dims > 1 else x
        return x.to(torch.float32)


class _Scaled(nn.Module):
    """A vector between bounds, scaled to [-1, 1]."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.middle: Tensor
        self.reach: Tensor
        self.register_buffer("middle", ((low + high) / 2).float())
        half = ((high - low) / 2).float()
        self.register_buffer("reach", torch.where(half > 0, half, 1))  # a dimension that cannot move is 0

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() - self.middle) / self.reach


class _Choice(nn.Module):
    """An index as a one-hot vector."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        return one_hot(x.long(), self.n).to(torch.float32)


def _part(key: NestedKey, spec: TensorSpec, shape: tuple[int, ...], layout: str, *, scale_bytes: bool) -> _Part:
    """Create the encoder of one observation."""
    reading, dims = _reading(key, spec, shape, layout), len(shape)
    if reading == "index":
        assert isinstance(spec, Categorical)
        return _Part(_Choice(int(spec.n)), int(spec.n), "an index")
    if reading == "vector":
        kind = ("a number", "a vector")[dims] if dims < 2 else "a flat vector"
        return _Part(_Vector(dims), math.prod(shape), kind, plain=dims == 1 and spec.dtype is torch.float32)
    last = reading == "channels-last"
    height, width, channels = shape if last else (*shape[1:], shape[0])
    scale = 1 / 255 if scale_bytes and spec.dtype is torch.uint8 else 1.0
    encoder = ImageEncoder(shape, channels_last=last, scale=scale)
    read_as = f"an image of {height} x {width}, {channels} channels {'last' if last else 'first'}"
    return _Part(encoder, encoder.out_features, read_as)


def _reading(key: NestedKey, spec: TensorSpec, shape: tuple[int, ...], layout: str) -> str:
    """How one observation is read, by the rule that `RunConfig` documents.

    Raises:
        SpecError: If the rule does not say how to read it.
    """
    if type(spec) is Categorical and not shape:
        return "index"
    if len(shape) <= 1 or layout == "flat":
        return "vector"
    image = len(shape) == 3 and (layout != "auto" or (spec.dtype is torch.uint8 and shape[0] != shape[-1]))
    channels_last = layout == "channels-last" or (layout == "auto" and shape[-1] < shape[0])
    if not image or min(shape[:2] if channels_last else shape[1:]) < SMALLEST_IMAGE:
        fitting = [
            other
            for other, sides in (("channels-first", shape[1:]), ("channels-last", shape[:2]))
            if other != layout and len(shape) == 3 and min(sides) >= SMALLEST_IMAGE
        ]
        raise SpecError(
            f"the observation {key_str(key)} is {_describe(spec, shape)}, and"
            f" observation_layout={layout!r} does not say how to read it: auto takes uint8 with three dimensions as an"
            " image whose channels are the smaller of the first and last dimension, of at least"
            f" {SMALLEST_IMAGE} x {SMALLEST_IMAGE}, and channels-first and channels-last take three dimensions. Set"
            f" --observation-layout to {' or '.join([*fitting, 'flat'])}"
        )
    return "channels-last" if channels_last else "channels-first"
