"""Deterministic and stochastic policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
    set_interaction_type,
)
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.arguments import foreign_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError
from rl.core.keys import ACTION, OBSERVATION, STATE_ACTION_VALUE, STATE_VALUE, NestedKey, as_tuple, unwrap
from rl.core.specs import TensorSpec
from rl.core.tensor_functions import DistributionFunction, TensorFunction, as_function, chain, unhooked
from rl.modules._keys import key_list, parts
from rl.modules.distributions._normal import Delta
from rl.modules.policy._fit import (
    action_leaf,
    action_shape,
    check_params,
    check_width,
    distribution_kwargs,
    expected_width,
    is_group,
    last_names,
    missing_params,
    output_width,
    places_of_parts,
    spec_by_key,
)
from rl.modules.policy._heads import ActionHead


@foreign_arguments()
class Actor(TensorDictModule):
    """Deterministic policy.

    Args:
        module: Module that maps the entries `in_keys` to the action ``[*B, A]``.
        in_keys: Keys that are read; ``["observation"]`` if None.
        out_keys: Keys that are written; ``["action"]`` if None.
        spec: Spec of the action, or a composite that has it under the out key; its shape is checked against the
            module's where that is known. The attribute `spec` is a composite.

    Raises:
        ShapeError: if the module's output does not have the spec's shape.

    Example:
        >>> from tensordict import TensorDict
        >>> actor = Actor(nn.Linear(3, 2))
        >>> actor(TensorDict(observation=torch.zeros(4, 3), batch_size=[4]))["action"].shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        module: nn.Module,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
    ) -> None:
        outputs = key_list([ACTION] if out_keys is None else out_keys)
        super().__init__(module, key_list([OBSERVATION] if in_keys is None else in_keys), outputs)
        self._leaf = action_leaf(spec, outputs[0], "Actor")
        self.spec = spec_by_key(spec, outputs[0])
        if self._leaf is not None and len(self._leaf.shape):
            check_width("Actor", self, outputs[0], self._leaf.shape[-1])

    @property
    def contract(self) -> Contract:
        """Keys that are read and written."""
        spec = self._leaf
        action = Key(key_list(self.out_keys)[0], action_shape(spec), "action", _dtype(spec))
        return Contract(reads_of(self.in_keys), (action, *(Key(key) for key in key_list(self.out_keys)[1:])))


