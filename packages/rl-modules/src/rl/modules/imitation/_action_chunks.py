"""Action chunking transformer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict.nn import InteractionType, TensorDictModule
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor, nn

from rl.core.arguments import as_integer, as_number
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError, SpecError
from rl.core.keys import ACTION, OBSERVATION, NestedKey
from rl.core.specs import Bounded, TensorSpec
from rl.modules._keys import key_list
from rl.modules.nets._mlp import MLP
from rl.modules.policy._actor import reads_of
from rl.modules.policy._fit import action_leaf, spec_by_key


class ACTModel(nn.Module):
    """Action chunking transformer: plans `chunk_size` actions from an observation.

    Zhao et al., "Learning fine-grained bimanual manipulation with low-cost hardware", 2023, section IV: a conditional
    variational autoencoder. The encoder maps an observation and the actions of a demonstration to the distribution of
    a latent style; the decoder maps an observation and a style to actions. Without a demonstration the style is 0, the
    mean of its prior.

    Args:
        obs_dim: Width of an observation.
        action_dim: Width of an action.
        chunk_size: Number of actions, H.
        hidden_dim: Width of a token, an even multiple of `nheads`.
        nheads: Number of heads of each attention.
        num_encoder_layers: Number of layers of the encoder, which is used in training only.
        num_decoder_layers: Number of layers of the decoder.
        latent_dim: Width of the style.
        dropout: Probability of dropping a feature, in [0, 1).
        dim_feedforward: Width of the hidden layers; 4 * `hidden_dim` if None.
        device: Device of the parameters.

    Shapes: observation ``[*B, obs_dim]`` and, in training, actions ``[*B, H, action_dim]`` to predicted actions
    ``[*B, H, action_dim]``, and mean and logarithm of the variance of the style ``[*B, latent_dim]``, 0 without them.

    Raises:
        ArgumentError: if an argument is out of its range.
        ShapeError: in the call, if a shape does not agree.

    Example:
        >>> model = ACTModel(3, 2, chunk_size=5, hidden_dim=32, num_decoder_layers=1)
        >>> action, mu, log_var = model(torch.randn(4, 3), torch.randn(4, 5, 2))
        >>> action.shape, mu.shape
        (torch.Size([4, 5, 2]), torch.Size([4, 32]))
        >>> model(torch.randn(4, 3))[0].shape
        torch.Size([4, 5, 2])
    """

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        obs_dim: int,
        action_dim: int,
        chunk_size: int,
        hidden_dim: int = 256,
        nheads: int = 8,
        num_encoder_layers: int = 4,
        num_decoder_layers: int = 7,
        latent_dim: int = 32,
        dropout: float = 0.1,
        dim_feedforward: int | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        wide = 4 * hidden_dim if dim_feedforward is None else dim_feedforward
        sizes = {
            "obs_dim": obs_dim,
            "action_dim": action_dim,
            "chunk_size": chunk_size,
            "hidden_dim": hidden_dim,
            "nheads": nheads,
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "latent_dim": latent_dim,
            "dim_feedforward": wide,
        }
        for name, value in sizes.items():
            as_integer(value, "ACTModel", name, least=1)
        if hidden_dim % nheads or hidden_dim % 2:
            raise ArgumentError(f"ACTModel got hidden_dim={hidden_dim}; it is even, and nheads={nheads} divides it")
        dropout = as_number(dropout, "ACTModel", "dropout", least=0, below=1)
        self.obs_dim, self.action_dim, self.chunk_size, self.latent_dim = obs_dim, action_dim, chunk_size, latent_dim
        layer: dict[str, Any] = {
            "d_model": hidden_dim,
            "nhead": nheads,
            "dim_feedforward": wide,
            "dropout": dropout,
            "batch_first": True,
            "device": device,
        }
        self.from_observation = nn.Linear(obs_dim, hidden_dim, device=device)
        self.from_action = nn.Linear(action_dim, hidden_dim, device=device)
        self.style_token = nn.Parameter(0.02 * torch.randn(hidden_dim, device=device))
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**layer), num_encoder_layers, enable_nested_tensor=False
        )
        self.to_style = nn.Linear(hidden_dim, 2 * latent_dim, device=device)
        self.from_style = nn.Linear(latent_dim, hidden_dim, device=device)
        self.queries = nn.Parameter(torch.randn(chunk_size, hidden_dim, device=device))
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), num_decoder_layers)
        self.to_action = nn.Linear(hidden_dim, action_dim, device=device)
        self.positions: Tensor
        self.register_buffer("positions", _positions(chunk_size + 2, hidden_dim).to(device), persistent=False)

    def forward(self, observation: Tensor, action_chunk: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Predicted actions, and mean and logarithm of the variance of the style.

        Args:
            observation: Observation, ``[*B, obs_dim]``.
            action_chunk: Actions of the demonstration, ``[*B, H, action_dim]``; the style is 0 without them.

        Raises:
            ShapeError: if a shape does not agree.
        """
        batch = observation.shape[:-1]
        chunk = (*batch, self.chunk_size, self.action_dim)
        if observation.shape[-1:] != (self.obs_dim,):
            raise ShapeError(f"ACTModel got an observation {list(observation.shape)}, expected [*B, {self.obs_dim}]")
        if action_chunk is not None and action_chunk.shape != chunk:
            raise ShapeError(f"ACTModel got action_chunk {list(action_chunk.shape)}, expected {list(chunk)}")
        seen = self.from_observation(observation.reshape(-1, self.obs_dim)).unsqueeze(1)
        if action_chunk is None:
            mean = log_variance = style = seen.new_zeros(len(seen), self.latent_dim)
        else:
            done = self.from_action(action_chunk.reshape(-1, *chunk[-2:]))
            tokens = torch.cat((self.style_token.expand_as(seen), seen, done), 1) + self.positions
            mean, log_variance = self.to_style(self.encoder(tokens)[:, 0]).chunk(2, -1)
            style = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        memory = torch.cat((seen, self.from_style(style).unsqueeze(1)), 1)
        action = self.to_action(self.decoder(self.queries.expand(len(seen), -1, -1), memory))
        latent = (*batch, self.latent_dim)
        return action.reshape(chunk), mean.reshape(latent), log_variance.reshape(latent).clone()


