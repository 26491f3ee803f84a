"""Last layers that output the parameters of a distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from rl.core.arguments import as_integer
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError
from rl.core.keys import ACTION_VALUE, NestedKey, key_str
from rl.core.tensor_functions import TensorFunction, unhooked
from rl.modules._keys import key_list
from rl.modules.distributions._base import scale_mapping
from rl.modules.nets._conv import ConvNet
from rl.modules.nets._mlp import MLP, with_defaults

Given = Mapping[str, Any] | None
Device = torch.device | str | None

# Bounds of the uniform initial weights of the last layer: Lillicrap et al., 2015, section 7.
_LAST, _LAST_OF_PIXELS = 3e-3, 3e-4
_CONVOLUTIONS = {"num_cells": [32, 64, 64], "kernel_sizes": [8, 4, 3], "strides": [4, 2, 1], "paddings": [0, 0, 1]}
_DDPG_HEAD = {"num_cells": [200, 200], "depth": 2, "activation_class": nn.ELU}


class DdpgMlpActor(nn.Module):
    """Deterministic policy on vectors.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 7. The output is not
    squashed: put a `TanhModule` after it, or use it in a `ProbabilisticActor` with `TanhDelta`.

    Args:
        action_dim: Number of action dimensions.
        mlp_net_kwargs: Arguments of the `MLP` that differ from the defaults: hidden layers of 400 and 300.
        device: Device of the parameters.

    Shapes: ``[*B, in_features]`` to ``[*B, action_dim]``.

    Example:
        >>> DdpgMlpActor(action_dim=2)(torch.zeros(5, 4)).shape
        torch.Size([5, 2])
    """

    def __init__(self, action_dim: int, mlp_net_kwargs: Given = None, *, device: Device = None) -> None:
        super().__init__()
        defaults = {"num_cells": [400, 300], "depth": 2, "activation_class": nn.ELU}
        self.mlp = _head(action_dim, defaults, mlp_net_kwargs, device, _LAST)
        self.out_features = action_dim

    def forward(self, observation: Tensor) -> Tensor:
        """Compute the action before squashing."""
        return self.mlp(observation)


class DdpgMlpQNet(nn.Module):
    """Value of a state and an action, on vectors; the action enters after the first layer.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 7.

    Args:
        mlp_net_kwargs_net1: Arguments of the `MLP` on the observation that differ from the defaults: one activated
            layer of 400.
        mlp_net_kwargs_net2: Arguments of the `MLP` on its output and the action that differ from the defaults: one
            hidden layer of 300.
        device: Device of the parameters.

    Shapes: ``[*B, in_features]`` and ``[*B, A]`` to ``[*B, 1]``.

    Example:
        >>> DdpgMlpQNet()(torch.zeros(5, 4), torch.zeros(5, 2)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self, mlp_net_kwargs_net1: Given = None, mlp_net_kwargs_net2: Given = None, *, device: Device = None
    ) -> None:
        super().__init__()
        first = {"num_cells": [400], "depth": 1, "activation_class": nn.ELU, "activate_last_layer": True}
        self.mlp1 = MLP(**with_defaults(first, mlp_net_kwargs_net1, device))
        second = {"num_cells": [300], "depth": 1, "activation_class": nn.ELU}
        self.mlp2 = _head(1, second, mlp_net_kwargs_net2, device, _LAST)
        self.out_features = self.mlp2.out_features

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Value of the action."""
        return self.mlp2(self.mlp1(observation), action)


class DdpgCnnActor(nn.Module):
    """Deterministic policy on pixels.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 7. The action is not
    squashed: put a `TanhModule` after it, or use it in a `ProbabilisticActor` with `TanhDelta`.

    Args:
        action_dim: Number of action dimensions.
        conv_net_kwargs: Arguments of the `ConvNet` that differ from the defaults: 32, 64 and 64 channels, kernels of
            8, 4 and 3, strides of 4, 2 and 1.
        mlp_net_kwargs: Arguments of the `MLP` after it that differ from the defaults: two hidden layers of 200.
        use_avg_pooling: Whether features are the means of the channels, not the flattened pixels.
        device: Device of the parameters.

    Shapes: floating-point pixels ``[*B, C, H, W]`` to the action ``[*B, action_dim]`` and the features ``[*B, F]``.

    Example:
        >>> action, hidden = DdpgCnnActor(action_dim=2)(torch.zeros(5, 3, 64, 64))
        >>> action.shape, hidden.shape
        (torch.Size([5, 2]), torch.Size([5, 2304]))
    """

    def __init__(
        self,
        action_dim: int,
        conv_net_kwargs: Given = None,
        mlp_net_kwargs: Given = None,
        *,
        use_avg_pooling: bool = False,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.convnet = _convolutions(conv_net_kwargs, device, pooled=use_avg_pooling)
        self.mlp = _head(action_dim, _DDPG_HEAD, mlp_net_kwargs, device, _LAST_OF_PIXELS)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the action before squashing, and the features."""
        hidden = self.convnet(observation)
        return self.mlp(hidden), hidden


