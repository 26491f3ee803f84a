"""Random actions now and then."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, TensorDictModuleBase
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor, nn

from rl.core.arguments import constructor_setting, module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError, SpecError
from rl.core.keys import ACTION, NestedKey, unwrap
from rl.core.policy_program import ProgramBuilder, Register
from rl.core.specs import Composite, MultiCategorical, MultiOneHot, TensorSpec
from rl.core.tensor_functions import TensorFunction, unhooked
from rl.modules._keys import key_list
from rl.modules.distributions._discrete import check_mask
from rl.modules.policy._fit import action_leaf, action_shape, action_space, group_sizes, spec_by_key


class LinearSchedule(nn.Module):
    """From `start` to `end` in `steps` steps, then `end`; saved with the module that it belongs to.

    Args:
        owner: Component that messages name.
        start: Value before the first step, not below `end`; a tensor has several, each of which falls.
        end: Value after the last, not negative.
        steps: Length, at least 1.
        most: Largest value that is allowed.

    Raises:
        ArgumentError: if these conditions do not hold.

    Example:
        >>> schedule = LinearSchedule("example", 1.0, 0.0, 4)
        >>> schedule.step(3)
        >>> schedule.value
        tensor(0.2500)
    """

    value: Tensor
    start: float | Tensor
    end: float | Tensor
    done: Tensor

    def __init__(
        self, owner: str, start: float | Tensor, end: float | Tensor, steps: int, *, most: float = inf
    ) -> None:
        super().__init__()
        ordered = torch.as_tensor((end >= 0) & (end <= start))
        if not bool(ordered.all()) or steps < 1:
            raise ArgumentError(f"{owner} needs start >= end >= 0 and one step or more, got {start}, {end} and {steps}")
        if bool((torch.as_tensor(start) > most).any()):
            raise ArgumentError(f"{owner} starts at a probability, at most {most:g}, got {start}")
        self.owner, self.steps, self.most = owner, int(steps), most
        self.register_buffer("value", torch.as_tensor(start, dtype=torch.get_default_dtype()).clone())
        for name, one in (("start", start), ("end", end)):
            if isinstance(one, Tensor):
                self.register_buffer(name, one.to(self.value.dtype).expand_as(self.value).clone(), persistent=False)
            else:
                setattr(self, name, float(one))
        self.register_buffer("done", torch.tensor(0, dtype=torch.int64))

    def step(self, count: int = 1) -> None:
        """Advance by `count` steps.

        Raises:
            ArgumentError: if `count` is negative.
        """
        if count < 0:
            raise ArgumentError(f"{self.owner}.step got {count}, expected at least 0")
        self.done += count
        self._update()

    def change(self, name: str, value: float | Tensor) -> None:
        """Set `start`, `end` or `steps`; `value` is that of the new schedule after the steps that were done.

        Raises:
            ArgumentError: if the conditions of the class do not hold. Nothing is changed.
        """
        settings: dict[str, Any] = {"start": self.start, "end": self.end, "steps": self.steps}
        if isinstance(settings[name], Tensor):
            value = torch.as_tensor(value, dtype=self.value.dtype, device=self.value.device).expand_as(self.value)
        settings[name] = value
        new = LinearSchedule(self.owner, **settings, most=self.most)
        setattr(self, name, getattr(new, name))
        self._update()

    def _update(self) -> None:
        share = (self.done.double() / self.steps).clamp(max=1.0)
        self.value.copy_(self.start + (self.end - self.start) * share)


def scheduled(name: str, doc: str) -> Any:
    """Create a property of a module for a setting of its `schedule`: ``start``, ``end`` or ``steps``."""

    def read(self: Any) -> Any:
        return getattr(self.schedule, name)

    def write(self: Any, value: Any) -> None:
        self.schedule.change(name, value)

    return property(read, write, doc=doc)


def exploring() -> bool:
    """Whether exploration modules act: under ``RANDOM``, and where no exploration type is set."""
    how = interaction_type()
    return how is None or how is InteractionType.RANDOM


def check_spec(module: Any) -> None:
    """Reject a module without a spec.

    Raises:
        SpecError: if the module has none.
    """
    if module.spec is None:
        name = type(module).__name__
        raise SpecError(
            f"{name} has no spec of the action: give it spec=env.action_spec, or call"
            " set_exploration_modules_spec_from_env(policy, env)"
        )


@module_arguments()
class EGreedyModule(TensorDictModuleBase):
    """Replace the action by a random one, with a probability that falls over time.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015. Follows a policy in a
    `TensorDictSequential`; acts under ``ExplorationType.RANDOM`` and where none is set. Call ``step`` with the
    number of frames after each batch.

    Args:
        spec: Spec of the action, or a composite that has it under `action_key`; None if `set_spec` or
            `set_exploration_modules_spec_from_env` sets it before the first call.
        eps_init: Probability at the start.
        eps_end: Probability after `annealing_num_steps` frames, and from then on.
        annealing_num_steps: Number of frames in between.
        action_key: Key of the action.
        action_mask_key: Key of the mask, bool ``[*B, n]``, True where an action is allowed; for one-hot and categorical
            actions, and for several of them, whose classes are listed one choice after the other.

    Raises:
        ArgumentError: if the probabilities are outside [0, 1] or rise.
        SpecError: if a mask is given for actions of another kind; in the call, if there is no spec.

    Example:
        >>> from rl.core.specs import OneHot
        >>> from tensordict import TensorDict
        >>> explore = EGreedyModule(OneHot(3, dtype=torch.int64), eps_init=1.0, eps_end=0.1, annealing_num_steps=100)
        >>> explore.step(50)
        >>> explore.eps
        tensor(0.5500)
        >>> explore(TensorDict(action=torch.tensor([0, 1, 0])))["action"].sum()
        tensor(1)
    """

    def __init__(
        self,
        spec: TensorSpec | None,
        eps_init: float = 1.0,
        eps_end: float = 0.1,
        annealing_num_steps: int = 1000,
        *,
        action_key: NestedKey = ACTION,
        action_mask_key: NestedKey | None = None,
    ) -> None:
        super().__init__()
        key = unwrap(action_key)
        self.schedule = LinearSchedule("EGreedyModule", eps_init, eps_end, annealing_num_steps, most=1.0)
        self.in_keys = key_list([key] if action_mask_key is None else [key, action_mask_key])
        self.out_keys = key_list(key)
        self._spec: Composite | None = None
        self._action_key = key
        self._leaf: Any = None
        if spec is not None:
            self.set_spec(spec)

    def set_spec(self, spec: TensorSpec) -> None:
        """Set the spec of the action, or a composite that has it.

        Raises:
            SpecError: if it is no spec, or there is a mask and actions are of another kind.
        """
        leaf = action_leaf(spec, self.out_keys[0], "EGreedyModule")
        space = action_space(leaf)
        if len(self.in_keys) > 1 and space is None:
            raise SpecError(f"EGreedyModule masks one-hot and categorical actions only, the spec is {leaf}")
        masked = len(self.in_keys) > 1
        self._sizes = group_sizes(leaf) if masked and isinstance(leaf, MultiOneHot | MultiCategorical) else None
        self._spec, self._leaf = spec_by_key(spec, self.out_keys[0]), leaf
        self._space = space
        self._fast = getattr(leaf, "mask", None) is None  # a spec with a mask draws for itself

    spec: Composite | None = constructor_setting("_spec", "Call set_spec(spec)")
    """Composite with the spec of the action; None before it is given."""
    action_key: NestedKey = constructor_setting("_action_key")
    """Key of the action."""
    eps_init = scheduled("start", "Probability at the start; it may be assigned.")
    eps_end = scheduled("end", "Probability after `annealing_num_steps` frames; it may be assigned.")
    annealing_num_steps = scheduled("steps", "Number of frames in between; it may be assigned.")

    @property
    def eps(self) -> Tensor:
        """Probability of a random action, at present."""
        return self.schedule.value

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        mask = tuple(Key(key, ("n",), "True where allowed", torch.bool) for key in self.in_keys[1:])
        remedy = "Put EGreedyModule after the policy, in a TensorDictSequential."
        shape = action_shape(self._leaf)
        dtype = None if self._leaf is None else self._leaf.dtype
        action = Key(self.out_keys[0], shape, "action, or a random one", dtype, remedy=remedy)
        return Contract((action, *mask), (action,))

    def step(self, frames: int = 1) -> None:
        """Lower the probability by `frames` frames."""
        self.schedule.step(frames)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Replace the action with probability epsilon.

        Raises:
            ContractError: if the action or the mask is absent.
        """
        if exploring():
            leaves = [tensordict.get(key, None) for key in self.in_keys]
            for key, leaf in zip(self.in_keys, leaves, strict=True):
                if leaf is None:
                    self.contract.refuse(tensordict, key, self)
            tensordict.set(self.out_keys[0], self._explore(*leaves)[0])
        return tensordict

    def lowered(self) -> TensorFunction | None:
        """Return the module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not EGreedyModule or not unhooked(self):
            return None

        def call(action: Tensor, *mask: Tensor) -> tuple[Tensor]:
            return self._explore(action, *mask) if exploring() else (action,)

        return TensorFunction(call, self.in_keys, self.out_keys)

    def describe(self, builder: ProgramBuilder, action: Register, mask: Register | None = None) -> tuple[Register, ...]:
        """Append the exploration to a program; see `rl.core.policy_program`."""
        plain = self._space in {"one-hot", "categorical"} and self._fast and self.schedule.value.ndim == 0
        if type(self) is not EGreedyModule or not plain or action.dtype is not torch.int64:
            builder.reject(f"{type(self).__name__} explores another action than one choice, or one masked by its spec")
        one_hot, n = self._space == "one-hot", self._leaf.n
        builder.expect(action, n if one_hot else 0, "EGreedyModule")
        if mask is not None:
            mask.dtype = torch.bool
            builder.expect(mask, n, "the mask")
        taken = Register(action.width, torch.int64)
        builder.add("epsilon_greedy", [action, mask], [taken], [lambda: self.eps], one_hot=one_hot, n=n)
        return (taken,)

    def _explore(self, action: Tensor, mask: Tensor | None = None) -> tuple[Tensor]:
        check_spec(self)
        own = 0 if self._space == "categorical" else min(1, len(self._leaf.shape))
        batch = action.shape[: action.ndim - own]
        device = action.device
        random = self._draw(action, mask)
        if random.shape != action.shape:
            raise ShapeError(f"EGreedyModule: the spec {self._leaf} does not fit the action {tuple(action.shape)}")
        chance = torch.rand(batch, device=device) < self.eps
        return (torch.where(chance.unsqueeze(-1) if own else chance, random, action),)

    def _draw(self, action: Tensor, mask: Tensor | None) -> Tensor:
        spec, device = self._leaf, action.device
        one_hot = self._space == "one-hot"
        if mask is not None and self._sizes is not None:
            check_mask(mask, "EGreedyModule", self._sizes)
            parts = mask.split(self._sizes, -1)
            codes = [torch.where(part, torch.rand(part.shape, device=device), -1.0).argmax(-1) for part in parts]
            if self._space == "multi-categorical":
                return torch.stack(codes, -1).to(action.dtype)
            hot = [nn.functional.one_hot(code, size) for code, size in zip(codes, self._sizes, strict=True)]
            return torch.cat(hot, -1).to(action.dtype)
        if mask is not None:
            check_mask(mask, "EGreedyModule")
            index = torch.where(mask, torch.rand(mask.shape, device=device), -1.0).argmax(-1)
        elif self._space in {"one-hot", "categorical"} and self._fast:
            index = torch.randint(spec.n, action.shape[:-1] if one_hot else action.shape, device=device)
        else:
            return _draw_like(spec, action)
        if one_hot:
            shape = (*index.shape, spec.n)
            return torch.zeros(shape, dtype=action.dtype, device=device).scatter_(-1, index.unsqueeze(-1), 1)
        return index.to(action.dtype)


def _draw_like(spec: TensorSpec, action: Tensor) -> Tensor:
    """Sample of the spec, with the batch dimensions of `action` that the spec lacks."""
    lead = action.ndim - len(spec.shape)
    if lead < 0:
        raise ShapeError(f"EGreedyModule: the action {tuple(action.shape)} has fewer dimensions than its spec {spec}")
    draw: Tensor = spec.rand(action.shape[:lead])
    return draw.to(action.device, action.dtype)
