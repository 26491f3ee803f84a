"""Policies that take the action of the highest expected value of a distribution of returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl.core.errors import ShapeError, SpecError
from rl.core.keys import NestedKey, key_str
from rl.core.specs import TensorSpec
from rl.modules import _foreign
from rl.modules._keys import parts
from rl.modules.nets._distributional import DistributionalDQNnet
from rl.modules.policy._qvalue import QValueActor, QValueModule

__all__ = [
    "DistributionalQValueActor",
    "DistributionalQValueModule",
    "QuantileQValueActor",
    "QuantileQValueModule",
]


@_foreign.q_value_module
class DistributionalQValueModule(QValueModule):
    """From categorical distributions of returns to the action of the highest expected return.

    Bellemare et al., "A Distributional Perspective on Reinforcement Learning", 2017, algorithm 1.

    Args:
        action_space: see `QValueModule`; that of `spec` if None.
        support: the returns `z` that the atoms stand for, ``[atoms]``.
        action_value_key: of the log-probabilities ``[*B, atoms, n]``; ``action_value`` if None.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; nothing is masked if None.
        out_keys: of the action, the log-probabilities and the chosen value; ``action``, `action_value_key` and
            ``chosen_action_value`` if None.
        spec: of the action.
        group_sizes: numbers of actions of each choice, for the ``multi`` spaces without a spec.

    Shapes: the action as in `QValueModule`, the log-probabilities as they came, and the expected return
    ``sum_i z_i exp(log p_i)`` of the chosen action, ``[*B, 1]``.

    Raises:
        SpecError: if the action space is not known, or `support` is not a vector.
        ShapeError: in the call, if there are not as many log-probabilities as atoms.

    Example:
        >>> from tensordict import TensorDict
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()  # [atoms, n]
        >>> choose = DistributionalQValueModule("one-hot", support=torch.tensor([0.0, 10.0]))
        >>> out = choose(TensorDict(action_value=log_probs))
        >>> out["action"], out["chosen_action_value"]
        (tensor([0, 1]), tensor([9.]))
    """

    value_shape: ClassVar[tuple[str, ...]] = ("atoms", "n")
    value_doc: ClassVar[str] = "log-probability of each atom, for each action"

    support: Tensor

    def __init__(
        self,
        action_space: str | TensorSpec | None = None,
        support: Tensor | None = None,
        action_value_key: NestedKey | None = None,
        action_mask_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
        group_sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(action_space, action_value_key, action_mask_key, out_keys, spec=spec, group_sizes=group_sizes)
        if not isinstance(support, Tensor) or support.ndim != 1 or not support.is_floating_point():
            found = f"{support.dtype} {list(support.shape)}" if isinstance(support, Tensor) else repr(support)
            raise SpecError(
                f"{type(self).__name__} needs the support as a vector of floating-point returns, got {found}:"
                " give torch.linspace(v_min, v_max, atoms)"
            )
        self.register_buffer("support", support)

    def _select(self, values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        atoms = len(self.support)
        if values.ndim < 2 or values.shape[-2] != atoms:
            raise ShapeError(
                f"{type(self).__name__} has a support of {atoms} atoms and got {key_str(self.in_keys[0])} of shape"
                f" {tuple(values.shape)}: the network must write [*B, {atoms}, n]"
            )
        expected = torch.einsum("...an,a->...n", values.exp(), self.support.to(values.dtype))
        action, _, chosen = super()._select(expected, mask)
        return action, values, chosen


@_foreign.q_value_module
class QuantileQValueModule(QValueModule):
    """From quantiles of returns to the action of the highest mean.

    Dabney et al., "Distributional Reinforcement Learning with Quantile Regression", 2018, eq. 3: all quantiles have
    the same probability.

    Args:
        action_space: see `QValueModule`; that of `spec` if None.
        action_value_key: of the quantiles ``[*B, n, quantiles]``; ``action_value`` if None.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; nothing is masked if None.
        out_keys: of the action, the quantiles and the chosen value; ``action``, `action_value_key` and
            ``chosen_action_value`` if None.
        spec: of the action.
        group_sizes: numbers of actions of each choice, for the ``multi`` spaces without a spec.

    Shapes: the action as in `QValueModule`, the quantiles as they came, and the mean of the chosen action's,
    ``[*B, 1]``.

    Raises:
        SpecError: if the action space is neither given nor known from the spec, or not discrete.
        ShapeError: in the call, if the quantiles have no dimension of actions, or one of another size.

    Example:
        >>> from tensordict import TensorDict
        >>> quantiles = torch.tensor([[0.0, 1.0, 2.0], [1.0, 2.0, 9.0]])  # [n, quantiles]
        >>> out = QuantileQValueModule("categorical")(TensorDict(action_value=quantiles))
        >>> out["action"], out["chosen_action_value"]
        (tensor(1), tensor([4.]))
    """

    value_shape: ClassVar[tuple[str, ...]] = ("n", "quantiles")
    value_doc: ClassVar[str] = "quantiles of the return of each action"

    def _select(self, values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if values.ndim < 2:
            raise ShapeError(
                f"{type(self).__name__} got {key_str(self.in_keys[0])} of shape {tuple(values.shape)}:"
                " the network must write [*B, n, quantiles]"
            )
        action, _, chosen = super()._select(values.mean(-1), mask)
        return action, values, chosen


@_foreign.q_value_actor
class DistributionalQValueActor(QValueActor):
    """A network that gives each action a categorical distribution of returns, and the choice of the best.

    Bellemare et al., "A Distributional Perspective on Reinforcement Learning", 2017 (C51).

    Args:
        module: from the entries under `in_keys` to logits ``[*B, atoms, n]``: a network, or a TensorDict module that
            writes `action_value_key`.
        in_keys: keys read; ``["observation"]`` if None; of a TensorDict module, its own.
        spec: of the action, or a composite that has it under ``action``.
        support: the returns that the atoms stand for, ``[atoms]``.
        action_space: see `QValueModule`; that of `spec` if None.
        action_value_key: of the log-probabilities; ``action_value`` if None.
        action_mask_key: of the mask of allowed actions ``[*B, n]``; nothing is masked if None.
        make_log_softmax: normalize what the network writes over the atoms; leave it on unless the network does so.

    Raises:
        SpecError: if the action space is not known, or `support` is not a vector.
        ShapeError: if the module visibly writes another number of actions; in the call, of atoms.

    Example:
        >>> from rl.core.specs import OneHot
        >>> from rl.modules import MLP
        >>> from tensordict import TensorDict
        >>> support = torch.linspace(-10, 10, 51)
        >>> actor = DistributionalQValueActor(MLP(4, (51, 2)), spec=OneHot(2), support=support)
        >>> out = actor(TensorDict(observation=torch.zeros(3, 4), batch_size=[3]))
        >>> out["action"].shape, out["action_value"].shape, out["chosen_action_value"].shape
        (torch.Size([3, 2]), torch.Size([3, 51, 2]), torch.Size([3, 1]))
    """

    def __init__(
        self,
        module: nn.Module,
        in_keys: Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
        support: Tensor | None = None,
        action_space: str | TensorSpec | None = None,
        action_value_key: NestedKey | None = None,
        action_mask_key: NestedKey | None = None,
        make_log_softmax: bool = True,
    ) -> None:
        choice = DistributionalQValueModule(action_space, support, action_value_key, action_mask_key, spec=spec)
        key: Any = choice.in_keys[0]
        between = [DistributionalDQNnet(in_keys=[key], out_keys=[key])] if make_log_softmax else []
        self._assemble(module, in_keys, choice, between)

    @property
    def support(self) -> Tensor:
        """The returns that the atoms stand for, ``[atoms]``."""
        return parts(self)[-1].support


@_foreign.q_value_actor
class QuantileQValueActor(QValueActor):
    """A network that gives each action the quantiles of its return, and the choice of the best mean.

    Dabney et al., "Distributional Reinforcement Learning with Quantile Regression", 2018 (QR-DQN).

    Args:
        module: from the entries under `in_keys` to quantiles ``[*B, n, quantiles]``: a network, or a TensorDict module
            that writes `action_value_key`.
        in_keys: keys read; ``["observation"]`` if None; of a TensorDict module, its own.
        spec: of the action, or a composite that has it under ``action``.
        action_space: see `QValueModule`; that of `spec` if None.
        action_value_key: of the quantiles; ``action_value`` if None.
        action_mask_key: of the mask of allowed actions ``[*B, n]``; nothing is masked if None.

    Raises:
        SpecError: if the action space is neither given nor known from the spec.
        ShapeError: in the call, if the module writes another number of actions.

    Example:
        >>> from rl.core.specs import OneHot
        >>> from rl.modules import MLP
        >>> from tensordict import TensorDict
        >>> actor = QuantileQValueActor(MLP(4, (2, 200)), spec=OneHot(2))
        >>> out = actor(TensorDict(observation=torch.zeros(3, 4), batch_size=[3]))
        >>> out["action"].shape, out["action_value"].shape, out["chosen_action_value"].shape
        (torch.Size([3, 2]), torch.Size([3, 2, 200]), torch.Size([3, 1]))
    """

    def __init__(
        self,
        module: nn.Module,
        in_keys: Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
        action_space: str | TensorSpec | None = None,
        action_value_key: NestedKey | None = None,
        action_mask_key: NestedKey | None = None,
    ) -> None:
        self._assemble(
            module, in_keys, QuantileQValueModule(action_space, action_value_key, action_mask_key, spec=spec)
        )
