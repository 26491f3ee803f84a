"""Action chunking transformer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rl.core.arguments import as_integer
from rl.core.errors import ShapeError, SpecError

__all__ = ["ACTModel"]


class ACTModel(nn.Module):
    """Action chunking transformer: plans `chunk_size` actions from an observation.

    Zhao et al., "Learning fine-grained bimanual manipulation with low-cost hardware", 2023, section IV: a conditional
    variational autoencoder. The encoder maps an observation and the actions of a demonstration to the distribution of
    a latent style; the decoder maps an observation and a style to actions. Without a demonstration the style is 0, the
    mean of its prior.

    Args:
        obs_dim: width of an observation.
        action_dim: width of an action.
        chunk_size: number of actions, H.
        hidden_dim: width of a token, an even multiple of `nheads`.
        nheads: heads of each attention.
        num_encoder_layers: layers of the encoder, which is used in training only.
        num_decoder_layers: layers of the decoder.
        latent_dim: width of the style.
        dropout: probability, in [0, 1).
        dim_feedforward: width of the hidden layers; 4 * `hidden_dim` if None.
        device: of the parameters.

    Shapes: observation ``[*B, obs_dim]`` and, in training, actions ``[*B, H, action_dim]`` to predicted actions
    ``[*B, H, action_dim]``, and mean and logarithm of the variance of the style ``[*B, latent_dim]``, 0 without them.

    Raises:
        SpecError: if an argument is out of its range.
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
            raise SpecError(f"ACTModel got hidden_dim={hidden_dim}; it is even, and nheads={nheads} divides it")
        if not 0 <= dropout < 1:
            raise SpecError(f"ACTModel got dropout={dropout}; it is in [0, 1)")
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
            observation: ``[*B, obs_dim]``.
            action_chunk: actions of the demonstration, ``[*B, H, action_dim]``; the style is 0 without them.

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
