"""Head of a stochastic policy: from parameters to a distribution, a sample, and its log-probability."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import CompositeDistribution, InteractionType, ProbabilisticTensorDictModule, TensorDictModuleBase
from tensordict.nn import probabilistic as tensordict_probabilistic
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor
from torch.distributions import Distribution

from rl.core import load
from rl.core.arguments import as_integer, foreign_arguments
from rl.core.contract import Contract, Key, contract_of, missing_key_message
from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.keys import ACTION, NestedKey, as_tuple, key_str, leaf_keys, next_key
from rl.core.policy_program import ProgramBuilder, Register
from rl.core.recurrent import State
from rl.core.specs import TensorSpec, Unbounded
from rl.core.tensor_functions import TensorFunction, as_function, unhooked
from rl.modules._keys import key_list
from rl.modules.distributions._base import LeanDistribution
from rl.modules.distributions._bounded import TanhNormal
from rl.modules.distributions._discrete import (
    Categorical,
    MaskedCategorical,
    MaskedOneHotCategorical,
    OneHotCategorical,
)
from rl.modules.distributions._normal import Delta, IndependentNormal
from rl.modules.policy._fit import action_leaf, action_shape

Build = Callable[..., Distribution]

# tensordict 0.14 samples first and scores then; later versions let the distribution do both. So do we.
_FUSES = hasattr(tensordict_probabilistic, "_get_joint_sample_and_log_prob")


class ActionHead(ProbabilisticTensorDictModule):
    """A `tensordict.nn.ProbabilisticTensorDictModule` that checks the shape of its first distribution.

    Args:
        spec: Spec of the action, or None.
        **kwargs: Further arguments of the base class.
    """

    def __init__(self, spec: TensorSpec | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self._seen = False

    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """Return the distribution of the parameters in `tensordict`.

        Raises:
            ContractError: at the first call, if a parameter is absent.
            ShapeError: at the first call, if an action would not have the spec's shape.
        """
        if self._seen:
            return super().get_dist(tensordict)
        for key in key_list(self.in_keys):
            if tensordict.get(key, None) is None:
                remedy = f"It is a parameter of {self.distribution_class.__name__}: the network must write it."
                raise ContractError(
                    missing_key_message("the policy's head", Key(key, remedy=remedy), leaf_keys(tensordict))
                )
        dist = super().get_dist(tensordict)
        self._check(dist)
        params = [tensordict.get(key) for key in key_list(self.in_keys)]
        self._check_score(dist, params, dist.batch_shape != tensordict.batch_size)
        return dist

    def _check(self, dist: Distribution) -> None:
        spec = self.spec
        event = dist.event_shape
        if spec is not None and event and tuple(spec.shape[-len(event) :]) != tuple(event):
            raise ShapeError(
                f"{type(dist).__name__} has actions of shape {tuple(event)}, the spec of"
                f" {'.'.join(as_tuple(key_list(self.dist_sample_keys)[0]))!r} has {tuple(spec.shape)}:"
                " change the width of the network's last layer"
            )
        choices = getattr(dist, "num_actions", None)
        if choices is not None and choices != getattr(spec, "n", choices):
            raise ShapeError(
                f"{type(dist).__name__} has {choices} actions, the spec {spec}: change the width of the last layer"
            )
        self._seen = True

    def _check_score(self, dist: Distribution, params: Sequence[Any], several: bool) -> None:  # noqa: FBT001
        """Reject a log-probability of each number of an action; `several` is whether an action has several numbers."""
        elementwise = not dist.event_shape and any(
            isinstance(p, Tensor) and p.shape == dist.batch_shape for p in params
        )
        if self.return_log_prob and several and elementwise:
            self._seen = False
            name = type(dist).__name__
            raise ShapeError(
                f"{name} has one log-probability for each number of an action, and return_log_prob=True writes one for"
                f" each action: use rl.modules.IndependentNormal, or torch.distributions.Independent({name}(...), 1)"
            )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  torch's signature
        out = super()._apply(fn, recurse)
        _move(self.distribution_kwargs, fn)
        return out

    def builder(self) -> Build | None:
        """Return a function from parameters to the distribution; None if the class was changed or hooked."""
        if type(self) is not ActionHead or not unhooked(self) or self.distribution_class is CompositeDistribution:
            return None
        make: Any = self.distribution_class
        names = [as_tuple(key)[-1] for key in key_list(list(self.dist_keys))]
        positional = isinstance(make, type) and list(inspect.signature(make).parameters)[: len(names)] == names
        kwargs = self.distribution_kwargs

        def build(*params: Tensor) -> Distribution:
            dist = make(*params, **kwargs) if positional else make(**dict(zip(names, params, strict=True)), **kwargs)
            if not self._seen:
                self._check(dist)
                self._check_score(dist, params, bool(action_shape(self.spec)))
            return dist

        return build

    def lowered(self) -> TensorFunction | None:
        """Compute the action from parameters, and its log-probability with `return_log_prob`."""
        build = self.builder()
        keys = key_list([*self.dist_sample_keys, *((self.log_prob_keys or []) if self.return_log_prob else [])])
        generators = (getattr(self, "_generator", None), getattr(self, "_generator_key", None))
        plain = generators == (None, None) and self.num_samples is None and len(self.dist_sample_keys) == 1
        if build is None or not plain or "_" in keys:
            return None
        draw = self._scored_draw() if self.return_log_prob else self._draw()
        return TensorFunction(lambda *params: draw(build(*params)), key_list(self.in_keys), keys)

    def describe(self, builder: ProgramBuilder, *params: Register) -> tuple[Register, ...]:
        """Append the head to a program; see `rl.core.policy_program`."""
        kind, settings = self.distribution_class, dict(self.distribution_kwargs)
        names = [as_tuple(key)[-1] for key in key_list(list(self.dist_keys))]
        score = Register(0) if self.return_log_prob else None
        how: dict[str, Any] = {"how": self.default_interaction_type}
        known = dict(zip(names, params, strict=True))
        mask = known.pop("mask", None)
        if settings.get("neg_inf") == -torch.inf:
            del settings["neg_inf"]
        if kind in _CHOICES and list(known) == ["logits"] and settings.pop("dtype", torch.int64) is torch.int64:
            one_hot = issubclass(kind, OneHotCategorical)
            (logits,) = known.values()
            n = _width(builder, logits)
            action = Register(n if one_hot else 0, torch.int64)
            if mask is not None:
                mask.dtype = torch.bool
                builder.expect(mask, n, "the mask")
            builder.add("categorical", [logits, mask], [action, score], one_hot=one_hot, **how)
        elif kind in (IndependentNormal, TanhNormal) and list(known) == ["loc", "scale"]:
            n = _width(builder, known["loc"])
            builder.expect(known["scale"], n, "the scale")
            action = Register(n)
            name, bounds = "normal", []
            if kind is TanhNormal:
                ends = settings.pop("low", -1.0), settings.pop("high", 1.0)
                low, high = (builder.row(torch.as_tensor(end), n) for end in ends)
                name, bounds = "tanh_normal", [lambda: low, lambda: high]
            builder.add(name, [known["loc"], known["scale"]], [action, score], bounds, **how)
        elif kind is Delta and score is None and len(params) == 1:
            action = params[0]
        else:
            builder.reject(f"{kind.__name__} of {', '.join(names)} is no known head")
        if settings:
            builder.reject(f"{kind.__name__} has the settings {', '.join(map(str, settings))}")
        return (action,) if score is None else (action, score)

    def _draw(self) -> Callable[[Distribution], tuple[Tensor, ...]]:
        random = InteractionType.RANDOM

        def draw(dist: Any) -> tuple[Tensor, ...]:
            if (interaction_type() or self.default_interaction_type) is random:
                return (dist.rsample() if dist.has_rsample else dist.sample(),)
            return (self._choose(dist),)

        return draw

    def _scored_draw(self) -> Callable[[Distribution], tuple[Tensor, ...]]:
        random = InteractionType.RANDOM

        def draw(dist: Any) -> tuple[Tensor, ...]:
            if (interaction_type() or self.default_interaction_type) is random:
                both = "rsample_and_log_prob" if dist.has_rsample else "sample_and_log_prob"
                fused = getattr(dist, both, None) if _FUSES else None
                if fused is not None:
                    return fused(torch.Size())
                action = dist.rsample() if dist.has_rsample else dist.sample()
            else:
                action = self._choose(dist)
            return action, dist.log_prob(action)

        return draw

    def _choose(self, dist: Any) -> Tensor:
        how = interaction_type() or self.default_interaction_type
        if how is InteractionType.DETERMINISTIC and isinstance(dist, LeanDistribution):
            return dist.deterministic_sample
        return self._dist_sample(dist, interaction_type=interaction_type())


_CHOICES = (Categorical, OneHotCategorical, MaskedCategorical, MaskedOneHotCategorical)


def _width(builder: ProgramBuilder, register: Register) -> int:
    if not register.width:
        builder.reject("a head comes before any layer of known width")
    return register.width


def _move(kwargs: dict[Any, Any], fn: Callable[[Tensor], Tensor]) -> None:
    """Apply `fn` to the tensors among arguments, those of the parts of a composite distribution included."""
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            kwargs[name] = fn(value)
        elif type(value) is dict:
            _move(cast("dict[Any, Any]", value), fn)


_GROUP = "multi_step"


@foreign_arguments()
class MultiStepActorWrapper(TensorDictModuleBase):
    """Execute the actions of a policy that plans `n_steps` of them at once.

    Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", 2023, section IV-A (action
    chunking). The plan and the number of its actions that are left are recurrent states: a `Collector` initializes and
    passes them on; in a loop of your own the transform of `make_tensordict_primer` does.

    Reads what the policy reads, the plan ``("multi_step", *action)`` ``[*B, n_steps, *A]`` and ``("multi_step",
    "left")`` ``[*B, 1]``; writes the action of this step ``[*B, *A]``, and both under ``next``. The policy is called
    where an element has no action left, for the entire batch, of which only these elements are used.

    Args:
        actor: Policy that writes actions ``[*B, n_steps, *A]``.
        n_steps: Number of actions in a plan.
        spec: Spec of one action, or a composite with all of them.
        action_keys: Keys of the actions; the keys of the actor that end in ``action`` if None.
        replan_interval: Number of actions after which a new plan is computed; `n_steps` if None.

    Raises:
        ContractError: if the actor writes no action, or not all of `action_keys`; in the call, if an entry is absent.
        ArgumentError: if a number is out of its range.
        SpecError: if an action has no spec.
        ShapeError: in the call, if the actor does not write `n_steps` actions.

    Example:
        >>> from rl.core.specs import Unbounded
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> net = lambda x: x.unsqueeze(-2) + torch.arange(3.0).view(3, 1)
        >>> plan = TensorDictModule(net, ["observation"], ["action"])
        >>> actor = MultiStepActorWrapper(plan, 3, spec=Unbounded((1,)))
        >>> td = TensorDict(observation=torch.zeros(1))
        >>> for state in actor.states:
        ...     td[state.name] = state.start()
        >>> out = actor(td)
        >>> out["action"], out["next", "multi_step", "left"]
        (tensor([0.]), tensor([2]))
        >>> actor(TensorDict(observation=torch.zeros(1), multi_step=out["next", "multi_step"]))["action"]
        tensor([1.])
    """

    def __init__(
        self,
        actor: TensorDictModuleBase,
        n_steps: int,
        *,
        spec: TensorSpec,
        action_keys: Sequence[NestedKey] | None = None,
        replan_interval: int | None = None,
    ) -> None:
        super().__init__()
        written = key_list(actor.out_keys)
        keys = key_list([k for k in written if as_tuple(k)[-1] == ACTION] if action_keys is None else action_keys)
        if not keys or any(key not in written for key in keys):
            raise ContractError(
                f"MultiStepActorWrapper executes {keys or 'keys that end in action'}, the actor writes {written}:"
                " name its keys with action_keys="
            )
        self.n_steps = as_integer(n_steps, "MultiStepActorWrapper", "n_steps", least=1)
        interval = self.n_steps if replan_interval is None else replan_interval
        self.replan_interval = as_integer(interval, "MultiStepActorWrapper", "replan_interval", least=1)
        if self.replan_interval > self.n_steps:
            raise ArgumentError(f"MultiStepActorWrapper got replan_interval={interval} for plans of n_steps={n_steps}")
        leaves = [action_leaf(spec, key, "MultiStepActorWrapper") for key in keys]
        self._states = tuple(
            State((_GROUP, *as_tuple(key)), (self.n_steps, *leaf.shape), leaf.dtype, 0.0, "MultiStepActorWrapper")
            for key, leaf in zip(keys, leaves, strict=True)
            if leaf is not None and leaf.dtype is not None
        )
        if len(self._states) != len(keys):
            raise SpecError(f"MultiStepActorWrapper needs spec= of {keys}, got {spec}")
        self._states = (*self._states, State((_GROUP, "left"), (1,), torch.int64, 0.0, "MultiStepActorWrapper"))
        self.actor, self.action_keys = actor, keys
        states = [state.name for state in self._states]
        self.in_keys = key_list([*actor.in_keys, *states])
        self.out_keys = key_list([*keys, *map(next_key, states)])

    @property
    def states(self) -> tuple[State, ...]:
        """The plan of each action, and the number of actions left of it."""
        return self._states

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "A Collector writes it; in a loop of your own the transform of make_tensordict_primer() does."
        reads = [Key(s.name, s.shape, "plan before the step", s.dtype, remedy=remedy) for s in self._states]
        actions = [
            Key(key, state.shape[1:], "action of this step", state.dtype)
            for key, state in zip(self.action_keys, self._states, strict=False)
        ]
        writes = [Key(next_key(s.name), s.shape, "plan after the step", s.dtype) for s in self._states]
        return Contract((*contract_of(self.actor).reads, *reads), (*actions, *writes))

    def make_tensordict_primer(self) -> Any:
        """Return the transform that starts each episode without a plan, for a loop without a `Collector`.

        Raises:
            UnknownComponentError: if rl-envs is not installed.
        """
        primer = load("transform", "tensordict-primer")
        return primer({state.name: Unbounded(state.shape, dtype=state.dtype) for state in self._states})

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the action of this step, and the rest of the plan.

        Raises:
            ContractError: if an entry is absent.
            ShapeError: if the actor does not write `n_steps` actions.
        """
        states: list[Any] = [tensordict.get(state.name, None) for state in self._states]
        for state, value in zip(self._states, states, strict=True):
            if value is None:
                self.contract.refuse(tensordict, state.name, self)

        def plan() -> list[Tensor]:
            out = self.actor(tensordict.select(*self.actor.in_keys))
            return [out.get(key) for key in self.action_keys]

        for key, value in zip(self.out_keys, self._execute(plan, states), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call, with the same numbers; None if it or the actor was changed or hooked."""
        inner = as_function(self.actor) if type(self) is MultiStepActorWrapper and unhooked(self) else None
        if inner is None:
            return None
        places = [list(inner.out_keys).index(key) for key in self.action_keys]
        order = [key_list(self.actor.in_keys).index(key) for key in inner.in_keys]
        count = len(key_list(self.actor.in_keys))

        def call(*leaves: Tensor) -> tuple[Tensor, ...]:
            def plan() -> list[Tensor]:
                found = inner(*[leaves[place] for place in order])
                return [found[place] for place in places]

            return self._execute(plan, leaves[count:])

        return TensorFunction(call, self.in_keys, self.out_keys)

    def _execute(self, plan: Any, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        *plans, left = states
        empty = left <= 0
        if torch.compiler.is_compiling() or bool(empty.any()):
            fresh = plan()
            for key, new, state in zip(self.action_keys, fresh, self._states, strict=False):
                if new.shape != (*left.shape[:-1], *state.shape):
                    raise ShapeError(
                        f"MultiStepActorWrapper: the actor writes {key_str(key)} {tuple(new.shape)}, expected"
                        f" {[*left.shape[:-1], *state.shape]}: {self.n_steps} actions for each element"
                    )
            plans = [_where(empty, new, old) for new, old in zip(fresh, plans, strict=True)]
            left = torch.where(empty, self.replan_interval, left)
        batch = left.ndim - 1
        place = self.replan_interval - left
        actions = [_take(one, place, batch) for one in plans]
        return (*actions, *plans, left - 1)


def _where(flag: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Replace the plans ``[*B, n_steps, *A]`` by `new` where the flag ``[*B, 1]`` is true."""
    return torch.where(flag.view(*flag.shape, *[1] * (new.ndim - flag.ndim)), new, old)


def _take(plans: Tensor, place: Tensor, batch: int) -> Tensor:
    """Return the action at position `place` ``[*B, 1]`` of each plan."""
    index = place.view(*place.shape, *[1] * (plans.ndim - place.ndim))
    shape = (*plans.shape[:batch], 1, *plans.shape[batch + 1 :])
    return plans.gather(batch, index.expand(shape)).squeeze(batch)


class VmapModule(TensorDictModuleBase):
    """Run a module that takes one batch dimension less over a dimension, with `torch.vmap`.

    Random numbers differ along the dimension.

    Args:
        module: TensorDict module with a lowered form, see `rl.core.tensor_functions`.
        vmap_dim: Batch dimension; the last one if None.
        mock: Whether a loop replaces `torch.vmap`, to find out whether `torch.vmap` is at fault.

    Raises:
        ArgumentError: if `module` has no lowered form.
        ShapeError: in the call, if the batch has no such dimension.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> one = TensorDictModule(lambda x: x.sum(), ["x"], ["total"])  # of a vector
        >>> VmapModule(one)(TensorDict(x=torch.ones(5, 3), batch_size=[5]))["total"]
        tensor([3., 3., 3., 3., 3.])
    """

    def __init__(self, module: TensorDictModuleBase, vmap_dim: int | None = None, *, mock: bool = False) -> None:
        super().__init__()
        if as_function(module) is None:
            raise ArgumentError(
                f"VmapModule maps functions of tensors, and {type(module).__name__} has no lowered form: use a"
                " TensorDictModule or TensorDictSequential without hooks"
            )
        self.module, self.vmap_dim, self.mock = module, vmap_dim, mock
        self.in_keys = key_list(module.in_keys)
        self.out_keys = key_list(module.out_keys)

    @property
    def contract(self) -> Contract:
        """What is read and written: that of the module, for each element of the dimension."""
        return contract_of(self.module)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Run the module for each element of the dimension.

        Raises:
            ContractError: if an entry is absent.
            ShapeError: if the batch has no such dimension.
        """
        ndim, dim = tensordict.ndim, -1 if self.vmap_dim is None else self.vmap_dim
        if not -ndim <= dim < ndim:
            raise ShapeError(f"VmapModule maps over dimension {dim}, the batch has the shape {list(tensordict.shape)}")
        leaves: list[Any] = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                Contract(tuple(Key(one, doc="input of the module") for one in self.in_keys)).refuse(
                    tensordict, key, self
                )
        for key, value in zip(self.out_keys, self._map(dim % ndim, *leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call; None if it was changed or hooked, or its dimension is negative."""
        dim = self.vmap_dim
        if type(self) is not VmapModule or not unhooked(self) or dim is None or dim < 0:
            return None
        return TensorFunction(lambda *leaves: self._map(dim, *leaves), self.in_keys, self.out_keys)

    def _map(self, dim: int, *leaves: Tensor) -> tuple[Tensor, ...]:
        call = as_function(self.module)
        if call is None:
            raise ContractError(
                f"VmapModule: {type(self.module).__name__} has no lowered form any more: remove its hooks"
            )
        order = {key: place for place, key in enumerate(self.in_keys)}
        places = [order[key] for key in call.in_keys]
        if self.mock:
            rows = [call(*[leaves[place].select(dim, i) for place in places]) for i in range(leaves[0].shape[dim])]
            found = [torch.stack(column, dim) for column in zip(*rows, strict=True)]
        else:
            mapped: Any = torch.vmap(call, in_dims=dim, out_dims=dim, randomness="different")
            found = mapped(*[leaves[place] for place in places])
        by_key = dict(zip(call.out_keys, found, strict=True))
        return tuple(by_key[key] for key in self.out_keys)
