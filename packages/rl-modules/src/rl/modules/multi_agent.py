"""Networks of several agents, and mixers of their values."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_integer, foreign_arguments, module_arguments, one_of
from rl.core.errors import ArgumentError, ShapeError
from rl.modules.layers import LayerMaker, stacked_norm
from rl.modules.nets._conv import ConvNet
from rl.modules.nets._mlp import MLP, is_list

__all__ = ["Mixer", "MultiAgentConvNet", "MultiAgentMLP", "MultiAgentNetBase", "QMixer", "VDNMixer"]


class MultiAgentNetBase(nn.Module):
    """Base of networks from the inputs of all agents to an output of each.

    A subclass sets `net` and implements `_separate`. With shared parameters `net` maps the input of one agent, or that
    of all if it is centralized, to one output, for any batch dimensions.

    Args:
        n_agents: Number of agents.
        centralized: Whether each agent's output depends on the inputs of all.
        share_params: Whether all agents have the same parameters. If the network is centralized, too, all have the
            same output.
        n_inputs: Size of the first dimension of the input of one agent; not checked if None.

    Shapes: ``[*B, n_agents, *input]`` to ``[*B, n_agents, output]``.

    Raises:
        ArgumentError: if `n_agents` is no positive integer, or `centralized` or `share_params` is no bool.
    """

    _input_dims: ClassVar[int]
    """Dimensions of the input of one agent."""
    _input_names: ClassVar[tuple[str, ...]]
    """Their names, for messages."""
    _conversion: ClassVar[str]
    """How to make integers floating-point numbers, for messages."""

    net: nn.Module

    def __init__(self, *, n_agents: int, centralized: bool, share_params: bool, n_inputs: int | None = None) -> None:
        super().__init__()
        owner = type(self).__name__
        self.n_agents = as_integer(n_agents, owner, "n_agents", least=1)
        for name, value in (("centralized", centralized), ("share_params", share_params)):
            one_of(value, owner, name, (True, False))
        self.centralized, self.share_params, self.n_inputs = centralized, share_params, n_inputs

    @abstractmethod
    def _separate(self, x: Tensor) -> Tensor:
        """Output ``[N, n_agents, output]`` for inputs ``[N, n_agents, *input]``, with parameters for each agent."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the outputs of all agents.

        Args:
            inputs: Inputs, ``[*B, n_agents, *input]``; several are concatenated on the first dimension after the
                agents.

        Raises:
            ShapeError: if there is no input, another number of agents or width, inputs differ in other dimensions, or
                all are integers.
        """
        own = self._input_dims
        if not inputs:
            raise ShapeError(f"{type(self).__name__} got no input")
        x = inputs[0]
        if len(inputs) > 1:
            if x.ndim <= own or any(_other_dims(one, own) != _other_dims(x, own) for one in inputs[1:]):
                raise self._unfit(inputs)
            x = torch.cat(inputs, -own)
        if x.ndim <= own or x.shape[-own - 1] != self.n_agents or self.n_inputs not in (None, x.shape[-own]):
            raise self._unfit(inputs)
        if not x.is_floating_point():
            raise ShapeError(
                f"{type(self).__name__} expects floating-point inputs, got {x.dtype} {tuple(x.shape)}:"
                f" {self._conversion}"
            )
        if self.share_params:
            if not self.centralized:
                return self.net(x)
            out = self.net(x.flatten(-own - 1, -own))
            return out.unsqueeze(-2).expand(*out.shape[:-1], self.n_agents, out.shape[-1])
        batch = x.shape[: -own - 1]
        out = self._separate(x.reshape(-1, *x.shape[-own - 1 :]))
        return out.reshape(*batch, *out.shape[1:])

    def _unfit(self, inputs: Sequence[Tensor]) -> ShapeError:
        shapes = ", ".join(str(tuple(one.shape)) for one in inputs)
        width = "" if self.n_inputs is None else f"={self.n_inputs}"
        first, *rest = self._input_names
        return ShapeError(
            f"{type(self).__name__} expects inputs"
            f" [*B, n_agents={self.n_agents}, {', '.join([first + width, *rest])}], got {shapes}"
        )


def _other_dims(x: Tensor, own: int) -> tuple[torch.Size, torch.Size]:
    """Sizes of the dimensions before and after the one on which inputs are concatenated."""
    return x.shape[:-own], x.shape[x.ndim - own + 1 :]


@foreign_arguments()
class MultiAgentConvNet(MultiAgentNetBase):
    """Convolutions for each agent, of its own image or, centralized, of the images of all.

    Args:
        n_agents: Number of agents.
        centralized: Whether each agent's output depends on the images of all, which are concatenated as channels.
        share_params: Whether all agents have the same parameters; else the convolutions of all are one grouped
            convolution.
        in_features: Channels of the image of one agent; found out at the first call if None, with shared parameters.
        num_cells: Channels of each convolution.
        kernel_sizes: Kernel size of each convolution, or one for all.
        strides: Stride of each convolution, or one for all.
        paddings: Padding of each convolution, or one for all.
        activation_class: Class of the activation after each convolution.
        device: Device of the parameters.
        kwargs: Further arguments of `ConvNet`.

    Shapes: floating-point pixels ``[*B, n_agents, C, H, W]`` to ``[*B, n_agents, F]``.

    Raises:
        ArgumentError: if arguments contradict each other or are of another kind, or `in_features` is needed.

    Example:
        >>> net = MultiAgentConvNet(3, centralized=False, share_params=False, in_features=4, num_cells=[8, 8])
        >>> net(torch.zeros(2, 3, 4, 16, 16)).shape
        torch.Size([2, 3, 8])
    """

    _input_dims: ClassVar[int] = 3
    _input_names: ClassVar[tuple[str, ...]] = ("channels", "height", "width")
    _conversion: ClassVar[str] = "scale them, as by x / 255"

    def __init__(
        self,
        n_agents: int,
        *,
        centralized: bool,
        share_params: bool,
        in_features: int | None = None,
        num_cells: Sequence[int] | None = None,
        kernel_sizes: int | Sequence[Any] = 5,
        strides: int | Sequence[Any] = 2,
        paddings: int | Sequence[Any] = 0,
        activation_class: Any = nn.ELU,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(n_agents=n_agents, centralized=centralized, share_params=share_params, n_inputs=in_features)
        count = self.n_agents
        cells: Any = [32, 32, 32] if num_cells is None else num_cells
        channels = in_features if in_features is None or not centralized else in_features * count
        if not share_params:
            if channels is None:
                raise ArgumentError("MultiAgentConvNet with share_params=False needs in_features, the channels")
            channels, kwargs["groups"] = channels * count, count
            cells = [width * count for width in cells] if is_list(cells) else cells * count
        self.net = ConvNet(
            channels,
            num_cells=cells,
            kernel_sizes=kernel_sizes,
            strides=strides,
            paddings=paddings,
            activation_class=activation_class,
            device=device,
            **kwargs,
        )

    def _separate(self, x: Tensor) -> Tensor:
        x = x.flatten(1, 2)
        if self.centralized:
            x = x.repeat(1, self.n_agents, 1, 1)
        return self.net(x).unflatten(-1, (self.n_agents, -1))


class Mixer(nn.Module):
    """Base of mixers, which a subclass implements in `mix`.

    Args:
        n_agents: Number of agents.
        state_shape: Shape of the state of the environment; None for a mixer that reads none.

    Raises:
        ArgumentError: if a size is not a positive integer.
    """

    def __init__(self, n_agents: int, state_shape: Sequence[int] | None = None) -> None:
        super().__init__()
        self.n_agents = as_integer(n_agents, type(self).__name__, "n_agents", least=1)
        self.state_shape = None if state_shape is None else self._sizes(state_shape)

    def _sizes(self, shape: Any) -> tuple[int, ...]:
        name = type(self).__name__
        if not isinstance(shape, Sequence) or isinstance(shape, str) or not shape:
            raise ArgumentError(
                f"{name} got state_shape={shape!r}; it is the sizes of the state without the batch, such as (8,)"
            )
        sizes: Sequence[Any] = shape  # pyright: ignore[reportUnknownVariableType]
        return tuple(as_integer(size, name, "state_shape", least=1) for size in sizes)

    def forward(self, chosen_action_value: Tensor, state: Tensor | None = None) -> Tensor:
        """Value of the team.

        Args:
            chosen_action_value: Value of the action of each agent, ``[*B, n_agents, 1]``.
            state: State of the environment, ``[*B, *state_shape]``, if the mixer reads it.

        Returns:
            The value ``[*B, 1]``.

        Raises:
            ShapeError: if the shapes are others.
        """
        name = type(self).__name__
        batch = chosen_action_value.shape[:-2]
        if chosen_action_value.shape[-2:] != (self.n_agents, 1):
            raise ShapeError(f"{name} expects values [*B, {self.n_agents}, 1], got {tuple(chosen_action_value.shape)}")
        if self.state_shape is None:
            return self.mix(chosen_action_value, None)
        if state is None or state.shape != (*batch, *self.state_shape):
            found = "none" if state is None else tuple(state.shape)
            raise ShapeError(f"{name} expects a state {[*batch, *self.state_shape]} beside the values, got {found}")
        return self.mix(chosen_action_value, state.flatten(len(batch)))

    @abstractmethod
    def mix(self, chosen_action_value: Tensor, state: Tensor | None) -> Tensor:
        """Mix values ``[*B, n_agents, 1]``, given the state ``[*B, size]``, to ``[*B, 1]``."""


@foreign_arguments()
class MultiAgentMLP(MultiAgentNetBase):
    """A multi-layer perceptron for each agent, of its own input or, centralized, of the inputs of all.

    ========================  ==========================================================================
    ``centralized=False``     the output of an agent depends on its own input: decentralized policies, IPPO's critics
    ``centralized=True``      it depends on all inputs: the critics of MAPPO and MADDPG
    ``share_params=True``     one network for all agents
    ``share_params=False``    a network for each agent; each layer of all agents is one batched matrix product
    ========================  ==========================================================================

    Args:
        n_agent_inputs: Width of the input of one agent; found out at the first call if None.
        n_agent_outputs: Width of the output of one agent.
        n_agents: Number of agents.
        centralized: Whether each agent's output depends on the inputs of all, see above.
        share_params: Whether all agents have the same parameters, see above.
        depth: Number of hidden layers, see `MLP`.
        num_cells: Widths of the hidden layers, see `MLP`.
        activation_class: Class of the activations between layers.
        device: Device of the parameters.
        kwargs: Further arguments of `MLP`. With `norm_class` each agent has its own normalization layers unless
            parameters are shared.

    Shapes: ``[*B, n_agents, n_agent_inputs]`` to ``[*B, n_agents, n_agent_outputs]``; several inputs are concatenated
    on the last dimension.

    Raises:
        ArgumentError: if arguments contradict each other, are out of range or of another kind.

    Example:
        >>> critic = MultiAgentMLP(6, 1, n_agents=3, centralized=True, share_params=False, depth=2, num_cells=64)
        >>> critic(torch.zeros(8, 3, 6)).shape
        torch.Size([8, 3, 1])
    """

    _input_dims: ClassVar[int] = 1
    _input_names: ClassVar[tuple[str, ...]] = ("features",)
    _conversion: ClassVar[str] = "convert them, as by x.float()"

    def __init__(
        self,
        n_agent_inputs: int | None,
        n_agent_outputs: int,
        n_agents: int,
        *,
        centralized: bool,
        share_params: bool,
        depth: int | None = None,
        num_cells: int | Sequence[int] | None = None,
        activation_class: Any = nn.Tanh,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(n_agents=n_agents, centralized=centralized, share_params=share_params, n_inputs=n_agent_inputs)
        width = n_agent_inputs if n_agent_inputs is None or not centralized else n_agent_inputs * self.n_agents
        if not share_params:
            kwargs["layer_class"] = LayerMaker(self.n_agents)
            if kwargs.get("norm_class") is not None:
                kwargs["norm_class"] = stacked_norm(kwargs["norm_class"], self.n_agents)
        self.net = MLP(
            width, n_agent_outputs, num_cells, depth, activation_class, device=device, **kwargs
        )  # with separate parameters it maps [n_agents, N, width]

    def _separate(self, x: Tensor) -> Tensor:
        if self.centralized:
            x = x.flatten(1)
            return self.net(x.expand(self.n_agents, *x.shape)).transpose(0, 1)
        return self.net(x.transpose(0, 1)).transpose(0, 1)


class QMixer(Mixer):
    """Monotonic mixing of the agents' values, with weights that are functions of the state.

    Rashid et al., "QMIX: Monotonic value function factorisation for deep multi-agent reinforcement learning", 2018, eq.
    5 and section 4.1: two layers whose weights are absolute values of the outputs of hypernetworks, so that the value
    of the team grows with that of each agent.

    Args:
        state_shape: Shape of the state of the environment, without batch dimensions.
        mixing_embed_dim: Width of the hidden layer, and of those of the hypernetworks.
        n_agents: Number of agents.
        device: Device of the parameters.

    Raises:
        ArgumentError: if a size is not a positive integer.

    Shapes: ``[*B, n_agents, 1]`` and a state ``[*B, *state_shape]`` to ``[*B, 1]``.

    Example:
        >>> mixer = QMixer(state_shape=(6,), mixing_embed_dim=32, n_agents=3)
        >>> mixer(torch.zeros(8, 3, 1), torch.zeros(8, 6)).shape
        torch.Size([8, 1])
    """

    def __init__(
        self,
        state_shape: Sequence[int],
        mixing_embed_dim: int = 32,
        n_agents: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_agents, state_shape)
        size = math.prod(self.state_shape or ())
        self.width = width = as_integer(mixing_embed_dim, "QMixer", "mixing_embed_dim", least=1)

        def hyper(out: int) -> MLP:
            return MLP(size, out, num_cells=[width], activation_class=nn.ReLU, device=device)

        self.first_weight, self.first_bias = hyper(self.n_agents * width), nn.Linear(size, width, device=device)
        self.last_weight, self.last_bias = hyper(width), hyper(1)

    def mix(self, chosen_action_value: Tensor, state: Tensor | None) -> Tensor:
        """Mix the values of agents to that of the team, whose derivative by each of them is not negative."""
        assert state is not None
        weight = self.first_weight(state).unflatten(-1, (self.n_agents, self.width)).abs()
        hidden = F.elu((chosen_action_value * weight).sum(-2) + self.first_bias(state))
        return (hidden * self.last_weight(state).abs()).sum(-1, keepdim=True) + self.last_bias(state)


@module_arguments()
class VDNMixer(Mixer):
    """Sum of the agents' values.

    Sunehag et al., "Value-decomposition networks for cooperative multi-agent learning", 2018, eq. 1.

    Args:
        n_agents: Number of agents.

    Shapes: ``[*B, n_agents, 1]`` to ``[*B, 1]``.

    Example:
        >>> VDNMixer(2)(torch.tensor([[[1.0], [2.0]]]))
        tensor([[3.]])
    """

    def __init__(self, n_agents: int) -> None:
        super().__init__(n_agents)

    def mix(self, chosen_action_value: Tensor, state: Tensor | None) -> Tensor:
        """Add up the values."""
        del state
        return torch.sum(chosen_action_value, -2)
