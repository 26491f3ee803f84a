"""Linear layers with noisy weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict.nn import InteractionType
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

__all__ = ["NoisyLazyLinear", "NoisyLinear", "reset_noise"]


class NoisyLinear(nn.Linear):
    """Linear layer with factorized normal noise on its weights, whose scale is learned.

    Fortunato et al., "Noisy Networks for Exploration", 2018, eq. 9 to 11: ``w = mu + sigma * f(e_out) f(e_in)^T`` with
    ``f(x) = sign(x) sqrt(|x|)``. The noise stays the same until `reset_noise` is called; it is off in evaluation mode.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether there is a bias, noisy, too.
        device: where the parameters are made.
        dtype: of the parameters.
        std_init: scale of the noise at the start, times ``1 / sqrt(in_features)`` for weights and
            ``1 / sqrt(out_features)`` for biases; 0.5 in the paper.
        use_exploration_type: whether noise is on in `set_exploration_type` ``"random"`` only, in both modes of the
            module, instead of in training mode.

    Shapes: ``[*B, in_features]`` to ``[*B, out_features]``.

    Example:
        >>> layer = NoisyLinear(4, 2)
        >>> before = layer(torch.ones(4))
        >>> reset_noise(layer)
        >>> bool((layer(torch.ones(4)) != before).any())
        True
        >>> layer.eval()(torch.zeros(4)).equal(layer.bias_mu)
        True
    """

    weight_mu: nn.Parameter
    weight_sigma: nn.Parameter
    weight_epsilon: Tensor
    bias_mu: nn.Parameter | None
    bias_sigma: nn.Parameter | None
    bias_epsilon: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,  # noqa: FBT001, FBT002  torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        std_init: float = 0.1,
        *,
        use_exploration_type: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = int(in_features), int(out_features)
        self.std_init, self.use_exploration_type = std_init, use_exploration_type
        shapes = {"weight": (out_features, in_features), "bias": (out_features,) if bias else None}
        for name, shape in shapes.items():
            for part in ("mu", "sigma"):
                value = None if shape is None else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(f"{name}_{part}", value)
            noise = None if shape is None else torch.empty(shape, device=device, dtype=dtype)
            self.register_buffer(f"{name}_epsilon", noise)
        self.reset_parameters()
        self.reset_noise()

    def reset_parameters(self) -> None:
        """Set means uniform within ``1 / sqrt(in_features)``, and the scales of the noise to their start."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        nn.init.uniform_(self.weight_mu, -bound, bound)
        nn.init.constant_(self.weight_sigma, self.std_init * bound)
        if self.bias_mu is not None and self.bias_sigma is not None:
            nn.init.uniform_(self.bias_mu, -bound, bound)
            nn.init.constant_(self.bias_sigma, self.std_init / math.sqrt(max(self.out_features, 1)))

    def reset_noise(self) -> None:
        """Draw new noise."""
        with torch.no_grad():
            of_input, of_output = _noise_like(self.weight_epsilon[0]), _noise_like(self.weight_epsilon[:, 0])
            self.weight_epsilon.copy_(torch.outer(of_output, of_input))
            if self.bias_epsilon is not None:
                self.bias_epsilon.copy_(of_output)

    @property
    def noisy(self) -> bool:
        """Whether noise is on."""
        if self.use_exploration_type:
            return interaction_type() is InteractionType.RANDOM
        return self.training

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]  # a parameter there
        """The weights that are used now, ``[out_features, in_features]``."""
        if not self.noisy:
            return self.weight_mu
        return torch.addcmul(self.weight_mu, self.weight_sigma, self.weight_epsilon)

    @property
    def bias(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]  # a parameter there
        """The biases that are used now, ``[out_features]``, if there are any."""
        if self.bias_mu is None or self.bias_sigma is None or self.bias_epsilon is None or not self.noisy:
            return self.bias_mu
        return torch.addcmul(self.bias_mu, self.bias_sigma, self.bias_epsilon)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """``input @ weight.T + bias``."""
        return linear(input, self.weight, self.bias)


class NoisyLazyLinear(LazyModuleMixin, NoisyLinear):
    """`NoisyLinear` that finds out the width of its input at the first call.

    Args:
        out_features: width of the output.
        bias: whether there is a bias, noisy, too.
        device: where the parameters are made.
        dtype: of the parameters.
        std_init: scale of the noise at the start, see `NoisyLinear`.
        use_exploration_type: what turns the noise on, see `NoisyLinear`.

    Example:
        >>> layer = NoisyLazyLinear(2)
        >>> layer(torch.zeros(5, 4)).shape, layer.in_features
        (torch.Size([5, 2]), 4)
    """

    cls_to_become: Any = NoisyLinear

    def __init__(
        self,
        out_features: int,
        bias: bool = True,  # noqa: FBT001, FBT002  torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        std_init: float = 0.1,
        *,
        use_exploration_type: bool = False,
    ) -> None:
        parent: Any = super()  # typed by torch as a protocol that no module fits
        parent.__init__(0, 0, bias, device, dtype, std_init, use_exploration_type=use_exploration_type)
        self.out_features = int(out_features)
        options: Any = {"device": device, "dtype": dtype}
        for name in ("weight", "bias") if bias else ("weight",):
            for part in ("mu", "sigma"):
                setattr(self, f"{name}_{part}", UninitializedParameter(**options))
            setattr(self, f"{name}_epsilon", UninitializedBuffer(**options))

    def reset_parameters(self) -> None:
        """As in `NoisyLinear`, once the width is known."""
        if self.in_features:
            super().reset_parameters()

    def reset_noise(self) -> None:
        """As in `NoisyLinear`, once the width is known."""
        if self.in_features:
            super().reset_noise()

    def initialize_parameters(self, input: Tensor) -> None:  # noqa: A002  torch's name
        """Make the parameters for an input ``[*B, in_features]``."""
        lazy: Any = self  # typed by torch as a protocol that no module fits
        if not lazy.has_uninitialized_params():
            return
        self.in_features = input.shape[-1]
        for name, shape in (("weight", (self.out_features, self.in_features)), ("bias", (self.out_features,))):
            for part in ("mu", "sigma", "epsilon"):
                value: Any = getattr(self, f"{name}_{part}")
                if value is not None:
                    value.materialize(shape)
        self.reset_parameters()
        self.reset_noise()


def reset_noise(layer: nn.Module) -> None:
    """Draw new noise in a layer that has some; for ``network.apply(reset_noise)``.

    Args:
        layer: a module; one without a method ``reset_noise`` stays as it is.

    Example:
        >>> from rl.modules import MLP
        >>> net = MLP(4, 2, num_cells=[8], layer_class=NoisyLinear)
        >>> _ = net.apply(reset_noise)
    """
    draw = getattr(layer, "reset_noise", None)
    if draw is not None:
        draw()


def _noise_like(row: Tensor) -> Tensor:
    noise = torch.randn_like(row)
    return noise.sign() * noise.abs().sqrt()