def _positions(length: int, width: int) -> Tensor:
    """Sinusoidal positions ``[length, width]`` (Vaswani et al., "Attention is all you need", 2017, section 3.5)."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


#: width of the embedding of a diffusion step
EMBEDDING = 32


class DiffusionActor(TensorDictModule):
    """Policy that denoises random actions: a diffusion model of actions, conditional on the observation.

    Chi et al., "Diffusion policy: visuomotor policy learning via action diffusion", 2023, eq. 1 to 4, on Ho et al.,
    "Denoising diffusion probabilistic models", 2020, algorithm 2; with `sampling_steps` Song et al., "Denoising
    diffusion implicit models", 2021, eq. 12 with sigma 0. `DiffusionBCLoss` of rl-objectives trains it.

    Under `set_exploration_type` ``"deterministic"`` denoising begins at 0 and adds no noise.

    Args:
        action_dim: Width of an action.
        obs_dim: Width of all observations together; only read for the default network, which takes it from its first
            input if None.
        score_network: Module that predicts the noise ``[*B, D]`` from noisy action, observations and number of the
            diffusion step, joined as ``[*B, D + obs_dim + 1]``, where D is `action_dim`, or `chunk_size` times that; an
            MLP on an embedding of the step if None.
        num_steps: Number of diffusion steps.
        beta_start: Variance of the noise of the first step; the variances are on a line.
        beta_end: Variance of the noise of the last step, in (0, 1); with `num_steps` large enough that nearly nothing
            of an action is left.
        in_keys: Observations; ``["observation"]`` if None.
        out_keys: Action; ``["action"]`` if None.
        spec: Spec of one action. Bounded actions are scaled to [-1, 1], and no denoised action leaves the bounds.
        chunk_size: Number of actions that are planned at once, for `MultiStepActorWrapper`; None for one action.
        sampling_steps: Number of steps in which an action is sampled; all diffusion steps, with noise, if None.
        num_cells: Widths of the hidden layers of the default network.

    Raises:
        ArgumentError: if an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> actor = DiffusionActor(2, 3, num_steps=10)
        >>> actor(TensorDict(observation=torch.randn(5, 3), batch_size=[5]))["action"].shape
        torch.Size([5, 2])
        >>> planner = DiffusionActor(2, 3, chunk_size=4, sampling_steps=5)
        >>> planner(TensorDict(observation=torch.randn(5, 3), batch_size=[5]))["action"].shape
        torch.Size([5, 4, 2])
    """

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        action_dim: int,
        obs_dim: int | None = None,
        score_network: nn.Module | None = None,
        num_steps: int = 100,
        beta_start: float = 1e-3,
        beta_end: float = 0.1,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
        chunk_size: int | None = None,
        sampling_steps: int | None = None,
        num_cells: Sequence[int] = (256, 256),
    ) -> None:
        owner = "DiffusionActor"
        outputs = key_list([ACTION] if out_keys is None else out_keys)
        leaf = action_leaf(spec, outputs[0], owner)
        as_integer(action_dim, owner, "action_dim", least=1)
        as_integer(num_steps, owner, "num_steps", least=1)
        if leaf is not None and tuple(leaf.shape) != (action_dim,):
            raise SpecError(f"{owner} got action_dim={action_dim} and a spec of shape {list(leaf.shape)}")
        if chunk_size is not None:
            as_integer(chunk_size, owner, "chunk_size", least=1)
        if sampling_steps is not None and as_integer(sampling_steps, owner, "sampling_steps", least=1) > num_steps:
            raise ArgumentError(f"{owner} got sampling_steps={sampling_steps} of num_steps={num_steps}")
        if not 0 < beta_start <= beta_end < 1:
            raise ArgumentError(f"{owner} got beta_start={beta_start} and beta_end={beta_end}; 0 < start <= end < 1")
        shape = (action_dim,) if chunk_size is None else (chunk_size, action_dim)
        size = math.prod(shape)
        network = _Score(obs_dim, size, num_cells) if score_network is None else score_network
        module = _Diffusion(network, shape, leaf, torch.linspace(beta_start, beta_end, num_steps), sampling_steps)
        super().__init__(module, key_list([OBSERVATION] if in_keys is None else in_keys), outputs)
        self.spec, self._leaf = spec_by_key(spec, outputs[0]), leaf

    @property
    def contract(self) -> Contract:
        """Keys that are read and written."""
        module: Any = self.module
        dtype = None if self._leaf is None else self._leaf.dtype
        return Contract(reads_of(self.in_keys), (Key(key_list(self.out_keys)[0], module.shape, "action", dtype),))


class _Diffusion(nn.Module):
    """The diffusion process: adds noise in training, removes it when acting.

    Args:
        score_network: Network, see `DiffusionActor`.
        shape: Shape of an action, or of a chunk.
        spec: Spec of one action.
        betas: Variances of the noise of each step.
        sampling_steps: Number of steps in which an action is sampled; None for all, with noise.
    """

    def __init__(
        self,
        score_network: nn.Module,
        shape: tuple[int, ...],
        spec: TensorSpec | None,
        betas: Tensor,
        sampling_steps: int | None,
    ) -> None:
        super().__init__()
        self.score_network, self.shape, self.num_steps = score_network, shape, len(betas)
        self.dtype = torch.float32 if spec is None or spec.dtype is None else spec.dtype
        bounded = isinstance(spec, Bounded) and bool((spec.low.isfinite() & spec.high.isfinite()).all())
        self.bounded = bounded
        low, high = (
            (spec.low, spec.high) if isinstance(spec, Bounded) and bounded else (-torch.ones(()), torch.ones(()))
        )
        self.betas: Tensor
        self.kept: Tensor
        self.middle: Tensor
        self.reach: Tensor
        self.register_buffer("betas", betas)
        self.register_buffer("kept", (1 - betas).cumprod(0))  # share of the action's variance after each step
        self.register_buffer("middle", ((low + high) / 2).to(betas.dtype))
        self.register_buffer("reach", ((high - low) / 2).to(betas.dtype))
        self.implicit = sampling_steps is not None
        count = len(betas) if sampling_steps is None else sampling_steps
        self.steps: list[int] = torch.linspace(len(betas) - 1, 0, count).round().long().tolist()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  torch's signature
        own = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, before in own.items():
            after = self._buffers[name]
            if before is not None and after is not None and after.dtype.itemsize < torch.float32.itemsize:
                self._buffers[name] = before.to(after.device)  # bfloat16 rounds the first shares that are kept to 1
        return self

    @property
    def network_dtype(self) -> torch.dtype:
        """Dtype of the score network's parameters, and of its inputs."""
        return next((p.dtype for p in self.score_network.parameters()), self.kept.dtype)

    def add_noise(self, action: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Add noise of `t` steps; returns the scaled, flat action and its standard normal noise, each ``[*B, D]``.

        Both in the dtype of the score network. Ho et al., 2020, eq. 4.

        Args:
            action: Action, ``[*B, *shape]``, units of the environment.
            t: Number of the diffusion step, int64 ``[*B]``, from 0.

        Raises:
            ShapeError: if the action has another shape.
        """
        if action.shape != (*t.shape, *self.shape):
            raise ShapeError(
                f"DiffusionActor got actions {list(action.shape)}, expected {[*t.shape, *self.shape]}: the batch, and"
                f" {'one action' if len(self.shape) == 1 else f'a chunk of {self.shape[0]} actions'}"
            )
        reach = torch.where(self.reach > 0, self.reach, 1.0)  # a constant dimension stays at 0
        clean = ((action.to(reach.dtype) - self.middle) / reach).flatten(t.ndim)
        noise, kept = torch.randn_like(clean), self.kept[t].unsqueeze(-1)
        noisy, dtype = kept.sqrt() * clean + (1 - kept).sqrt() * noise, self.network_dtype
        return noisy.to(dtype), noise.to(dtype)

    def forward(self, *observations: Tensor) -> Tensor:
        """Denoised actions ``[*B, *shape]``."""
        fixed, dtype = interaction_type() is InteractionType.DETERMINISTIC, self.network_dtype
        seen = torch.cat([one.to(dtype) for one in observations], -1)
        size = (*seen.shape[:-1], math.prod(self.shape))
        make = torch.zeros if fixed else torch.randn
        x = make(size, dtype=self.kept.dtype, device=seen.device)
        following = [*self.steps[1:], None]
        for step, then in zip(self.steps, following, strict=True):
            kept, left = self.kept[step], self.kept.new_ones(()) if then is None else self.kept[then]
            t = seen.new_full((*size[:-1], 1), step)
            predicted = self.score_network(torch.cat((x.to(dtype), seen, t), -1)).to(x.dtype)
            clean = (x - (1 - kept).sqrt() * predicted) / kept.sqrt()
            if self.bounded:
                clean = clean.clamp(-1, 1)
            if self.implicit:
                noise = (x - kept.sqrt() * clean) / (1 - kept).sqrt()
                x = left.sqrt() * clean + (1 - left).sqrt() * noise
            else:
                beta = self.betas[step]
                x = (left.sqrt() * beta * clean + (1 - beta).sqrt() * (1 - left) * x) / (1 - kept)
                if then is not None and not fixed:
                    x = x + (beta * (1 - left) / (1 - kept)).sqrt() * torch.randn_like(x)
        x = x.clamp(-1, 1) if self.bounded else x  # rounding may lead out of the bounds
        action = self.middle + self.reach * x.unflatten(-1, self.shape)
        return action.to(self.dtype)


class _Score(nn.Module):
    """An MLP on noisy action, observations and an embedding of the diffusion step, the last input."""

    def __init__(self, obs_dim: int | None, size: int, num_cells: Sequence[int]) -> None:
        super().__init__()
        rates = torch.exp(torch.arange(EMBEDDING // 2) * (-math.log(10_000.0) / (EMBEDDING // 2 - 1)))
        self.rates: Tensor
        self.register_buffer("rates", rates)
        width = None if obs_dim is None else size + obs_dim + EMBEDDING
        self.net = MLP(width, size, num_cells=list(num_cells), activation_class=nn.Mish)

    def forward(self, x: Tensor) -> Tensor:
        angles = x[..., -1:] * self.rates
        return self.net(torch.cat((x[..., :-1], angles.sin(), angles.cos()), -1))
