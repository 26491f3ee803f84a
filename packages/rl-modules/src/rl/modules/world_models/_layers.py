"""Layers of world models, and the gradient of weights that a loop over time uses again in each step."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_integer, as_number
from rl.core.errors import ArgumentError


class _Loop(threading.local):
    """The weights of the loop over time that runs in this thread; None outside of one."""

    weights: dict[tuple[int, torch.Size], _Shared] | None = None


_loop = _Loop()


class _Shared:
    """A weight and a bias of a loop, and the rows whose gradients its backward pass has computed so far."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.rows: list[tuple[Tensor, Tensor]] = []
        self._pass = -1
        self.weight, self.bias = _Gate.apply(self, weight, bias)  # pyright: ignore[reportGeneralTypeIssues]

    def add(self, x: Tensor, grad: Tensor) -> None:
        """Add input and gradient of the output of one step.

        A backward pass that needs no gradient of the weight does not run the gate: its rows are dropped by the next.
        """
        # As torch.utils.checkpoint tells backward passes apart; there is no public name.
        number = torch._C._current_graph_task_id()  # noqa: SLF001
        if number != self._pass:
            self.rows, self._pass = [], number
        self.rows.append((x, grad))


class _Gate(torch.autograd.Function):
    """Passes a weight into a loop; its backward pass runs after those of all steps, and sums them in one product.

    A loop of `T` steps would compute `T` gradients of the entire weight from a few rows each, and add them: for a wide
    recurrent layer that takes longer than the rest of the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, shared: _Shared, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.set_materialize_grads(False)
        ctx.shared, ctx.blocks = shared, weight.ndim == 3
        return weight.view_as(weight), None if bias is None else bias.view_as(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Any) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, ctx.shared.rows = ctx.shared.rows, []
        if not rows:
            return None, None, None
        x, grad = (torch.cat(parts) for parts in zip(*rows, strict=True))
        weight = None
        if ctx.needs_input_grad[1]:
            # [blocks, in, N] @ [blocks, N, out], or [out, N] @ [N, in]: torch.nn.Linear stores the transposed matrix.
            weight = x.permute(1, 2, 0) @ grad.transpose(0, 1) if ctx.blocks else grad.t() @ x
        return None, weight, grad.sum(0).flatten() if ctx.needs_input_grad[2] else None


class _Product(torch.autograd.Function):
    """A linear layer whose backward pass hands its rows to the `_Gate` of the weight."""

    @staticmethod
    def forward(ctx: Any, shared: _Shared, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x, weight)
        ctx.shared = shared
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        blocks, wide = weight.ndim == 3, grad.reshape(-1, grad.shape[-1])
        if blocks:
            wide = wide.unflatten(-1, (weight.shape[0], weight.shape[2]))
        rows = x.reshape(-1, *((weight.shape[0], weight.shape[1]) if blocks else (weight.shape[1],)))
        ctx.shared.add(rows, wide)
        if not ctx.needs_input_grad[1]:
            return None, None, None, None
        before = (wide.transpose(0, 1) @ weight.mT).transpose(0, 1) if blocks else wide @ weight
        return None, before.reshape(x.shape), None, None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x W^T + b``, or the same for each block of features with a weight ``[blocks, in, out]``."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    blocks, size, _ = weight.shape
    rows = x.reshape(-1, blocks, size).transpose(0, 1)
    out = (rows @ weight).transpose(0, 1).reshape(*x.shape[:-1], -1)
    return out if bias is None else out.add_(bias)  # a tensor of its own: the product was copied


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer; inside of `shared_weights` its weight gradient is computed once for all steps.

    Args:
        x: Input, ``[*B, in]``.
        weight: Weight ``[out, in]``, or ``[blocks, in / blocks, out / blocks]``.
        bias: Bias, ``[out]``.
    """
    if torch.compiler.is_compiling() or _loop.weights is None or not torch.is_grad_enabled():
        return _product(x, weight, bias)
    if not weight.requires_grad or torch.is_autocast_enabled(x.device.type):
        return _product(x, weight, bias)
    key = weight.data_ptr(), weight.shape  # a step that slices a weight creates another tensor each time
    shared = _loop.weights.get(key)
    if shared is None:
        shared = _loop.weights[key] = _Shared(weight, bias)
    return _Product.apply(shared, x, shared.weight, shared.bias)  # pyright: ignore[reportReturnType]