class DdpgCnnQNet(nn.Module):
    """Value of a state and an action, on pixels.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2015, section 7.

    Args:
        conv_net_kwargs: Arguments of the `ConvNet` that differ from the defaults: 32, 64 and 64 channels, kernels of
            8, 4 and 3, strides of 4, 2 and 1.
        mlp_net_kwargs: Arguments of the `MLP` on its output and the action that differ from the defaults: two hidden
            layers of 200.
        use_avg_pooling: Whether features are the means of the channels, not the flattened pixels.
        device: Device of the parameters.

    Shapes: floating-point pixels ``[*B, C, H, W]`` and actions ``[*B, A]`` to ``[*B, 1]``.

    Example:
        >>> DdpgCnnQNet()(torch.zeros(5, 3, 64, 64), torch.zeros(5, 2)).shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        conv_net_kwargs: Given = None,
        mlp_net_kwargs: Given = None,
        *,
        use_avg_pooling: bool = True,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.convnet = _convolutions(conv_net_kwargs, device, pooled=use_avg_pooling)
        self.mlp = _head(1, _DDPG_HEAD, mlp_net_kwargs, device, _LAST_OF_PIXELS)
        self.out_features = self.mlp.out_features

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Value of the action."""
        return self.mlp(self.convnet(observation), action)


def _head(width: int, defaults: Mapping[str, Any], given: Given, device: Device, bound: float) -> MLP:
    """Build the last layers, of which the last starts uniform within `bound`; a lazy one starts as in torch."""
    net = MLP(**with_defaults({"out_features": width, **defaults}, given, device))
    last = [layer for layer in net if isinstance(layer, nn.Linear)][-1]
    for one in last.parameters(recurse=False):
        if not nn.parameter.is_lazy(one):
            nn.init.uniform_(one, -bound, bound)
    return net


def _convolutions(given: Given, device: Device, *, pooled: bool) -> ConvNet:
    defaults: dict[str, Any] = {**_CONVOLUTIONS, "activation_class": nn.ELU}
    if pooled:
        defaults["aggregator_class"] = _ChannelMeans
    return ConvNet(**with_defaults(defaults, given, device))


