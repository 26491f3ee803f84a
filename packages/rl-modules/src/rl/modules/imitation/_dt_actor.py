"""Networks of policies on a decision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl.modules.imitation._decision_transformer import DecisionTransformer, DTConfig

__all__ = ["DTActor", "OnlineDTActor"]

#: limits of the logarithm of a standard deviation
LEAST, MOST = -5.0, 2.0


class _DTNetwork(nn.Module):
    """A `DecisionTransformer` with linear outputs."""

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        transformer_config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__()
        config = self.default_config() if transformer_config is None else transformer_config
        self.transformer = DecisionTransformer(state_dim, action_dim, config, device)

    @classmethod
    def default_config(cls) -> DTConfig:
        """The sizes of the transformer if none are given."""
        return DTConfig(n_embd=512, n_inner=2048)

    def _output(self, device: Any) -> nn.Linear:
        layer = nn.Linear(self.transformer.config.n_embd, self.transformer.action_dim, device=device)
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer


class DTActor(_DTNetwork):
    """Network of the deterministic policy of a decision transformer.

    Chen et al., "Decision transformer: reinforcement learning via sequence modeling", 2021. The output is not bounded:
    use it as the parameter of a `TanhDelta`. `DecisionTransformerInferenceWrapper` acts with it step by step.

    Args:
        state_dim: width of an observation.
        action_dim: width of an action.
        transformer_config: a `DecisionTransformer.DTConfig`, or a mapping of its fields; `default_config` if None.
        device: of the parameters.

    Shapes: observation ``[*B, T, state_dim]``, action ``[*B, T, action_dim]`` and return-to-go ``[*B, T, 1]`` to
    actions ``[*B, T, action_dim]``, each computed without the actions from its own step on.

    Raises:
        SpecError: if an argument is out of its range.
        ShapeError: in the call, as for `DecisionTransformer`.

    Example:
        >>> net = DTActor(4, 2, {"n_embd": 32, "n_inner": 64})
        >>> net(torch.randn(3, 10, 4), torch.randn(3, 10, 2), torch.randn(3, 10, 1)).shape
        torch.Size([3, 10, 2])
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        transformer_config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(state_dim, action_dim, transformer_config, device)
        self.action_layer = self._output(device)

    def forward(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> Tensor:
        """Actions ``[*B, T, action_dim]``."""
        return self.action_layer(self.transformer(observation, action, return_to_go))


class OnlineDTActor(_DTNetwork):
    """Network of the stochastic policy of an online decision transformer: means and standard deviations.

    Zheng et al., "Online decision transformer", 2022, eq. 2. The logarithm of the standard deviation is squashed into
    [-5, 2]. Use it with `TanhNormal`; `DecisionTransformerInferenceWrapper` acts with it step by step.

    Args:
        state_dim: width of an observation.
        action_dim: width of an action.
        transformer_config: a `DecisionTransformer.DTConfig`, or a mapping of its fields; `default_config` if None.
        device: of the parameters.

    Shapes: observation ``[*B, T, state_dim]``, action ``[*B, T, action_dim]`` and return-to-go ``[*B, T, 1]`` to means
    and standard deviations ``[*B, T, action_dim]``.

    Raises:
        SpecError: if an argument is out of its range.
        ShapeError: in the call, as for `DecisionTransformer`.

    Example:
        >>> net = OnlineDTActor(4, 2, {"n_embd": 32, "n_inner": 64})
        >>> loc, scale = net(torch.randn(3, 10, 4), torch.randn(3, 10, 2), torch.randn(3, 10, 1))
        >>> scale.shape, bool((scale > 0).all())
        (torch.Size([3, 10, 2]), True)
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        transformer_config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(state_dim, action_dim, transformer_config, device)
        self.action_layer_mean, self.action_layer_logstd = self._output(device), self._output(device)

    def forward(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations, each ``[*B, T, action_dim]``."""
        features = self.transformer(observation, action, return_to_go)
        share = (self.action_layer_logstd(features).tanh() + 1) / 2
        return self.action_layer_mean(features), (LEAST + (MOST - LEAST) * share).exp()
