"""Policies that plan several actions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl.core import load
from rl.core.arguments import as_integer
from rl.core.contract import Contract, Key, contract_of
from rl.core.errors import ContractError, ShapeError, SpecError
from rl.core.keys import ACTION, NestedKey, as_tuple, key_str, next_key
from rl.core.lowering import Lowered, lower, unhooked
from rl.core.recurrent import State
from rl.core.specs import TensorSpec, Unbounded
from rl.modules import _foreign
from rl.modules._keys import key_list
from rl.modules.policy._fit import action_leaf

__all__ = ["MultiStepActorWrapper"]

_GROUP = "multi_step"


@_foreign.multi_step_actor
class MultiStepActorWrapper(TensorDictModuleBase):
    """Execute the actions of a policy that plans `n_steps` of them at once.

    Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", 2023, section IV-A (action
    chunking). The plan and the number of its actions that are left are recurrent states: a `Collector` initializes and
    passes them on; in a loop of your own the transform of `make_tensordict_primer` does.

    Reads what the policy reads, the plan ``("multi_step", *action)`` ``[*B, n_steps, *A]`` and ``("multi_step",
    "left")`` ``[*B, 1]``; writes the action of this step ``[*B, *A]``, and both under ``next``. The policy is called
    where an element has no action left, for the whole batch, of which only these elements are used.

    Args:
        actor: writes actions ``[*B, n_steps, *A]``.
        n_steps: number of actions in a plan.
        spec: of one action, or a composite with all of them.
        action_keys: of the actions; the keys of the actor that end in ``action`` if None.
        replan_interval: number of actions after which a new plan is made; `n_steps` if None.

    Raises:
        ContractError: if the actor writes no action, or not all of `action_keys`; in the call, if an entry is absent.
        SpecError: if a number is out of its range, or an action has no spec.
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
            raise SpecError(f"MultiStepActorWrapper got replan_interval={interval} for plans of n_steps={n_steps}")
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
        """The transform that starts each episode without a plan, for a loop without a `Collector`.

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

    def lowered(self) -> Lowered | None:
        """The module as a plain call, with the same numbers; None if it or the actor was changed or hooked."""
        inner = lower(self.actor) if type(self) is MultiStepActorWrapper and unhooked(self) else None
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

        return Lowered(call, self.in_keys, self.out_keys)

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
    """`new` where the flag ``[*B, 1]`` is true, of plans ``[*B, n_steps, *A]``."""
    return torch.where(flag.view(*flag.shape, *[1] * (new.ndim - flag.ndim)), new, old)


def _take(plans: Tensor, place: Tensor, batch: int) -> Tensor:
    """The action at the `place` ``[*B, 1]`` of each plan."""
    index = place.view(*place.shape, *[1] * (plans.ndim - place.ndim))
    shape = (*plans.shape[:batch], 1, *plans.shape[batch + 1 :])
    return plans.gather(batch, index.expand(shape)).squeeze(batch)