@contextmanager
def shared_weights() -> Generator[None]:
    """Context of a loop over time, in which the gradients of the layers' weights are summed in one product.

    The result is differentiable once. Compiled code ignores the context.

    Example:
        >>> layer, x = Linear(2, 2), torch.ones(1, 2)
        >>> with shared_weights():
        ...     for _ in range(3):
        ...         x = layer(x)
        >>> x.sum().backward()
        >>> layer.weight.grad.shape
        torch.Size([2, 2])
    """
    before = _loop.weights
    _loop.weights = {}
    try:
        yield
    finally:
        _loop.weights = before


class Linear(nn.Linear):
    """`torch.nn.Linear` with the weight gradient of `shared_weights`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        return linear(input, self.weight, self.bias)


class LazyLinear(nn.LazyLinear):
    """`Linear` whose input width is that of the first call."""

    cls_to_become = Linear  # pyright: ignore[reportAssignmentType]


class GRUCell(nn.GRUCell):
    """`torch.nn.GRUCell` for batches of any shape, with the weight gradient of `shared_weights`."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:  # noqa: A002 - torch's name
        h = input.new_zeros(*input.shape[:-1], self.hidden_size) if hx is None else hx
        x_reset, x_update, x_new = linear(input, self.weight_ih, self.bias_ih).chunk(3, -1)
        h_reset, h_update, h_new = linear(h, self.weight_hh, self.bias_hh).chunk(3, -1)
        candidate = torch.addcmul(x_new, (x_reset + h_reset).sigmoid(), h_new).tanh()
        return torch.lerp(candidate, h, (x_update + h_update).sigmoid())


