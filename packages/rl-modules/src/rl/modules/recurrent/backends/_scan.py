"""Back end ``scan``: a loop over time, as registered operators of our own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from rl.core import RecurrentOptions
from rl.modules.recurrent._weights import DEFAULTS, Layer, cell_of, check_plain, compute_type, layers_of
from rl.modules.recurrent.ops._gru import gru_layer
from rl.modules.recurrent.ops._kernels import TORCH, Kernels, TorchKernels, register
from rl.modules.recurrent.ops._lstm import lstm_layer

__all__ = ["ScanBackend"]

States = tuple[Tensor, ...]


class ScanBackend:
    """A loop over time that takes resets as they come: nothing is split or padded.

    It builds no autograd graph in the loop, computes each weight's gradient as one product, and is a single node for
    the compiler, so that `torch.compile` keeps a whole graph. It differentiates once. ``recompute="full"`` keeps only
    the states and computes all gates again in one product. ``compute_dtype`` holds for states between the steps too;
    ``matmul_precision`` is the least that is allowed, and has no effect on a CPU.

    Args:
        kernels: loops for one layer, from a package that compiles them; those in plain torch if None.

    Example:
        >>> gru = nn.GRU(3, 4, batch_first=True)
        >>> x, h, is_init = torch.zeros(2, 5, 3), torch.zeros(2, 1, 4), torch.zeros(2, 5, dtype=torch.bool)
        >>> out, (after,) = ScanBackend()(gru, x, (h,), is_init)
        >>> out.shape, after.shape
        (torch.Size([2, 5, 4]), torch.Size([2, 5, 1, 4]))
    """

    name = "scan"

    def __init__(self, kernels: Kernels | None = None) -> None:
        if kernels is not None:
            register(kernels)
        self.kernels = TORCH if kernels is None else kernels.name
        self.why = TorchKernels.why if kernels is None else kernels.why

    def __call__(
        self,
        module: nn.RNNBase,
        inputs: Tensor,
        state: States,
        is_init: Tensor,
        reset_state: States | None = None,
        options: RecurrentOptions = DEFAULTS,
    ) -> tuple[Tensor, States]:
        """See `rl.core.interfaces.RecurrentBackend`."""
        check_plain(module, "the recurrent back end 'scan'")
        given, compute = inputs.dtype, compute_type(inputs, options)
        dtype = given if compute is None else compute
        layers = layers_of(module, compute)
        x = inputs.to(dtype).transpose(0, 1).contiguous()
        restart = is_init.t().contiguous()
        run = _lstm if cell_of(module) == "lstm" else _gru
        kept: list[States] = []
        for place, layer in enumerate(layers):
            if place and module.dropout and module.training:
                x = dropout(x, module.dropout)
            first = tuple(part[:, place].to(dtype) for part in state)
            resets = reset_state and tuple(part[:, :, place].transpose(0, 1).to(dtype) for part in reset_state)
            after = run(x, layer, first, restart, resets, options, self.kernels)
            kept.append(after)
            x = after[0]
        states = tuple(torch.stack(part, 2).transpose(0, 1) for part in zip(*kept, strict=True))
        return x.transpose(0, 1).to(given), tuple(part.to(given) for part in states)


def _lstm(
    x: Tensor,
    layer: Layer,
    first: States,
    restart: Tensor,
    resets: States | None,
    options: RecurrentOptions,
    kernels: str,
) -> States:
    bias = None if layer.bias_ih is None or layer.bias_hh is None else layer.bias_ih + layer.bias_hh
    reset_h, reset_c = resets or (None, None)
    keep, precision = options.recompute == "none", options.matmul_precision
    weights = layer.weight_ih, layer.weight_hh, bias
    h, c, _ = lstm_layer(x, *weights, *first, restart, reset_h, reset_c, keep, kernels, precision)
    return h, c


def _gru(
    x: Tensor,
    layer: Layer,
    first: States,
    restart: Tensor,
    resets: States | None,
    options: RecurrentOptions,
    kernels: str,
) -> States:
    r, z, n = layer.weight_ih.chunk(3)
    bias = None
    if layer.bias_ih is not None and layer.bias_hh is not None:
        r_x, z_x, n_x = layer.bias_ih.chunk(3)
        r_h, z_h, n_h = layer.bias_hh.chunk(3)
        bias = torch.cat((n_x, r_x + r_h, z_x + z_h, n_h))
    (reset_h,) = resets or (None,)
    keep, precision = options.recompute == "none", options.matmul_precision
    weights = torch.cat((n, r, z)), layer.weight_hh, bias
    h, _ = gru_layer(x, *weights, *first, restart, reset_h, keep, kernels, precision)
    return (h,)
