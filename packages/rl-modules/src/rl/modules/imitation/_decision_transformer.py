"""Decision transformer: a causal transformer over returns-to-go, states and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_integer
from rl.core.errors import ShapeError, SpecError

__all__ = ["DTConfig", "DecisionTransformer"]

_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh}

#: tokens of a step: return-to-go, state, action
TOKENS = 3


@dataclass
class DTConfig:
    """Sizes of a `DecisionTransformer`.

    Args:
        n_embd: width of a token, a multiple of `n_head`.
        n_layer: layers.
        n_head: heads of the attention.
        n_inner: width of the hidden layer between two attentions.
        activation: of that layer, ``"relu"``, ``"gelu"``, ``"silu"`` or ``"tanh"``.
        n_positions: largest number of tokens; a step has three.
        resid_pdrop: dropout of the output of each attention and each hidden layer, in [0, 1).
        attn_pdrop: dropout of the weights of the attention, in [0, 1).

    Raises:
        SpecError: if a value is out of its range.

    Example:
        >>> DTConfig(n_embd=128).n_layer
        4
    """

    n_embd: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_inner: int = 1024
    activation: str = "relu"
    n_positions: int = 1024
    resid_pdrop: float = 0.1
    attn_pdrop: float = 0.1

    def __post_init__(self) -> None:
        for name in ("n_embd", "n_layer", "n_head", "n_inner", "n_positions"):
            as_integer(getattr(self, name), "DTConfig", name, least=1)
        if self.n_embd % self.n_head:
            raise SpecError(f"DTConfig got n_embd={self.n_embd}, which n_head={self.n_head} does not divide")
        if self.activation not in _ACTIVATIONS:
            raise SpecError(f"DTConfig knows no activation {self.activation!r}; it knows {', '.join(_ACTIVATIONS)}")
        for name in ("resid_pdrop", "attn_pdrop"):
            if not 0 <= getattr(self, name) < 1:
                raise SpecError(f"DTConfig got {name}={getattr(self, name)}; it is in [0, 1)")


class DecisionTransformer(nn.Module):
    """Causal transformer over the tokens (return-to-go, state, action) of successive steps.

    Chen et al., "Decision transformer: reinforcement learning via sequence modeling", 2021, algorithm 1, with the
    positions of GPT-2: the output at a step depends on the returns-to-go and states up to that step, and on the actions
    before it. Positions count from the first step of the sequence.

    Args:
        state_dim: width of an observation.
        action_dim: width of an action.
        config: a `DTConfig`, or a mapping of its fields; `default_config` if None.
        device: of the parameters.

    Shapes: observation ``[*B, T, state_dim]``, action ``[*B, T, action_dim]`` and return-to-go ``[*B, T, 1]`` to
    features ``[*B, T, n_embd]``.

    Raises:
        SpecError: if an argument is out of its range.
        ShapeError: in the call, if shapes do not agree, or there are more than ``n_positions // 3`` steps.

    Example:
        >>> net = DecisionTransformer(4, 2, DecisionTransformer.DTConfig(n_embd=32, n_inner=64))
        >>> net(torch.randn(3, 10, 4), torch.randn(3, 10, 2), torch.randn(3, 10, 1)).shape
        torch.Size([3, 10, 32])
    """

    DTConfig = DTConfig

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.state_dim = as_integer(state_dim, owner, "state_dim", least=1)
        self.action_dim = as_integer(action_dim, owner, "action_dim", least=1)
        self.config = config = _as_config(config, self.default_config(), owner)
        width = config.n_embd
        self.embed_return = nn.Linear(1, width, device=device)
        self.embed_state = nn.Linear(state_dim, width, device=device)
        self.embed_action = nn.Linear(action_dim, width, device=device)
        self.embed_ln = nn.LayerNorm(width, device=device)
        self.positions = nn.Parameter(torch.empty(config.n_positions, width, device=device))
        self.blocks = nn.ModuleList(_Block(config, device) for _ in range(config.n_layer))
        self.last_ln = nn.LayerNorm(width, device=device)
        nn.init.normal_(self.positions, std=0.02)
        for part in self.blocks.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)

    @classmethod
    def default_config(cls) -> DTConfig:
        """The sizes if none are given."""
        return DTConfig()

    def forward(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> Tensor:
        """Features of each step, from the tokens up to its state.

        Raises:
            ShapeError: see the class.
        """
        self._check(observation, action, return_to_go)
        *batch, steps, _ = observation.shape
        parts = self.embed_return(return_to_go), self.embed_state(observation), self.embed_action(action)
        tokens = torch.stack(parts, -2).reshape(-1, TOKENS * steps, self.config.n_embd)
        x = self.embed_ln(tokens) + self.positions[: TOKENS * steps]
        for block in self.blocks:
            x = block(x)
        return self.last_ln(x).reshape(*batch, steps, TOKENS, -1).select(-2, 1)

    def _check(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> None:
        before = observation.shape[:-1]
        expected = {
            "observation": (observation, (*before, self.state_dim)),
            "action": (action, (*before, self.action_dim)),
            "return_to_go": (return_to_go, (*before, 1)),
        }
        for name, (value, shape) in expected.items():
            if tuple(value.shape) != shape or value.ndim < 2:
                wanted = [*map(str, before), shape[-1]] if value.ndim > 1 else ["*B", "T", shape[-1]]
                raise ShapeError(
                    f"{type(self).__name__} got {name} {list(value.shape)}, expected [{', '.join(map(str, wanted))}]:"
                    " sequences, time before the last dimension"
                )
        if TOKENS * before[-1] > self.config.n_positions:
            raise ShapeError(
                f"{type(self).__name__} got {before[-1]} steps, which are {TOKENS * before[-1]} tokens, and has"
                f" n_positions={self.config.n_positions}: give shorter sequences"
            )


class _Block(nn.Module):
    """Attention and a hidden layer, each after a normalization and added to its input, as in GPT-2."""

    def __init__(self, config: DTConfig, device: Any) -> None:
        super().__init__()
        width = config.n_embd
        self.config, self.activation = config, _ACTIVATIONS[config.activation]
        self.attention_ln, self.hidden_ln = nn.LayerNorm(width, device=device), nn.LayerNorm(width, device=device)
        self.query_key_value = nn.Linear(width, 3 * width, device=device)
        self.attended = nn.Linear(width, width, device=device)
        self.hidden = nn.Linear(width, config.n_inner, device=device)
        self.out = nn.Linear(config.n_inner, width, device=device)
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attended(self._attend(self.attention_ln(x))))
        return x + self.dropout(self.out(self.activation(self.hidden(self.hidden_ln(x)))))

    def _attend(self, x: Tensor) -> Tensor:
        """Causal attention of tokens ``[N, L, width]``."""
        parts = self.query_key_value(x).unflatten(-1, (3, self.config.n_head, -1)).permute(2, 0, 3, 1, 4)
        rate = self.config.attn_pdrop if self.training else 0.0
        query, key, value = parts.unbind(0)
        return (
            F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
            .transpose(1, 2)
            .flatten(-2)
        )


def _as_config(given: Any, default: DTConfig, owner: str) -> DTConfig:
    if given is None:
        return default
    if isinstance(given, DTConfig):
        return given
    try:
        return DTConfig(**given)
    except TypeError as error:
        raise SpecError(f"{owner} got config={given!r}; it is a DTConfig, or a mapping of its fields") from error
