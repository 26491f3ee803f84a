"""Layers: noisy linear, batch renormalization, consistent dropout."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from rl.core import load
from rl.core.arguments import as_integer, as_number
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError
from rl.core.keys import NestedKey, as_tuple
from rl.core.specs import Unbounded
from rl.core.tensor_functions import TensorFunction, unhooked
from rl.modules._keys import key_list

__all__ = [
    "BatchRenorm1d",
    "ConsistentDropout",
    "ConsistentDropoutModule",
    "LayerMaker",
    "NoisyLazyLinear",
    "NoisyLinear",
    "StackedLinear",
    "reset_noise",
    "stacked_norm",
]


class BatchRenorm1d(nn.Module):
    """Batch normalization whose training and evaluation forms agree.

    Ioffe, "Batch Renormalization: Towards Reducing Minibatch Dependence in Batch-Normalized Models", 2017, algorithm
    1: ``y = (x - mean) / std * r + d`` with the statistics of the batch, where ``r = std / running_std`` and ``d =
    (mean - running_mean) / running_std``, clipped, are constants of the gradient. CrossQ (Bhatt et al., 2024) uses it
    in its critics.

    Args:
        num_features: Size of the last dimension of the input.
        momentum: Weight of the batch in the running statistics.
        eps: Added to variances.
        max_r: Limit of `r`, which stays within ``1 / max_r`` and ``max_r``.
        max_d: Limit of `d`, which stays within ``-max_d`` and ``max_d``.
        warmup_steps: Number of first training batches that are normalized by their own statistics alone (``r = 1, d =
            0``).
        smooth: Whether the correction grows in a straight line during these, instead of starting after them.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Shapes: ``[*B, num_features]`` to the same; statistics are over all batch dimensions.

    Raises:
        ArgumentError: if an argument is out of its range.
        ShapeError: in the call, if the last dimension is not `num_features`.

    Example:
        >>> layer = BatchRenorm1d(3, warmup_steps=0)
        >>> layer(torch.randn(5, 3)).shape
        torch.Size([5, 3])
        >>> layer.num_batches_tracked
        tensor(1)
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        momentum: float = 0.01,
        eps: float = 1e-5,
        max_r: float = 3.0,
        max_d: float = 5.0,
        warmup_steps: int = 10_000,
        smooth: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = as_integer(num_features, "BatchRenorm1d", "num_features", least=1)
        self.warmup_steps = as_integer(warmup_steps, "BatchRenorm1d", "warmup_steps", least=0)
        if not (0 < momentum <= 1 and eps >= 0 and max_r >= 1 and max_d >= 0):
            raise ArgumentError(
                "BatchRenorm1d needs 0 < momentum <= 1, eps >= 0, max_r >= 1 and max_d >= 0, got"
                f" {momentum}, {eps}, {max_r} and {max_d}"
            )
        self.momentum, self.eps, self.max_r, self.max_d, self.smooth = momentum, eps, max_r, max_d, smooth
        self.weight = nn.Parameter(torch.empty(self.num_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.num_features, device=device, dtype=dtype))
        self.register_buffer("running_mean", torch.empty(self.num_features, device=device, dtype=dtype))
        self.register_buffer("running_var", torch.empty(self.num_features, device=device, dtype=dtype))
        self.register_buffer("num_batches_tracked", torch.tensor(0, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set parameters and running statistics to their start."""
        with torch.no_grad():
            for ones in (self.weight, self.running_var):
                ones.fill_(1)
            for zeros in (self.bias, self.running_mean, self.num_batches_tracked):
                zeros.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; in training mode, with the statistics of the batch, which update the running ones.

        Raises:
            ShapeError: if there is no batch dimension in training mode, or the last dimension is not `num_features`.
        """
        if x.ndim < 1 + self.training or x.shape[-1] != self.num_features:
            raise ShapeError(f"BatchRenorm1d expects [*B, {self.num_features}], got {tuple(x.shape)}")
        running_std = (self.running_var + self.eps).sqrt()
        if not self.training:
            return (x - self.running_mean) / running_std * self.weight + self.bias
        var, mean = torch.var_mean(x, tuple(range(x.ndim - 1)), correction=0)
        std = (var + self.eps).sqrt()
        with torch.no_grad():
            share = self._share(x.dtype)
            r = 1 + share * ((std / running_std).clamp(1 / self.max_r, self.max_r) - 1)
            d = share * ((mean - self.running_mean) / running_std).clamp(-self.max_d, self.max_d)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)
            self.num_batches_tracked.add_(1)
        return ((x - mean) / std * r + d) * self.weight + self.bias

    def _share(self, dtype: torch.dtype) -> Tensor:
        """How much of the correction is applied now, in [0, 1]; a tensor, so that a compiled graph stays valid."""
        done = self.num_batches_tracked.to(dtype) / max(self.warmup_steps, 1)
        if self.warmup_steps == 0:
            return torch.ones_like(done)
        return done.clamp(max=1) if self.smooth else (done >= 1).to(dtype)

    def extra_repr(self) -> str:
        return f"{self.num_features}, momentum={self.momentum}, max_r={self.max_r}, max_d={self.max_d}"


_UNDRAWN = -1.0


class ConsistentDropout(nn.Module):
    """Dropout that returns its mask, and takes it back.

    Hausknecht and Wagener, "Consistent Dropout for Policy Gradient Reinforcement Learning", 2022: with the mask that
    was used while acting, an update scores actions by the policy that chose them.

    Args:
        p: Probability of dropping a feature, in [0, 1).

    Shapes: ``[*B, F]`` to ``[*B, F]`` and, in training mode, a mask of the same shape, whose entries are 0 or ``1 / (1
    - p)``. In evaluation mode the input comes back alone.

    Raises:
        ArgumentError: if `p` is no probability below 1.

    Example:
        >>> drop = ConsistentDropout(0.5)
        >>> x = torch.ones(3, 4)
        >>> out, mask = drop(x)
        >>> out.equal(drop(x, mask)[0])
        True
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = as_number(p, "ConsistentDropout", "p", least=0, below=1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Drop features; with the mask if one is given, else with a new one."""
        if not self.training:
            return x
        mask = self.make_mask(x) if mask is None else mask
        return x * mask, mask

    def make_mask(self, x: Tensor) -> Tensor:
        """Sample a mask for an input ``[*B, F]``."""
        return torch.empty_like(x).bernoulli_(1 - self.p).div_(1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class ConsistentDropoutModule(TensorDictModuleBase):
    """`ConsistentDropout` on named entries: the mask is drawn at the first step of an episode and kept in the batch.

    Goes between two modules of a policy. ``env.append_transform(module.make_tensordict_primer())`` adds the entry of
    the mask to an environment. The mask is drawn where this entry is negative, as the primer sets it, and written in
    its place, where following steps and updates find it.

    Args:
        in_keys: Keys of the input, or of the input and the mask, whose key is otherwise ``("dropout_mask", *input)``.
        out_keys: Keys of the output, or of the output and the mask; those of `in_keys` if None.
        input_shape: Shape of the input without batch dimensions; only `make_tensordict_primer` needs it.
        input_dtype: Dtype of the input; only `make_tensordict_primer` needs it.
        p: Probability of dropping a feature, in [0, 1).

    Raises:
        ArgumentError: if the keys are none of these forms.
        ContractError: in the call, if an entry is absent.
        ShapeError: in the call, if the mask has not the shape of the input.
        ArgumentError: if `p` is no probability below 1.

    Example:
        >>> from tensordict import TensorDict
        >>> drop = ConsistentDropoutModule(["hidden", "mask"], p=0.5)
        >>> out = drop(TensorDict(hidden=torch.ones(3, 4), mask=-torch.ones(3, 4), batch_size=[3]))
        >>> out["mask"].unique()
        tensor([0., 2.])
        >>> out["hidden"].equal(out["mask"])
        True
    """

    def __init__(
        self,
        in_keys: NestedKey | Sequence[NestedKey],
        out_keys: NestedKey | Sequence[NestedKey] | None = None,
        input_shape: Sequence[int] | None = None,
        input_dtype: torch.dtype | None = None,
        p: float = 0.5,
    ) -> None:
        super().__init__()
        reads = key_list(in_keys)
        if len(reads) == 1:
            reads = [reads[0], ("dropout_mask", *as_tuple(reads[0]))]
        writes = reads if out_keys is None else key_list(out_keys)
        if len(writes) == 1:
            writes = [writes[0], *reads[1:]]
        if len(reads) != 2 or len(writes) != 2 or reads[1] != writes[1] or reads[1] in (reads[0], writes[0]):
            raise ArgumentError(
                "ConsistentDropoutModule reads an input and a mask, and writes an output and the same mask, got in_keys"
                f" {key_list(in_keys)} and out_keys {writes}"
            )
        self.dropout = ConsistentDropout(p)
        self.input_shape = None if input_shape is None else tuple(input_shape)
        self.input_dtype = input_dtype
        self.in_keys = key_list(reads)
        self.out_keys = key_list(writes)

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "Append the transform of make_tensordict_primer() to the environment, and store the entry in batches."
        doc = "0 where a feature is dropped, 1 / (1 - p) where not, negative if not drawn"
        source, mask = self.in_keys
        reads = Key(source, doc="input", remedy="The module before must write it."), Key(mask, doc=doc, remedy=remedy)
        return Contract(reads, (Key(self.out_keys[0], doc="input with features dropped"), Key(mask, doc=doc)))

    def make_tensordict_primer(self) -> Any:
        """Return the transform that adds the mask to an environment, not drawn at the start of each episode.

        Raises:
            ArgumentError: if `input_shape` was not given.
            UnknownComponentError: if rl-envs is not installed.
        """
        if self.input_shape is None:
            raise ArgumentError("ConsistentDropoutModule.make_tensordict_primer needs the module's input_shape=")
        key, spec = self.in_keys[1], Unbounded(self.input_shape, dtype=self.input_dtype or torch.get_default_dtype())
        return load("transform", "tensordict-primer")({key: spec}, default_value={key: _UNDRAWN})

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Drop features and write the mask.

        Raises:
            ContractError: if an entry is absent.
            ShapeError: if the mask has not the shape of the input.
        """
        leaves: list[Any] = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                self.contract.refuse(tensordict, key, self)
        for key, value in zip(self.out_keys, self._drop(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not ConsistentDropoutModule or not unhooked(self):
            return None
        return TensorFunction(self._drop, self.in_keys, self.out_keys)

    def _drop(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if mask.shape != x.shape:
            raise ShapeError(
                f"ConsistentDropoutModule: the mask has the shape {tuple(mask.shape)}, the input {tuple(x.shape)}"
            )
        mask = torch.where(mask < 0, self.dropout.make_mask(x), mask)
        return x * mask if self.training else x, mask


class NoisyLinear(nn.Linear):
    """Linear layer with factorized normal noise on its weights, whose scale is learned.

    Fortunato et al., "Noisy Networks for Exploration", 2018, eq. 9 to 11: ``w = mu + sigma * f(e_out) f(e_in)^T`` with
    ``f(x) = sign(x) sqrt(|x|)``. The noise stays the same until `reset_noise` is called; it is off in evaluation mode.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether there is a bias, which is noisy too.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
        std_init: Scale of the noise at the start, times ``1 / sqrt(in_features)`` for weights and
            ``1 / sqrt(out_features)`` for biases; 0.5 in the paper.
        use_exploration_type: Whether noise is on in `set_exploration_type` ``"random"`` only, in both modes of the
            module, instead of in training mode.

    Shapes: ``[*B, in_features]`` to ``[*B, out_features]``.

    Example:
        >>> layer = NoisyLinear(4, 2)
        >>> before = layer(torch.ones(4))
        >>> reset_noise(layer)
        >>> bool((layer(torch.ones(4)) != before).any())
        True
        >>> layer.eval()(torch.zeros(4)).equal(layer.bias_mu)
        True
    """

    weight_mu: nn.Parameter
    weight_sigma: nn.Parameter
    weight_epsilon: Tensor
    bias_mu: nn.Parameter | None
    bias_sigma: nn.Parameter | None
    bias_epsilon: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,  # noqa: FBT001, FBT002  torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        std_init: float = 0.1,
        *,
        use_exploration_type: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = int(in_features), int(out_features)
        self.std_init = as_number(std_init, type(self).__name__, "std_init", least=0)
        self.use_exploration_type = use_exploration_type
        shapes = {"weight": (out_features, in_features), "bias": (out_features,) if bias else None}
        for name, shape in shapes.items():
            for part in ("mu", "sigma"):
                value = None if shape is None else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(f"{name}_{part}", value)
            noise = None if shape is None else torch.empty(shape, device=device, dtype=dtype)
            self.register_buffer(f"{name}_epsilon", noise)
        self.reset_parameters()
        self.reset_noise()

    def reset_parameters(self) -> None:
        """Set means uniform within ``1 / sqrt(in_features)``, and the scales of the noise to their start."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        nn.init.uniform_(self.weight_mu, -bound, bound)
        nn.init.constant_(self.weight_sigma, self.std_init * bound)
        if self.bias_mu is not None and self.bias_sigma is not None:
            nn.init.uniform_(self.bias_mu, -bound, bound)
            nn.init.constant_(self.bias_sigma, self.std_init / math.sqrt(max(self.out_features, 1)))

    def reset_noise(self) -> None:
        """Draw new noise."""
        with torch.no_grad():
            of_input, of_output = _noise_like(self.weight_epsilon[0]), _noise_like(self.weight_epsilon[:, 0])
            self.weight_epsilon.copy_(torch.outer(of_output, of_input))
            if self.bias_epsilon is not None:
                self.bias_epsilon.copy_(of_output)

    @property
    def noisy(self) -> bool:
        """Whether noise is on."""
        if self.use_exploration_type:
            return interaction_type() is InteractionType.RANDOM
        return self.training

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]  # a parameter there
        """The weights that are used now, ``[out_features, in_features]``."""
        if not self.noisy:
            return self.weight_mu
        return torch.addcmul(self.weight_mu, self.weight_sigma, self.weight_epsilon)

    @property
    def bias(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]  # a parameter there
        """The biases that are used now, ``[out_features]``, if there are any."""
        if self.bias_mu is None or self.bias_sigma is None or self.bias_epsilon is None or not self.noisy:
            return self.bias_mu
        return torch.addcmul(self.bias_mu, self.bias_sigma, self.bias_epsilon)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's name
        """``input @ weight.T + bias``."""
        return linear(input, self.weight, self.bias)


class NoisyLazyLinear(LazyModuleMixin, NoisyLinear):
    """`NoisyLinear` that finds out the width of its input at the first call.

    Args:
        out_features: Width of the output.
        bias: Whether there is a bias, which is noisy too.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
        std_init: Scale of the noise at the start, see `NoisyLinear`.
        use_exploration_type: Whether the exploration type turns the noise on, see `NoisyLinear`.

    Example:
        >>> layer = NoisyLazyLinear(2)
        >>> layer(torch.zeros(5, 4)).shape, layer.in_features
        (torch.Size([5, 2]), 4)
    """

    cls_to_become: Any = NoisyLinear

    def __init__(
        self,
        out_features: int,
        bias: bool = True,  # noqa: FBT001, FBT002  torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        std_init: float = 0.1,
        *,
        use_exploration_type: bool = False,
    ) -> None:
        parent: Any = super()  # typed by torch as a protocol that no module fits
        parent.__init__(0, 0, bias, device, dtype, std_init, use_exploration_type=use_exploration_type)
        self.out_features = int(out_features)
        options: Any = {"device": device, "dtype": dtype}
        for name in ("weight", "bias") if bias else ("weight",):
            for part in ("mu", "sigma"):
                setattr(self, f"{name}_{part}", UninitializedParameter(**options))
            setattr(self, f"{name}_epsilon", UninitializedBuffer(**options))

    def reset_parameters(self) -> None:
        """As in `NoisyLinear`, once the width is known."""
        if self.in_features:
            super().reset_parameters()

    def reset_noise(self) -> None:
        """As in `NoisyLinear`, once the width is known."""
        if self.in_features:
            super().reset_noise()

    def initialize_parameters(self, input: Tensor) -> None:  # noqa: A002  torch's name
        """Create the parameters for an input ``[*B, in_features]``."""
        lazy: Any = self  # typed by torch as a protocol that no module fits
        if not lazy.has_uninitialized_params():
            return
        self.in_features = input.shape[-1]
        for name, shape in (("weight", (self.out_features, self.in_features)), ("bias", (self.out_features,))):
            for part in ("mu", "sigma", "epsilon"):
                value: Any = getattr(self, f"{name}_{part}")
                if value is not None:
                    value.materialize(shape)
        self.reset_parameters()
        self.reset_noise()


def reset_noise(layer: nn.Module) -> None:
    """Draw new noise in a layer that has some; for ``network.apply(reset_noise)``.

    Args:
        layer: Module; one without a method ``reset_noise`` stays as it is.

    Example:
        >>> from rl.modules import MLP
        >>> net = MLP(4, 2, num_cells=[8], layer_class=NoisyLinear)
        >>> _ = net.apply(reset_noise)
    """
    draw = getattr(layer, "reset_noise", None)
    if draw is not None:
        draw()


def _noise_like(row: Tensor) -> Tensor:
    noise = torch.randn_like(row)
    return noise.sign() * noise.abs().sqrt()


class StackedLinear(nn.Module):
    """A linear layer for each of n agents: ``[n, N, in_features]`` to ``[n, N, out_features]``.

    Args:
        count: Number of agents.
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether there is a bias.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        count: int,
        in_features: int,
        out_features: int,
        bias: bool = True,  # noqa: FBT001, FBT002  torch's signature
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.count, self.in_features, self.out_features = count, in_features, out_features
        options: Any = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(count, in_features, out_features, **options))
        self.bias = nn.Parameter(torch.empty(count, 1, out_features, **options)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters of each agent as `torch.nn.Linear` does."""
        if not self.in_features:
            return
        bound = 1 / math.sqrt(self.in_features)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer of each agent to its input."""
        return torch.bmm(x, self.weight) if self.bias is None else torch.baddbmm(self.bias, x, self.weight)

    def extra_repr(self) -> str:
        """Sizes, for `repr`."""
        return f"{self.count} x ({self.in_features}, {self.out_features}), bias={self.bias is not None}"


class LazyStackedLinear(LazyModuleMixin, StackedLinear):
    """`StackedLinear` that finds out the width of its input at the first call."""

    cls_to_become: Any = StackedLinear

    def __init__(self, count: int, out_features: int, bias: bool = True, **options: Any) -> None:  # noqa: FBT001, FBT002
        parent: Any = super()  # typed by torch as a protocol that no module fits
        parent.__init__(count, 0, out_features, bias, **options)
        self.weight = UninitializedParameter(**options)

    def initialize_parameters(self, x: Tensor) -> None:
        """Create the parameters for an input ``[n, N, in_features]``."""
        lazy: Any = self  # typed by torch as a protocol that no module fits
        if lazy.has_uninitialized_params():
            self.in_features = x.shape[-1]
            lazy.weight.materialize((self.count, self.in_features, self.out_features))
            self.reset_parameters()


class LayerMaker:
    """Creates layers of `count` agents, called like `torch.nn.Linear`.

    Args:
        count: Number of agents.
    """

    __name__ = "StackedLinear"

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, in_features: int, out_features: int, **options: Any) -> StackedLinear:
        return StackedLinear(self.count, in_features, out_features, **options)

    def lazy(self, out_features: int, **options: Any) -> LazyStackedLinear:
        """Return a layer that finds out the width of its input."""
        return LazyStackedLinear(self.count, out_features, **options)


class _PerAgent(nn.ModuleList):
    """A module for each agent, applied to its rows of ``[n, N, features]``."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([module(rows) for module, rows in zip(self, x, strict=True)])


def stacked_norm(norm_class: Any, count: int) -> Any:
    """Return a function with the arguments of `norm_class` that creates one for each agent."""

    @functools.wraps(norm_class, updated=())
    def make(*args: Any, **kwargs: Any) -> nn.Module:
        return _PerAgent(norm_class(*args, **kwargs) for _ in range(count))

    return make