@foreign_arguments()
class ProbabilisticActor(ProbabilisticTensorDictSequential):
    """Stochastic policy: samples its action from a distribution.

    Under `set_exploration_type` ``"deterministic"`` it takes the distribution's ``deterministic_sample``.

    Args:
        module: TensorDict module that writes the distribution's parameters.
        in_keys: Keys of the parameters, named like these (``["loc", "scale"]``, ``["logits"]``), or
            ``{parameter: key}``. ``["params"]`` is the group of the parameters of a
            `tensordict.nn.CompositeDistribution`.
        out_keys: Keys that are written; if None, ``["action"]``, or those of the parts of a `CompositeDistribution`.
        spec: Spec of the action, or a composite that has it under the out key. `TanhNormal` takes its bounds from
            there, `OneHotCategorical` its dtype, also as parts of a `CompositeDistribution`; shapes are checked at
            construction where they can be seen, and at the first call. The attribute `spec` is a composite.
        distribution_class: Class of the distribution, called with the parameters.
        distribution_kwargs: Further arguments of the distribution.
        return_log_prob: Whether the log-probability of the action ``[*B]`` is written too, under ``action_log_prob``.
        log_prob_key: Key of the log-probability, in place of ``action_log_prob``.
        default_interaction_type: Interaction type where none is set.
        num_samples: Shape of several samples per call, prepended to the batch.
        n_empirical_estimate: Number of samples for a mean without a closed form.

    Raises:
        ArgumentError: if `module` has no keys, or a `CompositeDistribution` no parts.
        ContractError: if the module writes no parameter, the distribution takes others, or no part of a
            `CompositeDistribution` writes an out key.
        SpecError: if distribution and spec contradict each other.
        ShapeError: if the number of outputs does not fit the spec.

    Example:
        >>> from tensordict import TensorDict
        >>> from rl.modules import NormalParamExtractor, TanhNormal
        >>> net = TensorDictModule(
        ...     nn.Sequential(nn.Linear(3, 4), NormalParamExtractor()), ["observation"], ["loc", "scale"]
        ... )
        >>> actor = ProbabilisticActor(
        ...     net, ["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
        ... )
        >>> td = actor(TensorDict(observation=torch.zeros(5, 3), batch_size=[5]))
        >>> td["action"].shape, td["action_log_prob"].shape
        (torch.Size([5, 2]), torch.Size([5]))
        >>> actor.get_dist(td).batch_shape
        torch.Size([5])
    """

    def __init__(  # noqa: PLR0913  the names that users of TorchRL know
        self,
        module: TensorDictModuleBase,
        in_keys: NestedKey | Sequence[NestedKey] | Mapping[str, NestedKey],
        out_keys: NestedKey | Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | None = None,
        distribution_class: Any = Delta,
        distribution_kwargs: Mapping[str, Any] | None = None,
        return_log_prob: bool = False,
        log_prob_key: NestedKey | None = None,
        default_interaction_type: InteractionType = InteractionType.DETERMINISTIC,
        num_samples: int | torch.Size | None = None,
        n_empirical_estimate: int = 1000,
    ) -> None:
        if not isinstance(module, TensorDictModuleBase):
            raise ArgumentError(
                f"ProbabilisticActor needs a module with in_keys and out_keys, got {type(module).__name__}:"
                " wrap it as TensorDictModule(module, in_keys=[...], out_keys=[...])"
            )
        composite = isinstance(distribution_class, type) and issubclass(distribution_class, CompositeDistribution)
        if composite:
            out_keys = _part_keys(out_keys, distribution_kwargs or {})
        outputs = key_list([ACTION] if out_keys is None else out_keys)
        leaf = action_leaf(spec, outputs[0], "ProbabilisticActor") if len(outputs) == 1 else None
        kwargs = _complete_kwargs(distribution_class, distribution_kwargs, spec if composite else leaf)
        _check_params(module, in_keys, distribution_class, kwargs, leaf)
        head = ActionHead(
            leaf,
            in_keys=dict(in_keys) if isinstance(in_keys, Mapping) else in_keys,
            out_keys=outputs,
            distribution_class=distribution_class,
            distribution_kwargs=kwargs,
            return_log_prob=return_log_prob,
            log_prob_key=log_prob_key,
            default_interaction_type=default_interaction_type,
            num_samples=num_samples,
            n_empirical_estimate=n_empirical_estimate,
        )
        super().__init__(module, head)
        self._leave_out_groups()
        self.spec = spec_by_key(spec, outputs[0])

    @classmethod
    def from_parts(cls, *modules: TensorDictModuleBase) -> ProbabilisticActor:
        """Build a policy from existing modules, of which the last is a policy; nothing is copied.

        Args:
            *modules: TensorDict modules, the last one a `ProbabilisticActor`.
        """
        *before, last = modules
        actor = object.__new__(cls)
        ProbabilisticTensorDictSequential.__init__(actor, *before, *parts(last))
        actor._leave_out_groups()
        actor.spec = getattr(last, "spec", None)
        return actor

    def _leave_out_groups(self) -> None:
        """Remove the group of parameters that the network writes from ``in_keys``."""
        written = key_list(self.out_keys)
        self.in_keys = [key for key in self.in_keys if not is_group(unwrap(key), written)]

    @property
    def head(self) -> ActionHead:
        """The module that builds the distribution."""
        return parts(self)[-1]

    @property
    def distribution_class(self) -> Any:
        """Class of the distribution."""
        return self.head.distribution_class

    @property
    def contract(self) -> Contract:
        """Keys that are read and written."""
        scores = key_list(self.log_prob_keys) if self.head.return_log_prob else []
        spec = self.head.spec
        actions = key_list(self.dist_sample_keys)
        writes: list[Key] = []
        for key in key_list(self.out_keys):
            if key in actions:
                shape = action_shape(spec)
                writes.append(Key(key, shape, "sampled action", _dtype(spec)))
            elif key in scores:
                writes.append(Key(key, (), "its log-probability, nats"))
            else:
                writes.append(Key(key, None, "parameter of the distribution"))
        return Contract(reads_of(self.in_keys), tuple(writes))

    def lowered(self) -> TensorFunction | None:
        """Return the policy as a plain call, with the same numbers; None if it was changed or hooked.

        See `rl.core.tensor_functions`.
        """
        if _is_overridden(self, "forward", "get_dist_params") or not self._lowers():
            return None
        head = self.head.lowered()
        body = self._body()
        if head is None or body is None or not self._requires_sample:
            return None
        whole = chain([body, head], out_keys=key_list(self.out_keys))
        if whole is None or not _straight(body, head, self):
            return whole
        compute, act = body.fn, head.fn

        def run(*leaves: Tensor) -> tuple[Tensor, ...]:
            params = compute(*leaves)
            return (*params, *act(*params))

        return TensorFunction(run, body.in_keys, key_list(self.out_keys))

    def lowered_distribution(self) -> DistributionFunction | None:
        """`get_dist` as a plain call on leaves; None if the policy was changed or hooked."""
        if _is_overridden(self, "get_dist", "get_dist_params", "build_dist_from_params") or not self._lowers():
            return None
        build, body = self.head.builder(), self._body()
        if build is None or body is None:
            return None
        # A parameter that the body does not write, such as a mask, comes from the input.
        slots = {key: place for place, key in enumerate(body.out_keys)}
        wanted = key_list(self.head.in_keys)
        inputs = [*body.in_keys, *(key for key in wanted if key not in slots and key not in body.in_keys)]
        compute, count = body.fn, len(body.in_keys)
        if wanted == body.out_keys:
            return DistributionFunction(lambda *leaves: build(*compute(*leaves)), inputs)
        for place, key in enumerate(inputs):
            slots.setdefault(key, len(body.out_keys) + place)
        order = [slots[key] for key in wanted]

        def run(*leaves: Tensor) -> Distribution:
            cells = (*compute(*leaves[:count]), *leaves)
            return build(*[cells[place] for place in order])

        return DistributionFunction(run, inputs)

    def _lowers(self) -> bool:
        keeps_all = list(self.out_keys) == list(self.out_keys_source) and self.inplace in (None, True)
        whole = keeps_all and not self.partial_tolerant and not self.return_composite
        return whole and unhooked(self) and type(self.head) is ActionHead

    def _body(self) -> TensorFunction | None:
        """Everything before the head, run under the interaction type that a call of the whole would set."""
        lowered = [as_function(part) for part in parts(self)[:-1]]
        chained = chain([part for part in lowered if part is not None]) if None not in lowered else None
        if chained is None:
            return None
        compute = chained.fn

        def run(*leaves: Tensor) -> tuple[Tensor, ...]:
            if interaction_type() is not None:
                return compute(*leaves)
            with set_interaction_type(self.default_interaction_type):
                return compute(*leaves)

        return TensorFunction(run, chained.in_keys, chained.out_keys)


