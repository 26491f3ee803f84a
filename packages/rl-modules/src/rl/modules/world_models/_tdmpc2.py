"""Networks of TD-MPC2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ShapeError
from rl.modules.world_models._layers import softmax_of_groups

Device = torch.device | str | None


class SimNorm(nn.Module):
    """Simplicial normalization: a softmax over each group of features, which bounds latent states.

    Lavoie et al., "Simplicial embeddings in self-supervised learning and downstream classification", 2023; Hansen et
    al., "TD-MPC2: scalable, robust world models for continuous control", 2024, eq. 2.

    Args:
        dim: Size of a group.

    Shapes: ``[*B, n]`` to ``[*B, n]``, `n` a multiple of `dim`; each group sums to 1.

    Raises:
        ShapeError: In the call, if the width is no multiple of `dim`.

    Example:
        >>> SimNorm(2)(torch.zeros(1, 4))
        tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.dim = as_integer(dim, "SimNorm", "dim", least=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized features."""
        if x.shape[-1] % self.dim:
            raise ShapeError(f"SimNorm has groups of {self.dim}, got {x.shape[-1]} features: pass a multiple")
        return softmax_of_groups(x.unflatten(-1, (-1, self.dim))).flatten(-2)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class TDMPC2MLP(nn.Module):
    """Multi-layer perceptron of TD-MPC2: linear layers with layer normalization and Mish.

    Hansen et al., "TD-MPC2: scalable, robust world models for continuous control", 2024, appendix.

    Args:
        in_features: Width of all inputs together.
        out_features: Width of the output.
        num_cells: Widths of the hidden layers.
        dropout: Probability of dropping a feature of the first hidden layer; 0.01 in critics.
        sim_norm: Size of the groups of a `SimNorm` after the last layer, as in encoder and dynamics; None for a plain
            linear last layer.
        zero_last: Whether the last layer is 0 at first, as in reward and critics.
        device: Device of the parameters.

    Example:
        >>> TDMPC2MLP(6, 16, [8, 8], sim_norm=8)(torch.randn(3, 4), torch.randn(3, 2)).shape
        torch.Size([3, 16])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_cells: Sequence[int] = (512, 512),
        *,
        dropout: float = 0.0,
        sim_norm: int | None = None,
        zero_last: bool = False,
        device: Device = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index, width in enumerate(num_cells):
            layers.append(nn.Linear(in_features, width, device=device))
            if dropout and index == 0:
                layers.append(nn.Dropout(dropout))
            layers += [nn.LayerNorm(width, device=device), nn.Mish()]
            in_features = width
        layers.append(nn.Linear(in_features, out_features, device=device))
        self.zero_last, self._last = zero_last, len(layers) - 1
        if sim_norm is not None:
            layers += [nn.LayerNorm(out_features, device=device), SimNorm(sim_norm)]
        self.net = nn.Sequential(*layers)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights: normal with 0.02, cut at two units as `trunc_normal_` does, and biases of 0."""
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        if self.zero_last:
            nn.init.zeros_(self.net[self._last].weight)  # pyright: ignore[reportArgumentType]

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the output of the concatenated inputs."""
        return self.net(inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1))


class TDMPC2Actor(nn.Module):
    """Policy network of TD-MPC2: mean and standard deviation of a normal distribution before its tanh.

    Hansen et al., "TD-MPC2: scalable, robust world models for continuous control", 2024.

    Args:
        in_features: Width of the latent state.
        out_features: Width of the action.
        num_cells: Widths of the hidden layers.
        log_std_min: Least logarithm of the standard deviation.
        log_std_max: Largest logarithm of the standard deviation.
        device: Device of the parameters.

    Shapes: ``[*B, in_features]`` to ``loc`` and ``scale`` ``[*B, out_features]``.

    Example:
        >>> loc, scale = TDMPC2Actor(8, 2, [16])(torch.zeros(3, 8))
        >>> loc.shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_cells: Sequence[int] = (512, 512),
        *,
        log_std_min: float = -10.0,
        log_std_max: float = 2.0,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.net = TDMPC2MLP(in_features, 2 * out_features, num_cells, device=device)
        self.log_std_min = as_number(log_std_min, "TDMPC2Actor", "log_std_min")
        self.log_std_max = as_number(log_std_max, "TDMPC2Actor", "log_std_max", least=log_std_min)

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation."""
        mean, raw = self.net(latent).chunk(2, -1)
        share = 0.5 * (F.tanh(raw) + 1)
        return mean, (self.log_std_min + (self.log_std_max - self.log_std_min) * share).exp()