class BlockLinear(nn.Module):
    """Linear layer of independent blocks of features, of which each output sees one block of inputs.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, section "World model learning":
    the weights of a recurrent layer that is block-diagonal.

    Args:
        in_features: Width of the input, a multiple of `num_blocks`.
        out_features: Width of the output, a multiple of `num_blocks`.
        num_blocks: Number of blocks.
        device: Device of the parameters.

    Raises:
        ArgumentError: If a width is no multiple of `num_blocks`.

    Example:
        >>> BlockLinear(6, 9, 3)(torch.zeros(2, 6)).shape
        torch.Size([2, 9])
    """

    def __init__(
        self, in_features: int, out_features: int, num_blocks: int, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        num_blocks = as_integer(num_blocks, "BlockLinear", "num_blocks", least=1)
        if in_features % num_blocks or out_features % num_blocks:
            raise ArgumentError(
                f"BlockLinear got widths {in_features} and {out_features} for {num_blocks} blocks: pass multiples"
            )
        self.in_features, self.out_features, self.num_blocks = in_features, out_features, num_blocks
        shape = (num_blocks, in_features // num_blocks, out_features // num_blocks)
        self.weight = nn.Parameter(torch.empty(shape, device=device))
        self.bias = nn.Parameter(torch.empty(out_features, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights; the fan-in is the width of all blocks, as in the official implementation."""
        init_weight(self.weight, self.in_features)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output ``[*B, out_features]`` of ``[*B, in_features]``."""
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, num_blocks={self.num_blocks}"


class RMSNorm(nn.Module):
    """Division by the root mean square of the features, with a learned scale and without offset.

    Zhang and Sennrich, "Root mean square layer normalization", 2019. Computed in float32 at least.

    Args:
        features: Number of features.
        eps: Addend below the root; 1e-4 in DreamerV3.
        dim: Dimension of the features: -1, or -3 for images ``[*B, C, H, W]``.
        device: Device of the parameters.

    Example:
        >>> RMSNorm(2)(torch.tensor([3.0, 3.0]))
        tensor([1.0000, 1.0000], grad_fn=<MulBackward0>)
    """

    def __init__(
        self, features: int, eps: float = 1e-4, dim: int = -1, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.eps, self.dim = as_number(eps, "RMSNorm", "eps", least=0), dim
        features = as_integer(features, "RMSNorm", "features", least=1)
        self.weight = nn.Parameter(torch.ones(features, device=device))

    def reset_parameters(self) -> None:
        """Set the scale to 1."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized features, shape and dtype of `x`."""
        wide = x if x.dtype is torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(self.dim, keepdim=True) + self.eps)
        weight = self.weight.view(-1, *[1] * (-1 - self.dim))
        return (wide * scale * weight).to(x.dtype)


def softmax_of_groups(x: Tensor) -> Tensor:
    """Softmax of the last dimension; of small groups along another one, ten times faster on a CPU.

    Args:
        x: Groups, ``[*B, groups, size]``.
    """
    return x.mT.softmax(-2).mT if x.is_cpu and x.ndim > 1 and x.shape[-1] <= 8 else x.softmax(-1)


def init_weight(weight: Tensor, fan_in: int) -> None:
    """Draw weights as DreamerV3: normal, cut at two standard deviations, with ``1.1368 / sqrt(fan_in)``.

    A normal distribution that is cut there has 0.88 of its standard deviation; 1.1368 is the inverse.
    """
    std = 1.1368 / max(1, fan_in) ** 0.5
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


class DreamerLinear(Linear):
    """`Linear` with the initial weights of DreamerV3.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        outscale: Factor of the initial weights; 0 for heads that predict exactly 0 at first.
        device: Device of the parameters.
    """

    def __init__(
        self, in_features: int, out_features: int, outscale: float = 1.0, device: torch.device | str | None = None
    ) -> None:
        self.outscale = outscale
        super().__init__(in_features, out_features, device=device)

    def reset_parameters(self) -> None:
        """Draw initial weights, and set the bias to 0."""
        init_weight(self.weight, self.in_features)
        with torch.no_grad():
            self.weight.mul_(self.outscale)
        nn.init.zeros_(self.bias)


def hidden_layers(
    in_features: int, num_cells: int, depth: int, norm_eps: float = 1e-4, device: torch.device | str | None = None
) -> nn.Sequential:
    """Stack linear layers, each followed by `RMSNorm` and SiLU."""
    layers: list[nn.Module] = []
    for width in [in_features, *[num_cells] * depth][:depth]:
        layers += [DreamerLinear(width, num_cells, device=device), RMSNorm(num_cells, norm_eps, device=device)]
        layers.append(nn.SiLU())
    return nn.Sequential(*layers)


class DreamerV3MLP(nn.Module):
    """Multi-layer perceptron of DreamerV3's heads: linear layers with RMS normalization and SiLU.

    Args:
        in_features: Width of all inputs together.
        out_features: Width of the output.
        depth: Number of hidden layers: 3 for actor and critic, 1 for reward and continuation.
        num_cells: Width of the hidden layers.
        outscale: Factor of the initial weights of the last layer: 0 for reward and critic, 0.01 for the actor.
        norm_eps: Addend of the RMS normalization.
        device: Device of the parameters.

    Shapes: inputs ``[*B, .]``, which are concatenated, to ``[*B, out_features]``.

    Example:
        >>> DreamerV3MLP(6, 255, num_cells=8, outscale=0.0)(torch.randn(3, 2), torch.randn(3, 4)).abs().max()
        tensor(0., grad_fn=<MaxBackward1>)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        depth: int = 3,
        num_cells: int = 1024,
        outscale: float = 1.0,
        norm_eps: float = 1e-4,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        depth = as_integer(depth, "DreamerV3MLP", "depth", least=0)
        self.hidden = hidden_layers(in_features, num_cells, depth, norm_eps, device)
        self.output = DreamerLinear(num_cells if depth else in_features, out_features, outscale, device)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the output of the concatenated inputs."""
        return self.output(self.hidden(inputs[0] if len(inputs) == 1 else torch.cat(inputs, -1)))