class _ChannelMeans(nn.Module):
    """From pixels ``[N, C, H, W]`` to the means of the channels ``[N, C]``."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.mean((-2, -1))


class DistributionalDQNnet(TensorDictModuleBase):
    """Log-softmax over the atoms of distributions of returns.

    Goes between a network that writes logits ``[*B, atoms, n]`` and a `DistributionalQValueModule`.

    Args:
        in_keys: Keys of the logits; ``["action_value"]`` if None.
        out_keys: Keys of the log-probabilities, as many; ``["action_value"]`` if None.

    Raises:
        ArgumentError: if the numbers of keys differ.
        ContractError: in the call, if an entry is absent.
        ShapeError: in the call, if an entry has fewer than two dimensions.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict(action_value=torch.randn(3, 51, 2), batch_size=[3])
        >>> DistributionalDQNnet()(td)["action_value"].exp().sum(-2).shape
        torch.Size([3, 2])
    """

    def __init__(
        self, *, in_keys: Sequence[NestedKey] | None = None, out_keys: Sequence[NestedKey] | None = None
    ) -> None:
        super().__init__()
        self.in_keys = key_list([ACTION_VALUE] if in_keys is None else in_keys)
        self.out_keys = key_list([ACTION_VALUE] if out_keys is None else out_keys)
        if len(self.in_keys) != len(self.out_keys):
            raise ArgumentError(
                f"DistributionalDQNnet writes one entry for each that it reads, got in_keys {self.in_keys} and"
                f" out_keys {self.out_keys}"
            )

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "Let the network's out_keys be this key, or name another with in_keys=."
        shape = ("atoms", "n")
        return Contract(
            tuple(Key(key, shape, "logit of each atom, for each action", remedy=remedy) for key in self.in_keys),
            tuple(Key(key, shape, "log-probability of each atom, for each action") for key in self.out_keys),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the log-probabilities.

        Raises:
            ContractError: if an entry is absent.
            ShapeError: if an entry has fewer than two dimensions.
        """
        leaves = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                self.contract.refuse(tensordict, key, self)
        for key, value in zip(self.out_keys, self._normalize(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not DistributionalDQNnet or not unhooked(self):
            return None
        return TensorFunction(self._normalize, self.in_keys, self.out_keys)

    def _normalize(self, *logits: Tensor) -> tuple[Tensor, ...]:
        for key, one in zip(self.in_keys, logits, strict=True):
            if one.ndim < 2:
                raise ShapeError(
                    f"DistributionalDQNnet got {key_str(key)} of shape {tuple(one.shape)}: the network must write"
                    " [*B, atoms, n]"
                )
        return tuple(log_softmax(one, -2) for one in logits)


_DUELING_HEAD = {"depth": 1, "num_cells": 512, "activation_class": nn.ELU}


class _DuelingNet(nn.Module):
    """Features, and two heads on them: ``V + A - mean(A)``."""

    def __init__(
        self,
        features: nn.Module,
        out_features: int | Sequence[int],
        out_features_value: int | Sequence[int],
        head: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.features = features
        self.advantage = MLP(out_features=out_features, **head)
        self.value = MLP(out_features=out_features_value, **head)
        self.out_features = self.advantage.out_features

    def forward(self, observation: Tensor) -> Tensor:
        """Value of each action."""
        features = self.features(observation)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)


class DuelingMlpDQNet(_DuelingNet):
    """Dueling network on vectors.

    Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016, eq. 9:
    ``Q = V + A - mean(A)``.

    Args:
        out_features: Number of actions, or the shape ``(atoms, n)`` of a distributional network, whose last dimension
            is that of the actions.
        out_features_value: Width of the value head: 1, or ``(atoms, 1)``.
        mlp_kwargs_feature: Arguments of the `MLP` of the features that differ from the defaults: two hidden layers of
            256, the last one activated.
        mlp_kwargs_output: Arguments of the `MLP` of each head that differ from the defaults: one hidden layer of 512.
        device: Device of the parameters.

    Shapes: ``[*B, in_features]`` to ``[*B, *out_features]``; the width of the input is found out at the first call
    unless `mlp_kwargs_feature` has ``in_features``.

    Example:
        >>> DuelingMlpDQNet(out_features=3)(torch.zeros(5, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        out_features: int | Sequence[int],
        out_features_value: int | Sequence[int] = 1,
        mlp_kwargs_feature: Mapping[str, Any] | None = None,
        mlp_kwargs_output: Mapping[str, Any] | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        body: dict[str, Any] = {"num_cells": [256, 256], "activation_class": nn.ELU, "activate_last_layer": True}
        features = MLP(**with_defaults(body, mlp_kwargs_feature, device))
        super().__init__(
            features, out_features, out_features_value, with_defaults(_DUELING_HEAD, mlp_kwargs_output, device)
        )


class DuelingCnnDQNet(_DuelingNet):
    """Dueling network on pixels.

    Wang et al., "Dueling Network Architectures for Deep Reinforcement Learning", 2016, eq. 9, on the convolutions of
    Mnih et al., "Human-level control through deep reinforcement learning", 2015.

    Args:
        out_features: Number of actions, or the shape ``(atoms, n)`` of a distributional network, whose last dimension
            is that of the actions.
        out_features_value: Width of the value head: 1, or ``(atoms, 1)``.
        cnn_kwargs: Arguments of the `ConvNet` of the features that differ from the defaults: 32, 64 and 64 channels,
            kernels of 8, 4 and 3, strides of 4, 2 and 1.
        mlp_kwargs: Arguments of the `MLP` of each head that differ from the defaults: one hidden layer of 512.
        device: Device of the parameters.

    Shapes: floating-point pixels ``[*B, C, H, W]`` to ``[*B, *out_features]``.

    Example:
        >>> DuelingCnnDQNet(out_features=3)(torch.zeros(5, 4, 84, 84)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        out_features: int | Sequence[int],
        out_features_value: int | Sequence[int] = 1,
        cnn_kwargs: Mapping[str, Any] | None = None,
        mlp_kwargs: Mapping[str, Any] | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        body: dict[str, Any] = {"num_cells": [32, 64, 64], "kernel_sizes": [8, 4, 3], "strides": [4, 2, 1]}
        features = ConvNet(**with_defaults(body, cnn_kwargs, device))
        super().__init__(features, out_features, out_features_value, with_defaults(_DUELING_HEAD, mlp_kwargs, device))


class CategoricalHead(nn.Linear):
    """Features to the logits of a categorical or one-hot distribution.

    Args:
        in_features: Width of the features.
        num_actions: Number of actions.
        gain: Scale of the orthogonal initial weights; a small one starts from a nearly uniform policy.

    Shapes: ``[*B, in_features]`` to ``[*B, num_actions]``.

    Example:
        >>> CategoricalHead(64, 5)(torch.zeros(3, 64)).shape
        torch.Size([3, 5])
    """

    def __init__(self, in_features: int, num_actions: int, *, gain: float = 0.01) -> None:
        num_actions = as_integer(num_actions, "CategoricalHead", "num_actions", least=1)
        super().__init__(as_integer(in_features, "CategoricalHead", "in_features", least=0), num_actions)
        nn.init.orthogonal_(self.weight, gain)
        nn.init.zeros_(self.bias)


class NormalHead(nn.Module):
    """Features to the mean and the standard deviation of a normal or tanh-normal distribution.

    Args:
        in_features: Width of the features.
        action_features: Number of action dimensions.
        state_dependent: Whether the standard deviation is computed from the features; otherwise it is a
            parameter of its own, the same in every state.
        scale_init: Standard deviation at the start (of a state-dependent one: where the features are zero).
        scale_lb: Lower bound of the standard deviation.
        gain: Scale of the orthogonal initial weights.

    Shapes: ``[*B, in_features]`` to ``loc`` and ``scale``, ``[*B, action_features]`` each.

    Raises:
        ArgumentError: if `scale_init` is not above `scale_lb`.

    Example:
        >>> loc, scale = NormalHead(64, 2, scale_init=0.5)(torch.zeros(3, 64))
        >>> loc.shape, scale[0]
        (torch.Size([3, 2]), tensor([0.5000, 0.5000], grad_fn=...))
    """

    def __init__(
        self,
        in_features: int,
        action_features: int,
        *,
        state_dependent: bool = False,
        scale_init: float = 1.0,
        scale_lb: float = 1e-4,
        gain: float = 0.01,
    ) -> None:
        super().__init__()
        if not scale_init > scale_lb > 0:
            raise ArgumentError(f"NormalHead needs scale_init > scale_lb > 0, got {scale_init} and {scale_lb}")
        in_features = as_integer(in_features, "NormalHead", "in_features", least=0)
        action_features = as_integer(action_features, "NormalHead", "action_features", least=0)
        self.out_features, self.scale_lb = action_features, scale_lb
        self.loc = nn.Linear(in_features, action_features)
        nn.init.orthogonal_(self.loc.weight, gain)
        nn.init.zeros_(self.loc.bias)
        if state_dependent:
            self.scale = nn.Linear(in_features, action_features)
            nn.init.orthogonal_(self.scale.weight, gain)
            nn.init.zeros_(self.scale.bias)
            self._mapping = scale_mapping(f"biased_softplus_{scale_init}_{scale_lb}")
        else:
            self.scale = None
            self.log_scale = nn.Parameter(torch.full((action_features,), scale_init).log())

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation."""
        loc = self.loc(features)
        if self.scale is not None:
            return loc, self._mapping(self.scale(features))
        return loc, self.log_scale.exp().clamp_min(self.scale_lb).expand_as(loc)


class ImpalaNet(nn.Module):
    """Deep residual network of IMPALA, without its recurrent layer.

    Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures", 2018,
    figure 3 (right). Each section is a convolution, a max-pooling with stride 2, and two residual blocks. For the
    recurrent layer, put an `LSTMModule` after it.

    Args:
        in_features: Channels of the input; found out at the first call if None.
        channels: Channels of each section; ``[32, 64, 64]`` is twice as wide as in the paper.
        out_features: Width of the features.
        device: Device of the parameters.

    Shapes: floating-point pixels ``[*B, C, H, W]`` to ``[*B, out_features]``.

    Raises:
        ArgumentError: if there is no section, or a width is no positive integer.
        ShapeError: in the call, if there are fewer than three dimensions, or pixels are integers.

    Example:
        >>> ImpalaNet()(torch.zeros(5, 3, 64, 64)).shape
        torch.Size([5, 256])
    """

    def __init__(
        self,
        in_features: int | None = None,
        channels: Sequence[int] = (16, 32, 32),
        out_features: int = 256,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        widths = [as_integer(one, "ImpalaNet", "an entry of channels", least=1) for one in channels]
        if not widths:
            raise ArgumentError("ImpalaNet got channels=(); it needs at least one section")
        self.in_features = None if in_features is None else as_integer(in_features, "ImpalaNet", "in_features", least=1)
        self.out_features = as_integer(out_features, "ImpalaNet", "out_features", least=1)
        before: list[int | None] = [self.in_features, *widths[:-1]]
        self.sections = nn.Sequential(*[_section(a, b, device) for a, b in zip(before, widths, strict=True)])
        self.head = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.LazyLinear(self.out_features, device=device), nn.ReLU())

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of images.

        Raises:
            ShapeError: if there are fewer than three dimensions, the channels are not `in_features`, or the pixels are
                integers.
        """
        if pixels.ndim < 3 or (self.in_features is not None and pixels.shape[-3] != self.in_features):
            channels = "C" if self.in_features is None else self.in_features
            raise ShapeError(f"ImpalaNet expects pixels [*B, {channels}, H, W], got {tuple(pixels.shape)}")
        if not pixels.is_floating_point():
            raise ShapeError(f"ImpalaNet expects floating-point pixels, got {pixels.dtype}: scale them, as by x / 255")
        batch = pixels.shape[:-3]
        features = self.head(self.sections(pixels.reshape(-1, *pixels.shape[-3:])))
        return features.reshape(*batch, self.out_features)


def _section(before: int | None, width: int, device: torch.device | str | None) -> nn.Sequential:
    options: Any = {"kernel_size": 3, "padding": 1, "device": device}
    first = nn.LazyConv2d(width, **options) if before is None else nn.Conv2d(before, width, **options)
    pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return nn.Sequential(first, pool, _ResidualBlock(width, options), _ResidualBlock(width, options))


class _ResidualBlock(nn.Module):
    """``x + conv(relu(conv(relu(x))))``."""

    def __init__(self, width: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, **options), nn.Conv2d(width, width, **options)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x.relu()).relu())