def reads_of(keys: Sequence[Any]) -> tuple[Key, ...]:
    """Keys that a module reads, with the remedy for an absent one."""
    remedy = "Name the entry that the environment writes with in_keys=[...], or rename it there."
    return tuple(Key(key, doc="input of the network", remedy=remedy) for key in key_list(keys))


def _is_overridden(actor: ProbabilisticActor, *methods: str) -> bool:
    base = ProbabilisticTensorDictSequential
    return any(getattr(type(actor), name) is not getattr(base, name) for name in methods)


def _dtype(spec: TensorSpec | None) -> torch.dtype | None:
    return None if spec is None else spec.dtype


def _straight(body: TensorFunction, head: TensorFunction, actor: ProbabilisticActor) -> bool:
    """Whether the head reads just what the body writes, in that order, and nothing is reordered after it."""
    return body.out_keys == head.in_keys and key_list(actor.out_keys) == [*body.out_keys, *head.out_keys]


def _part_keys(out_keys: NestedKey | Sequence[NestedKey] | None, kwargs: Mapping[str, Any]) -> list[NestedKey]:
    """Return the out keys of a `CompositeDistribution`, which are those of its parts."""
    written = list(places_of_parts(kwargs).values())
    if not written:
        raise ArgumentError(
            "ProbabilisticActor builds a CompositeDistribution of its parts: pass"
            " distribution_kwargs={'distribution_map': {part: distribution}}"
        )
    given = written if out_keys is None else key_list(out_keys)
    if {*given} != {*written}:
        raise ContractError(
            f"ProbabilisticActor got out_keys {given}, and its CompositeDistribution writes {written}: map the parts to"
            " the out_keys with distribution_kwargs={'name_map': {part: key}}"
        )
    return given


