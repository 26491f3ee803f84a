"""Policies that take the action of the highest value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential, dispatch
from torch import Tensor, nn

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.keys import ACTION, ACTION_VALUE, CHOSEN_ACTION_VALUE, OBSERVATION, NestedKey, key_str, unwrap
from rl.core.policy_program import ProgramBuilder, Register
from rl.core.specs import MultiCategorical, MultiOneHot, TensorSpec
from rl.core.tensor_functions import TensorFunction, unhooked
from rl.modules._keys import key_list, parts
from rl.modules.distributions._discrete import check_mask
from rl.modules.nets._heads import DistributionalDQNnet
from rl.modules.policy._actor import reads_of
from rl.modules.policy._fit import (
    action_leaf,
    action_shape,
    action_space,
    check_width,
    group_sizes,
    num_values,
    spec_by_key,
)

Choose = Callable[[Tensor], tuple[Tensor, Tensor]]


@foreign_arguments()
class QValueModule(TensorDictModuleBase):
    """From action values to the action of the highest value.

    Args:
        action_space: Action space: ``"one-hot"``, ``"categorical"``, ``"multi-one-hot"`` or ``"multi-categorical"``, or
            a spec; that of `spec` if None.
        action_value_key: Key of the values ``[*B, n]``; ``action_value`` if None.
        action_mask_key: Key of the mask, bool ``[*B, n]``, True where an action is allowed; nothing is masked if None.
        out_keys: Keys of the action, the values and the chosen value; ``action``, `action_value_key` and
            ``chosen_action_value`` if None.
        spec: Spec of the action, or a composite that has it under its out key.
        group_sizes: Numbers of actions of each choice, for the ``multi`` spaces without a spec.

    Shapes: one-hot ``[*B, n]``, categorical ``[*B]``; multi-one-hot ``[*B, sum(n)]``, multi-categorical
    ``[*B, choices]``, of which the values are added up. The chosen value is ``[*B, 1]``. Of forbidden actions the
    value is set to the smallest number.

    Raises:
        ArgumentError: if the action space is neither given nor known from the spec, or not discrete.

    Example:
        >>> from tensordict import TensorDict
        >>> values = TensorDict(action_value=torch.tensor([[1.0, 3.0, 2.0]]), batch_size=[1])
        >>> out = QValueModule("one-hot")(values)
        >>> out["action"], out["chosen_action_value"]
        (tensor([[0, 1, 0]]), tensor([[3.]]))
        >>> action, values, chosen = QValueModule("one-hot")(torch.tensor([[1.0, 3.0, 2.0]]))
    """

    value_shape: ClassVar[tuple[str, ...]] = ("n",)
    """Dimensions of the values after those of the batch."""
    value_doc: ClassVar[str] = "value of each action"
    """What the values are, for contracts."""

    def __init__(
        self,
        action_space: str | TensorSpec | None = None,
        action_value_key: NestedKey | None = None,
        action_mask_key: NestedKey | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
        group_sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        value_key: NestedKey = ACTION_VALUE if action_value_key is None else unwrap(action_value_key)
        outputs = [ACTION, value_key, CHOSEN_ACTION_VALUE] if out_keys is None else key_list(out_keys)
        owner = str(type(self).__name__)
        if len(outputs) != 3:
            raise ArgumentError(f"{owner} writes action, values and chosen value, got out_keys {outputs}")
        self._leaf = action_leaf(spec, outputs[0], owner)
        self.spec = spec_by_key(spec, outputs[0])
        self.action_space, self.group_sizes = _space(owner, action_space, self._leaf, group_sizes)
        self.action_mask_key = None if action_mask_key is None else unwrap(action_mask_key)
        self.in_keys = key_list([value_key] if self.action_mask_key is None else [value_key, self.action_mask_key])
        self.out_keys = key_list(outputs)
        dtype = torch.int64 if self._leaf is None or self._leaf.dtype is None else self._leaf.dtype
        self._choose = _Chooser(self.action_space, self.group_sizes, dtype)
        self._expected = num_values(self._leaf) if self._leaf is not None else sum(self.group_sizes or ()) or None

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        mask = () if self.action_mask_key is None else (Key(self.in_keys[1], ("n",), "True where allowed", torch.bool),)
        remedy = "Let the network's out_keys be this key, or name another with action_value_key=."
        action, values, chosen = self.out_keys
        return Contract(
            (Key(self.in_keys[0], self.value_shape, self.value_doc, remedy=remedy), *mask),
            (
                Key(action, action_shape(self._leaf), "action of the highest value"),
                Key(values, self.value_shape, self.value_doc),
                Key(chosen, (1,), "value of the chosen action"),
            ),
        )

    @dispatch(auto_batch_size=False)  # pyright: ignore[reportUntypedFunctionDecorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the action and its value; of tensors in the place of a batch, return what would be written.

        Raises:
            ContractError: if the values or the mask are absent.
            ShapeError: if there are not as many values as actions.
            ArgumentError: if a mask allows nothing.
        """
        leaves = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                self.contract.refuse(tensordict, unwrap(key), type(self).__name__)
        for key, value in zip(self.out_keys, self._select(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call, with the same numbers; None if it was changed or hooked."""
        plain = type(self).forward is QValueModule.forward and self.out_keys == self.out_keys_source
        if not plain or not unhooked(self):
            return None
        return TensorFunction(self._select, self.in_keys, self.out_keys)

    def describe(self, builder: ProgramBuilder, values: Register, mask: Register | None = None) -> tuple[Register, ...]:
        """Append the choice to a program; see `rl.core.policy_program`."""
        if type(self) is not QValueModule or self.group_sizes is not None or self._choose.dtype is not torch.int64:
            builder.reject(f"{type(self).__name__} chooses among distributions, several times, or not in int64")
        if not values.width:
            builder.reject("QValueModule comes before any layer of known width")
        one_hot, n = self.action_space == "one-hot", values.width
        if self._expected is not None:
            builder.expect(values, self._expected, "QValueModule")
        action, chosen = Register(n if one_hot else 0, torch.int64), Register(1)
        seen = values
        if mask is not None:
            mask.dtype, seen = torch.bool, Register(n)
            builder.expect(mask, n, "the mask")
        builder.add("best", [values, mask], [action, chosen, None if mask is None else seen], one_hot=one_hot)
        return action, seen, chosen

    def _select(self, values: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if self._expected is not None and values.shape[-1] != self._expected:
            raise ShapeError(
                f"{type(self).__name__} got {values.shape[-1]} values under {key_str(self.in_keys[0])} for"
                f" {self._expected} actions: change the width of the network's last layer"
            )
        if mask is not None:
            check_mask(mask, str(type(self).__name__), self.group_sizes)
            values = torch.where(mask, values, torch.finfo(values.dtype).min)
        action, chosen = self._choose(values)
        return action, values, chosen


class _Chooser:
    """Values to the best action and its value. An object, not a closure: policies are sent to workers."""

    def __init__(self, space: str, sizes: Sequence[int] | None, dtype: torch.dtype) -> None:
        self._one_hot = space.endswith("one-hot")
        self._sizes = list(sizes) if sizes is not None else None
        self.dtype = dtype

    def __call__(self, values: Tensor) -> tuple[Tensor, Tensor]:
        if self._sizes is None:
            chosen, index = values.max(-1, keepdim=True)
            return self._encode(index, values.shape), chosen
        groups = [group.max(-1, keepdim=True) for group in values.split(self._sizes, -1)]
        chosen = torch.cat([best for best, _ in groups], -1).sum(-1, keepdim=True)
        shapes = [(*values.shape[:-1], size) for size in self._sizes]
        if not self._one_hot:
            return torch.cat([index for _, index in groups], -1).to(self.dtype), chosen
        return torch.cat([self._encode(g[1], s) for g, s in zip(groups, shapes, strict=True)], -1), chosen

    def _encode(self, index: Tensor, shape: Any) -> Tensor:
        if self._one_hot:
            return torch.zeros(shape, dtype=self.dtype, device=index.device).scatter_(-1, index, 1)
        index = index.squeeze(-1)
        return index if self.dtype is torch.int64 else index.to(self.dtype)


@foreign_arguments()
class QValueActor(TensorDictSequential):
    """A network that values each action, and the choice of the best.

    Args:
        module: Module from the entries under `in_keys` to values ``[*B, n]``: a network, or a TensorDict module that
            writes `action_value_key`.
        in_keys: Keys read; ``["observation"]`` if None, or those of a TensorDict module.
        spec: Spec of the action, or a composite that has it under ``action``.
        action_space: Action space, see `QValueModule`; that of `spec` if None.
        action_value_key: Key of the values; ``action_value`` if None.
        action_mask_key: Key of the mask of allowed actions; nothing is masked if None.

    Raises:
        ArgumentError: if the action space is neither given nor known from the spec.
        ShapeError: if the module visibly puts out another number of values than there are actions.

    Example:
        >>> from rl.core.specs import OneHot
        >>> from tensordict import TensorDict
        >>> actor = QValueActor(nn.Linear(4, 2), spec=OneHot(2, dtype=torch.int64))
        >>> out = actor(TensorDict(observation=torch.zeros(3, 4), batch_size=[3]))
        >>> out["action"].shape, out["action_value"].shape, out["chosen_action_value"].shape
        (torch.Size([3, 2]), torch.Size([3, 2]), torch.Size([3, 1]))
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
        self._assemble(module, in_keys, QValueModule(action_space, action_value_key, action_mask_key, spec=spec))

    def _assemble(
        self,
        module: nn.Module,
        in_keys: Sequence[NestedKey] | None,
        choice: QValueModule,
        between: Sequence[TensorDictModuleBase] = (),
    ) -> None:
        """Build the sequence of network, further modules and choice."""
        owner, value_key = str(type(self).__name__), choice.in_keys[0]
        if isinstance(module, TensorDictModuleBase):
            _check_keys(owner, module, in_keys, value_key)
            net = module
        else:
            net = TensorDictModule(module, [OBSERVATION] if in_keys is None else list(in_keys), [value_key])
        if choice.value_shape[-1] == "n":
            leaf = action_leaf(choice.spec, choice.out_keys[0], owner)
            check_width(owner, net, value_key, None if leaf is None else num_values(leaf))
        TensorDictSequential.__init__(self, net, *between, choice)
        self.spec = choice.spec
        self.action_space = choice.action_space

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        choice: QValueModule = parts(self)[-1]
        mask = [key for key in choice.contract.reads if key.dtype is torch.bool]
        names = {key.name for key in mask}
        known = {key.name: key for key in choice.contract.writes}
        writes = tuple(known.get(key, Key(key)) for key in key_list(self.out_keys))
        return Contract((*reads_of([key for key in key_list(self.in_keys) if key not in names]), *mask), writes)


def _check_keys(
    owner: str, module: TensorDictModuleBase, in_keys: Sequence[NestedKey] | None, value_key: NestedKey
) -> None:
    written = [unwrap(key) for key in module.out_keys]
    if value_key not in written:
        raise ContractError(
            f"{owner} reads {key_str(value_key)}, the module writes {written}:"
            " name the module's key with action_value_key=, or change its out_keys"
        )
    if in_keys is not None and [unwrap(key) for key in in_keys] != [unwrap(key) for key in module.in_keys]:
        raise ArgumentError(
            f"{owner} got in_keys {list(in_keys)} and a module that reads {list(module.in_keys)}: leave in_keys out"
        )


def _space(
    owner: str, given: str | TensorSpec | None, spec: TensorSpec | None, sizes: Sequence[int] | None
) -> tuple[str, list[int] | None]:
    of_spec = action_space(spec)
    space = action_space(given) or of_spec
    if space is None:
        given_space = "an action that is not discrete" if spec is not None or given is not None else "neither"
        raise ArgumentError(f"{owner} needs a discrete action_space or spec, got {given_space}: {given or spec}")
    if of_spec is not None and of_spec != space:
        raise ArgumentError(f"{owner} got action_space {space!r} and a spec for {of_spec!r}: leave one of them out")
    if not space.startswith("multi"):
        return space, None
    if sizes is not None:
        return space, [as_integer(size, owner, "an entry of group_sizes", least=1) for size in sizes]
    source = spec if of_spec is not None else given
    if not isinstance(source, MultiOneHot | MultiCategorical):
        raise ArgumentError(f"action space {space!r} needs a spec or group_sizes, the number of actions of each choice")
    return space, group_sizes(source)


@foreign_arguments()
class DistributionalQValueModule(QValueModule):
    """From categorical distributions of returns to the action of the highest expected return.

    Bellemare et al., "A Distributional Perspective on Reinforcement Learning", 2017, algorithm 1.

    Args:
        action_space: Action space, see `QValueModule`; that of `spec` if None.
        support: Returns `z` that the atoms stand for, ``[atoms]``.
        action_value_key: Key of the log-probabilities ``[*B, atoms, n]``; ``action_value`` if None.
        action_mask_key: Key of the mask, bool ``[*B, n]``, True where an action is allowed; nothing is masked if None.
        out_keys: Keys of the action, the log-probabilities and the chosen value; ``action``, `action_value_key` and
            ``chosen_action_value`` if None.
        spec: Spec of the action.
        group_sizes: Numbers of actions of each choice, for the ``multi`` spaces without a spec.

    Shapes: the action as in `QValueModule`, the log-probabilities as they came, and the expected return
    ``sum_i z_i exp(log p_i)`` of the chosen action, ``[*B, 1]``.

    Raises:
        ArgumentError: if the action space is not known, or `support` is not a vector.
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
            raise ArgumentError(
                f"{type(self).__name__} needs the support as a vector of floating-point returns, got {found}:"
                " pass torch.linspace(v_min, v_max, atoms)"
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


@foreign_arguments()
class QuantileQValueModule(QValueModule):
    """From quantiles of returns to the action of the highest mean.

    Dabney et al., "Distributional Reinforcement Learning with Quantile Regression", 2018, eq. 3: all quantiles have
    the same probability.

    Args:
        action_space: Action space, see `QValueModule`; that of `spec` if None.
        action_value_key: Key of the quantiles ``[*B, n, quantiles]``; ``action_value`` if None.
        action_mask_key: Key of the mask, bool ``[*B, n]``, True where an action is allowed; nothing is masked if None.
        out_keys: Keys of the action, the quantiles and the chosen value; ``action``, `action_value_key` and
            ``chosen_action_value`` if None.
        spec: Spec of the action.
        group_sizes: Numbers of actions of each choice, for the ``multi`` spaces without a spec.

    Shapes: the action as in `QValueModule`, the quantiles as they came, and the mean of the chosen action's,
    ``[*B, 1]``.

    Raises:
        ArgumentError: if the action space is neither given nor known from the spec, or not discrete.
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


@foreign_arguments()
class DistributionalQValueActor(QValueActor):
    """A network that assigns each action a categorical distribution of returns, and the choice of the best.

    Bellemare et al., "A Distributional Perspective on Reinforcement Learning", 2017 (C51).

    Args:
        module: Module from the entries under `in_keys` to logits ``[*B, atoms, n]``: a network, or a TensorDict module
            that writes `action_value_key`.
        in_keys: Keys read; ``["observation"]`` if None, or those of a TensorDict module.
        spec: Spec of the action, or a composite that has it under ``action``.
        support: Returns that the atoms stand for, ``[atoms]``.
        action_space: Action space, see `QValueModule`; that of `spec` if None.
        action_value_key: Key of the log-probabilities; ``action_value`` if None.
        action_mask_key: Key of the mask of allowed actions ``[*B, n]``; nothing is masked if None.
        make_log_softmax: Whether the output of the network is normalized over the atoms; leave it on unless the network
            does so.

    Raises:
        ArgumentError: if the action space is not known, or `support` is not a vector.
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


@foreign_arguments()
class QuantileQValueActor(QValueActor):
    """A network that assigns each action the quantiles of its return, and the choice of the best mean.

    Dabney et al., "Distributional Reinforcement Learning with Quantile Regression", 2018 (QR-DQN).

    Args:
        module: Module from the entries under `in_keys` to quantiles ``[*B, n, quantiles]``: a network, or a TensorDict
            module that writes `action_value_key`.
        in_keys: Keys read; ``["observation"]`` if None, or those of a TensorDict module.
        spec: Spec of the action, or a composite that has it under ``action``.
        action_space: Action space, see `QValueModule`; that of `spec` if None.
        action_value_key: Key of the quantiles; ``action_value`` if None.
        action_mask_key: Key of the mask of allowed actions ``[*B, n]``; nothing is masked if None.

    Raises:
        ArgumentError: if the action space is neither given nor known from the spec.
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
