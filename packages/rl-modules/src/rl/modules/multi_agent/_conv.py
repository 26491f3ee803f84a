"""Convolutional networks of several agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.modules import _foreign
from rl.modules.multi_agent._base import MultiAgentNetBase
from rl.modules.nets._arguments import is_list
from rl.modules.nets._conv import ConvNet

__all__ = ["MultiAgentConvNet"]


@_foreign.multi_agent_net
class MultiAgentConvNet(MultiAgentNetBase):
    """Convolutions for each agent, of its own image or, centralized, of the images of all.

    Args:
        n_agents: number of agents.
        centralized: whether each agent's output depends on the images of all, which are concatenated as channels.
        share_params: whether all agents have the same parameters; else the convolutions of all are one grouped
            convolution.
        in_features: channels of the image of one agent; found out at the first call if None, with shared parameters.
        num_cells: channels of each convolution.
        kernel_sizes: of each, or one for all.
        strides: of each, or one for all.
        paddings: of each, or one for all.
        activation_class: activation after each convolution.
        device: where the parameters are made.
        kwargs: further arguments of `ConvNet`.

    Shapes: floating-point pixels ``[*B, n_agents, C, H, W]`` to ``[*B, n_agents, F]``.

    Raises:
        SpecError: if arguments contradict each other or are of another kind, or `in_features` is needed.

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
                raise SpecError("MultiAgentConvNet with share_params=False needs in_features, the channels of an image")
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
