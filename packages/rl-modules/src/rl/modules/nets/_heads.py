"""Last layers that give the parameters of a distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer
from rl.core.errors import SpecError
from rl.modules.distributions._params import scale_mapping

__all__ = ["CategoricalHead", "NormalHead"]


class CategoricalHead(nn.Linear):
    """Features to the logits of a categorical or one-hot distribution.

    Args:
        in_features: width of the features.
        num_actions: number of actions.
        gain: of the orthogonal initial weights; a small one starts from a nearly uniform policy.

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
        in_features: width of the features.
        action_features: number of action dimensions.
        state_dependent: whether the standard deviation is computed from the features; otherwise it is a
            parameter of its own, the same in every state.
        scale_init: standard deviation at the start (of a state-dependent one: where the features are zero).
        scale_lb: lower bound of the standard deviation.
        gain: of the orthogonal initial weights.

    Shapes: ``[*B, in_features]`` to ``loc`` and ``scale``, ``[*B, action_features]`` each.

    Raises:
        SpecError: if `scale_init` is not above `scale_lb`.

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
            raise SpecError(f"NormalHead needs scale_init > scale_lb > 0, got {scale_init} and {scale_lb}")
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
