"""Recurrent state-space models: one step of prior and posterior, with Gaussian and with categorical states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError
from rl.modules.distributions._base import NormalParamExtractor
from rl.modules.world_models._layers import (
    BlockLinear,
    DreamerLinear,
    GRUCell,
    LazyLinear,
    Linear,
    RMSNorm,
    hidden_layers,
    linear,
)
from rl.modules.world_models._two_hot import straight_through, unimix_logits

Device = torch.device | str | None


@runtime_checkable
class Prior(Protocol):
    """Parts of a prior that a rollout calls: those outside of the recurrence see complete sequences at once."""

    def embed(self, action: Tensor) -> Tensor:
        """Return what the recurrence reads of actions ``[*B, a]``."""
        ...

    def recur(self, state: Tensor, belief: Tensor, embedded: Tensor) -> Tensor:
        """Return the belief after one step."""
        ...

    def head(self, belief: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of the state's distribution, and a sample."""
        ...

    def draw(self, belief: Tensor) -> Tensor:
        """Draw the noise of one step with beliefs ``[*B, h]``."""
        ...


@runtime_checkable
class Posterior(Protocol):
    """Parts of a posterior that a rollout calls."""

    def embed(self, obs_embedding: Tensor, belief_width: int) -> Tensor:
        """Return what `infer` reads of encoded observations ``[*B, e]``."""
        ...

    def infer(self, belief: Tensor, embedded: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of the state's distribution, and a sample."""
        ...

    def draw(self, belief: Tensor) -> Tensor:
        """Draw the noise of one step with beliefs ``[*B, h]``."""
        ...


def _first_layer(in_features: int | None, out_features: int, device: Device) -> nn.Linear:
    if in_features is None:
        return LazyLinear(out_features, device=device)
    return Linear(in_features, out_features, device=device)


def _columns(first: nn.Linear, start: int, size: int, like: Tensor) -> Tensor:
    """Return the weight for `size` inputs from `start` on, which are the last ones of a lazy layer."""
    if is_lazy(first.weight):
        first(like.new_zeros(1, start + size))
    return first.weight[:, start : start + size]


class RSSMPrior(nn.Module):
    """Prior of a recurrent state-space model with Gaussian states, as in Dreamer: the state before its observation.

    Hafner et al., "Learning latent dynamics for planning from pixels", 2019, eq. 4. The belief is the deterministic
    part of the state: ``belief' = GRU(ELU(W [state, action]), belief)``; the state is normal with mean and standard
    deviation of ``belief'``.

    Args:
        action_spec: Spec of the action; kept as `action_shape`.
        hidden_dim: Width of the hidden layers.
        rnn_hidden_dim: Width of the belief.
        state_dim: Width of the state.
        scale_lb: Least standard deviation.
        action_dim: Width of the action; found out at the first call if None.
        device: Device of the parameters.

    Shapes: state ``[*B, state_dim]``, belief ``[*B, rnn_hidden_dim]`` and action ``[*B, action_dim]`` to mean, standard
    deviation and sample of the next state, and the next belief.

    Example:
        >>> from rl.core.specs import Bounded
        >>> prior = RSSMPrior(Bounded(-1, 1, (2,)), hidden_dim=8, rnn_hidden_dim=8, state_dim=3)
        >>> mean, std, state, belief = prior(torch.zeros(5, 3), torch.zeros(5, 8), torch.zeros(5, 2))
        >>> state.shape, belief.shape
        (torch.Size([5, 3]), torch.Size([5, 8]))
    """

    def __init__(
        self,
        action_spec: Any,
        hidden_dim: int = 200,
        rnn_hidden_dim: int = 200,
        state_dim: int = 30,
        scale_lb: float = 0.1,
        action_dim: int | None = None,
        device: Device = None,
    ) -> None:
        super().__init__()
        width = None if action_dim is None else state_dim + action_dim
        self.state_dim, self.rnn_hidden_dim = state_dim, rnn_hidden_dim
        self.action_shape = torch.Size(action_spec.shape)
        self.rnn = GRUCell(hidden_dim, rnn_hidden_dim, device=device)
        self.action_state_projector = nn.Sequential(_first_layer(width, hidden_dim, device), nn.ELU())
        self.rnn_to_prior_projector = nn.Sequential(
            Linear(rnn_hidden_dim, hidden_dim, device=device),
            nn.ELU(),
            Linear(hidden_dim, 2 * state_dim, device=device),
            NormalParamExtractor(scale_mapping="softplus", scale_lb=scale_lb),
        )

    def embed(self, action: Tensor) -> Tensor:
        """Return the contribution of actions to the first layer, ``[*B, hidden_dim]``."""
        first = self._first
        return linear(action, _columns(first, self.state_dim, action.shape[-1], action), first.bias)

    @property
    def _first(self) -> nn.Linear:
        return self.action_state_projector[0]  # pyright: ignore[reportReturnType]

    def recur(self, state: Tensor, belief: Tensor, embedded: Tensor) -> Tensor:
        """Return the belief after a step with embedded actions, ``[*B, rnn_hidden_dim]``."""
        hidden = self.action_state_projector[1](embedded + linear(state, self._first.weight[:, : self.state_dim], None))
        if not torch.is_autocast_enabled(hidden.device.type):
            return self.rnn(hidden, belief)
        with torch.autocast(hidden.device.type, enabled=False):  # errors of a recurrence add up
            return self.rnn(hidden.float(), belief.float()).to(belief.dtype)

    def head(self, belief: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return mean, standard deviation and sample of the state, ``[*B, state_dim]`` each."""
        mean, std = self.rnn_to_prior_projector(belief)
        return mean, std, torch.addcmul(mean, noise, std)

    def draw(self, belief: Tensor) -> Tensor:
        """Draw normal noise, ``[*B, state_dim]``."""
        return torch.randn(*belief.shape[:-1], self.state_dim, dtype=belief.dtype, device=belief.device)

    def forward(
        self, state: Tensor, belief: Tensor, action: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return mean, standard deviation and sample of the next state, and the next belief.

        Args:
            state: State before the step, ``[*B, state_dim]``.
            belief: Belief before the step, ``[*B, rnn_hidden_dim]``.
            action: Action of the step, ``[*B, action_dim]``.
            noise: Standard normal noise of the sample, ``[*B, state_dim]``; drawn if None.
        """
        belief = self.recur(state, belief, self.embed(action))
        mean, std, state = self.head(belief, self.draw(belief) if noise is None else noise)
        return mean, std, state, belief


class RSSMPosterior(nn.Module):
    """Posterior of a recurrent state-space model with Gaussian states: the state after its observation.

    Hafner et al., "Learning latent dynamics for planning from pixels", 2019, eq. 4.

    Args:
        hidden_dim: Width of the hidden layer.
        state_dim: Width of the state.
        scale_lb: Least standard deviation.
        rnn_hidden_dim: Width of the belief; found out at the first call if None.
        obs_embed_dim: Width of the encoded observation; found out at the first call if None.
        device: Device of the parameters.

    Shapes: belief ``[*B, rnn_hidden_dim]`` and encoded observation ``[*B, obs_embed_dim]`` to mean, standard deviation
    and sample of the state, ``[*B, state_dim]`` each.

    Example:
        >>> posterior = RSSMPosterior(hidden_dim=8, state_dim=3)
        >>> mean, std, state = posterior(torch.zeros(5, 8), torch.zeros(5, 4))
        >>> state.shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        hidden_dim: int = 200,
        state_dim: int = 30,
        scale_lb: float = 0.1,
        rnn_hidden_dim: int | None = None,
        obs_embed_dim: int | None = None,
        device: Device = None,
    ) -> None:
        super().__init__()
        width = None if rnn_hidden_dim is None or obs_embed_dim is None else rnn_hidden_dim + obs_embed_dim
        self.hidden_dim, self.state_dim = hidden_dim, state_dim
        self.obs_rnn_to_post_projector = nn.Sequential(
            _first_layer(width, hidden_dim, device),
            nn.ELU(),
            Linear(hidden_dim, 2 * state_dim, device=device),
            NormalParamExtractor(scale_mapping="softplus", scale_lb=scale_lb),
        )

    @property
    def _first(self) -> nn.Linear:
        return self.obs_rnn_to_post_projector[0]  # pyright: ignore[reportReturnType]

    def embed(self, obs_embedding: Tensor, belief_width: int) -> Tensor:
        """Return the contribution of encoded observations to the first layer, ``[*B, hidden_dim]``."""
        first = self._first
        return linear(obs_embedding, _columns(first, belief_width, obs_embedding.shape[-1], obs_embedding), first.bias)

    def infer(self, belief: Tensor, embedded: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return mean, standard deviation and sample of the state, ``[*B, state_dim]`` each."""
        hidden = embedded + linear(belief, self._first.weight[:, : belief.shape[-1]], None)
        mean, std = self.obs_rnn_to_post_projector[1:](hidden)
        return mean, std, torch.addcmul(mean, noise, std)

    def draw(self, belief: Tensor) -> Tensor:
        """Draw normal noise, ``[*B, state_dim]``."""
        return torch.randn(*belief.shape[:-1], self.state_dim, dtype=belief.dtype, device=belief.device)

    def forward(
        self, belief: Tensor, obs_embedding: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, standard deviation and sample of the state.

        Args:
            belief: Belief of the prior, ``[*B, rnn_hidden_dim]``.
            obs_embedding: Encoded observation, ``[*B, obs_embed_dim]``.
            noise: Standard normal noise of the sample, ``[*B, state_dim]``; drawn if None.
        """
        embedded = self.embed(obs_embedding, belief.shape[-1])
        mean, std, state = self.infer(belief, embedded, self.draw(belief) if noise is None else noise)
        return mean, std, state


class _Categoricals(nn.Module):
    """States of several one-hot categoricals, mixed with the uniform distribution."""

    def __init__(self, owner: str, num_categoricals: int, num_classes: int, unimix: float) -> None:
        super().__init__()
        self.num_categoricals = as_integer(num_categoricals, owner, "num_categoricals", least=1)
        self.num_classes = as_integer(num_classes, owner, "num_classes", least=2)
        self.unimix = as_number(unimix, owner, "unimix", least=0, below=1)

    def draw(self, belief: Tensor) -> Tensor:
        """Draw exponential noise, ``[*B, num_categoricals, num_classes]``."""
        size = (*belief.shape[:-1], self.num_categoricals, self.num_classes)
        # A quarter of the time of Tensor.exponential_ on a CPU; 0 becomes infinite, which is never the largest.
        return torch.rand(size, dtype=belief.dtype, device=belief.device).log_().neg_()

    def _sample(self, flat: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``[*B, num_categoricals, num_classes]`` and the sampled state ``[*B, num_categoricals * ...]``."""
        logits = flat.unflatten(-1, (self.num_categoricals, self.num_classes))
        wide = logits if logits.dtype is torch.float64 else logits.float()
        return logits, straight_through(unimix_logits(wide, self.unimix), noise.to(wide)).flatten(-2).to(flat)


class BlockGRU(nn.Module):
    """Recurrent core of DreamerV3: a gated recurrent unit whose recurrent weights are block-diagonal.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025. Each block of the belief sees
    itself, and projections of the entire belief, the state and the action. ``reset``, ``candidate`` and ``update`` are
    the gates: ``belief' = u * tanh(sigmoid(reset) * candidate) + (1 - u) * belief`` with ``u = sigmoid(update - 1)``.

    Args:
        state_dim: Width of the state.
        action_dim: Width of the action.
        hidden_dim: Width of each of the three projections.
        belief_dim: Width of the belief, a multiple of `num_blocks`.
        num_blocks: Number of blocks.
        num_layers: Number of hidden layers of blocks.
        norm_eps: Addend of the RMS normalization.
        device: Device of the parameters.
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        hidden_dim: int,
        belief_dim: int,
        num_blocks: int = 8,
        num_layers: int = 1,
        norm_eps: float = 1e-4,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.num_blocks = num_blocks
        self.belief_projection, self.state_projection, self.action_projection = (
            hidden_layers(width, hidden_dim, 1, norm_eps, device) for width in (belief_dim, state_dim, action_dim)
        )
        layers: list[nn.Module] = []
        width = belief_dim + 3 * hidden_dim * num_blocks
        for _ in range(as_integer(num_layers, "BlockGRU", "num_layers", least=1)):
            layers += [BlockLinear(width, belief_dim, num_blocks, device), RMSNorm(belief_dim, norm_eps, device=device)]
            layers.append(nn.SiLU())
            width = belief_dim
        self.hidden_layers = nn.Sequential(*layers)
        self.gates = BlockLinear(belief_dim, 3 * belief_dim, num_blocks, device)

    def embed(self, action: Tensor) -> Tensor:
        """Return the projection of actions ``[*B, a]``, which are scaled into [-1, 1] without gradient of the scale."""
        return self.action_projection(action / action.detach().abs().clamp_min(1))

    def forward(self, state: Tensor, belief: Tensor, embedded: Tensor) -> Tensor:
        """Return the belief after a step with embedded actions, ``[*B, belief_dim]``."""
        shared = torch.cat((self.belief_projection(belief), self.state_projection(state), embedded), -1)
        blocks = belief.unflatten(-1, (self.num_blocks, -1))
        shared = shared.unsqueeze(-2).expand(*blocks.shape[:-1], -1)
        hidden = self.hidden_layers(torch.cat((blocks, shared), -1).flatten(-2))
        gates = self.gates(hidden).unflatten(-1, (self.num_blocks, 3, -1))
        reset, candidate, update = (gate.flatten(-2) for gate in gates.unbind(-2))
        return torch.lerp(belief, (reset.sigmoid() * candidate).tanh(), (update - 1).sigmoid())


class RSSMPriorV3(_Categoricals):
    """Prior of DreamerV3's recurrent state-space model, with categorical states.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 3: `BlockGRU`, and a network
    from the belief to the logits of the state. Defaults are those of the model with 200 million parameters.

    Args:
        action_spec: Spec of the action, for its width.
        hidden_dim: Width of the hidden layers.
        rnn_hidden_dim: Width of the belief, a multiple of `num_blocks`.
        num_categoricals: Number of categoricals of the state.
        num_classes: Number of classes of each.
        action_dim: Width of the action, in place of `action_spec`.
        device: Device of the parameters.
        action_shape: Shape of the action, in place of `action_spec`.
        num_blocks: Number of blocks of the recurrent weights.
        num_layers: Number of hidden layers of the recurrence.
        prior_num_layers: Number of hidden layers before the logits.
        norm_eps: Addend of the RMS normalization.
        unimix: Share of the uniform distribution in samples, in [0, 1); the logits are those before the mixture.

    Shapes: state ``[*B, num_categoricals * num_classes]``, belief ``[*B, rnn_hidden_dim]`` and action
    ``[*B, action_dim]`` to logits ``[*B, num_categoricals, num_classes]``, a sampled state and the next belief.

    Raises:
        ArgumentError: If the width of the action is unknown or given twice, or a width is no multiple of the blocks.

    Example:
        >>> prior = RSSMPriorV3(action_dim=2, hidden_dim=16, rnn_hidden_dim=8, num_categoricals=4, num_classes=4)
        >>> logits, state, belief = prior(torch.zeros(3, 16), torch.zeros(3, 8), torch.randn(3, 2))
        >>> logits.shape, state.shape, belief.shape
        (torch.Size([3, 4, 4]), torch.Size([3, 16]), torch.Size([3, 8]))
    """

    def __init__(  # noqa: PLR0913 - the names of TorchRL
        self,
        action_spec: Any = None,
        hidden_dim: int = 1024,
        rnn_hidden_dim: int = 8192,
        num_categoricals: int = 32,
        num_classes: int = 64,
        action_dim: int | None = None,
        device: Device = None,
        *,
        action_shape: Sequence[int] | None = None,
        num_blocks: int = 8,
        num_layers: int = 1,
        prior_num_layers: int = 2,
        norm_eps: float = 1e-4,
        unimix: float = 0.01,
    ) -> None:
        super().__init__("RSSMPriorV3", num_categoricals, num_classes, unimix)
        if action_spec is not None and action_shape is not None:
            raise ArgumentError("RSSMPriorV3 got action_spec and action_shape: pass one of them")
        shape = action_shape if action_spec is None else action_spec.shape
        self.action_shape = None if shape is None else torch.Size(shape)
        if action_dim is None and self.action_shape is None:
            raise ArgumentError("RSSMPriorV3 needs the width of the action: pass action_spec or action_dim")
        width = self.action_shape.numel() if action_dim is None and self.action_shape is not None else action_dim
        state_dim = self.num_categoricals * self.num_classes
        self.rnn_hidden_dim = rnn_hidden_dim
        self.rnn = BlockGRU(
            state_dim,
            as_integer(width, "RSSMPriorV3", "action_dim", least=1),
            hidden_dim,
            rnn_hidden_dim,
            num_blocks,
            num_layers,
            norm_eps,
            device,
        )
        self.rnn_to_prior_projector = nn.Sequential(
            hidden_layers(rnn_hidden_dim, hidden_dim, prior_num_layers, norm_eps, device),
            DreamerLinear(hidden_dim, state_dim, device=device),
        )

    def embed(self, action: Tensor) -> Tensor:
        """Return the projection of actions, ``[*B, hidden_dim]``."""
        return self.rnn.embed(action)

    def recur(self, state: Tensor, belief: Tensor, embedded: Tensor) -> Tensor:
        """Return the belief after a step with embedded actions, ``[*B, rnn_hidden_dim]``."""
        return self.rnn(state, belief, embedded)

    def head(self, belief: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return logits and a sampled state."""
        return self._sample(self.rnn_to_prior_projector(belief), noise)

    def forward(
        self, state: Tensor, belief: Tensor, action: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, a sampled state, and the next belief.

        Args:
            state: State before the step, ``[*B, num_categoricals * num_classes]``.
            belief: Belief before the step, ``[*B, rnn_hidden_dim]``.
            action: Action of the step, ``[*B, action_dim]``.
            noise: Exponential noise of the sample, shape of the logits; drawn if None.
        """
        belief = self.recur(state, belief, self.embed(action))
        logits, state = self.head(belief, self.draw(belief) if noise is None else noise)
        return logits, state, belief


class RSSMPosteriorV3(_Categoricals):
    """Posterior of DreamerV3's recurrent state-space model, with categorical states.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 3.

    Args:
        hidden_dim: Width of the hidden layers.
        num_categoricals: Number of categoricals of the state.
        num_classes: Number of classes of each.
        rnn_hidden_dim: Width of the belief.
        obs_embed_dim: Width of the encoded observation.
        device: Device of the parameters.
        num_layers: Number of hidden layers, at least 1.
        norm_eps: Addend of the RMS normalization.
        unimix: Share of the uniform distribution in samples, in [0, 1); the logits are those before the mixture.

    Shapes: belief ``[*B, rnn_hidden_dim]`` and encoded observation ``[*B, obs_embed_dim]`` to logits
    ``[*B, num_categoricals, num_classes]`` and a sampled state ``[*B, num_categoricals * num_classes]``.

    Raises:
        ArgumentError: If a width is missing.

    Example:
        >>> posterior = RSSMPosteriorV3(16, 4, 4, rnn_hidden_dim=8, obs_embed_dim=12)
        >>> logits, state = posterior(torch.randn(3, 8), torch.randn(3, 12))
        >>> logits.shape, state.shape
        (torch.Size([3, 4, 4]), torch.Size([3, 16]))
    """

    def __init__(
        self,
        hidden_dim: int = 1024,
        num_categoricals: int = 32,
        num_classes: int = 64,
        rnn_hidden_dim: int | None = None,
        obs_embed_dim: int | None = None,
        device: Device = None,
        *,
        num_layers: int = 1,
        norm_eps: float = 1e-4,
        unimix: float = 0.01,
    ) -> None:
        super().__init__("RSSMPosteriorV3", num_categoricals, num_classes, unimix)
        if rnn_hidden_dim is None or obs_embed_dim is None:
            raise ArgumentError("RSSMPosteriorV3 needs rnn_hidden_dim and obs_embed_dim, for its initial weights")
        num_layers = as_integer(num_layers, "RSSMPosteriorV3", "num_layers", least=1)
        self.obs_rnn_to_post_projector = nn.Sequential(
            *hidden_layers(rnn_hidden_dim + obs_embed_dim, hidden_dim, num_layers, norm_eps, device),
            DreamerLinear(hidden_dim, self.num_categoricals * self.num_classes, device=device),
        )

    @property
    def _first(self) -> nn.Linear:
        return self.obs_rnn_to_post_projector[0]  # pyright: ignore[reportReturnType]

    def embed(self, obs_embedding: Tensor, belief_width: int) -> Tensor:
        """Return the contribution of encoded observations to the first layer, ``[*B, hidden_dim]``."""
        first = self._first
        return linear(obs_embedding, first.weight[:, belief_width:], first.bias)

    def infer(self, belief: Tensor, embedded: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return logits and a sampled state."""
        hidden = embedded + linear(belief, self._first.weight[:, : belief.shape[-1]], None)
        return self._sample(self.obs_rnn_to_post_projector[1:](hidden), noise)

    def forward(self, belief: Tensor, obs_embedding: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logits and a sampled state.

        Args:
            belief: Belief of the prior, ``[*B, rnn_hidden_dim]``.
            obs_embedding: Encoded observation, ``[*B, obs_embed_dim]``.
            noise: Exponential noise of the sample, shape of the logits; drawn if None.
        """
        embedded = self.embed(obs_embedding, belief.shape[-1])
        logits, state = self.infer(belief, embedded, self.draw(belief) if noise is None else noise)
        return logits, state