def _complete_kwargs(distribution: Any, kwargs: Mapping[str, Any] | None, leaf: TensorSpec | None) -> dict[str, Any]:
    return distribution_kwargs("ProbabilisticActor", distribution, kwargs, leaf)


def _check_params(
    module: TensorDictModuleBase,
    in_keys: NestedKey | Sequence[NestedKey] | Mapping[str, NestedKey],
    distribution: Any,
    kwargs: Mapping[str, Any],
    leaf: TensorSpec | None,
) -> None:
    owner = "ProbabilisticActor"
    if isinstance(in_keys, Mapping):
        names, keys = list(in_keys), key_list(in_keys.values())
    else:
        keys = key_list(in_keys)
        names = last_names(keys)
    check_params(owner, distribution, names, kwargs)
    missing_params(owner, module, keys)
    width = expected_width(distribution, leaf)
    for name, key in zip(names, keys, strict=True):
        if name in {"loc", "scale", "logits", "probs", "param", "scores"}:
            check_width(owner, module, key, width)


class ValueOperator(TensorDictModule):
    """The value of a state, or of a state and an action.

    Args:
        module: Function of the entries under `in_keys`, returns ``[*B, 1]``; under another out key than
            ``"state_value"`` it may be wider, as the quantiles of a TQC critic are.
        in_keys: Keys read; ``["observation"]`` if None.
        out_keys: Keys written; if None, ``["state_action_value"]`` where an action is read, otherwise
            ``["state_value"]``.

    Raises:
        ShapeError: if the module visibly returns another width than 1 under ``"state_value"``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> critic = ValueOperator(nn.Linear(3, 1))
        >>> critic(TensorDict(observation=torch.zeros(4, 3), batch_size=[4]))["state_value"].shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        module: nn.Module,
        in_keys: Sequence[NestedKey] | None = None,
        out_keys: Sequence[NestedKey] | None = None,
    ) -> None:
        inputs = key_list([OBSERVATION] if in_keys is None else in_keys)
        if out_keys is None:
            of_action = any(as_tuple(key)[-1] == ACTION for key in inputs)
            out_keys = [STATE_ACTION_VALUE if of_action else STATE_VALUE]
        super().__init__(module, inputs, key_list(out_keys))
        if as_tuple(out_keys[0])[-1] == STATE_VALUE:
            check_width("ValueOperator", self, key_list(out_keys)[0], 1)

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        doc = "expected return, units of reward"
        writes = (Key(key, (output_width(self, key) or 1,), doc) for key in key_list(self.out_keys))
        return Contract(reads_of(self.in_keys), tuple(writes))


class _Joint(TensorDictSequential):
    """Sequence of modules, with views of its parts that share the parameters."""

    spec: Any

    @property
    def contract(self) -> Contract:
        """Keys that are read and written."""
        return Contract(reads_of(self.in_keys), tuple(Key(key) for key in key_list(self.out_keys)))


class ActorValueOperator(_Joint):
    """Policy and state-value critic on a shared trunk; one call runs all three.

    Args:
        common_operator: Module that writes the features.
        policy_operator: Module that reads features and writes the action; a `ProbabilisticActor` keeps its
            distribution.
        value_operator: Module that reads features and writes ``state_value``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.modules import Actor, ValueOperator
        >>> trunk = TensorDictModule(torch.nn.Linear(3, 8), ["observation"], ["hidden"])
        >>> both = ActorValueOperator(
        ...     trunk,
        ...     Actor(torch.nn.Linear(8, 2), ["hidden"]),
        ...     ValueOperator(torch.nn.Linear(8, 1), ["hidden"]),
        ... )
        >>> td = both.get_value_operator()(TensorDict(observation=torch.zeros(5, 3), batch_size=[5]))
        >>> sorted(td.keys())
        ['hidden', 'observation', 'state_value']
    """

    def __init__(
        self,
        common_operator: TensorDictModuleBase,
        policy_operator: TensorDictModuleBase,
        value_operator: TensorDictModuleBase,
    ) -> None:
        super().__init__(common_operator, policy_operator, value_operator)
        self.spec = getattr(policy_operator, "spec", None)

    def get_policy_operator(self) -> TensorDictModuleBase:
        """Trunk and policy, without the value."""
        return _join(parts(self)[0], parts(self)[1])

    def get_value_operator(self) -> TensorDictModuleBase:
        """Trunk and value, without the policy."""
        return TensorDictSequential(parts(self)[0], parts(self)[2])

    def get_policy_head(self) -> TensorDictModuleBase:
        """Return the policy on features."""
        return parts(self)[1]

    def get_value_head(self) -> TensorDictModuleBase:
        """Return the value on features."""
        return parts(self)[2]


class ActorCriticOperator(_Joint):
    """Policy and action-value critic on a shared trunk.

    Args:
        common_operator: Module that writes the features.
        policy_operator: Module that reads features and writes the action.
        value_operator: Module that reads features and action and writes ``state_action_value``.

    Raises:
        ContractError: if the critic does not read the action, or writes ``state_value``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.modules import MLP, Actor, ValueOperator
        >>> trunk = TensorDictModule(torch.nn.Linear(3, 8), ["observation"], ["hidden"])
        >>> both = ActorCriticOperator(
        ...     trunk, Actor(torch.nn.Linear(8, 2), ["hidden"]), ValueOperator(MLP(10, 1), ["hidden", "action"])
        ... )
        >>> both(TensorDict(observation=torch.zeros(5, 3), batch_size=[5]))["state_action_value"].shape
        torch.Size([5, 1])
    """

    def __init__(
        self,
        common_operator: TensorDictModuleBase,
        policy_operator: TensorDictModuleBase,
        value_operator: TensorDictModuleBase,
    ) -> None:
        actions = [key for key in key_list(policy_operator.out_keys) if as_tuple(key)[-1] == ACTION]
        if not any(key in actions for key in key_list(value_operator.in_keys)):
            raise ContractError(
                f"ActorCriticOperator: the critic must read the action {actions} and write"
                f" {STATE_ACTION_VALUE!r}, it reads {list(value_operator.in_keys)}: for a state value use"
                " ActorValueOperator"
            )
        super().__init__(common_operator, policy_operator, value_operator)
        self.spec = getattr(policy_operator, "spec", None)

    def get_policy_operator(self) -> TensorDictModuleBase:
        """Trunk and policy, without the critic."""
        return _join(parts(self)[0], parts(self)[1])

    def get_critic_operator(self) -> TensorDictModuleBase:
        """Trunk and critic: the value of the action in the batch; the policy does not run."""
        return TensorDictSequential(parts(self)[0], parts(self)[2])

    def get_policy_head(self) -> TensorDictModuleBase:
        """Return the policy on features."""
        return parts(self)[1]

    def get_value_head(self) -> TensorDictModuleBase:
        """Return the critic on features."""
        return parts(self)[2]


class ActorCriticWrapper(_Joint):
    """Policy and critic without shared parameters, as one module.

    Args:
        policy_operator: Module that writes the action.
        value_operator: Module that writes a value.

    Example:
        >>> import torch
        >>> from rl.modules import Actor, ValueOperator
        >>> both = ActorCriticWrapper(Actor(torch.nn.Linear(3, 2)), ValueOperator(torch.nn.Linear(3, 1)))
        >>> both.out_keys
        ['action', 'state_value']
    """

    def __init__(self, policy_operator: TensorDictModuleBase, value_operator: TensorDictModuleBase) -> None:
        super().__init__(policy_operator, value_operator)
        self.spec = getattr(policy_operator, "spec", None)

    def get_policy_operator(self) -> TensorDictModuleBase:
        """Return the policy."""
        return parts(self)[0]

    def get_value_operator(self) -> TensorDictModuleBase:
        """Return the critic."""
        return parts(self)[1]


def _join(trunk: TensorDictModuleBase, policy: TensorDictModuleBase) -> TensorDictModuleBase:
    if isinstance(policy, ProbabilisticActor):
        return ProbabilisticActor.from_parts(trunk, policy)
    return TensorDictSequential(trunk, policy)
