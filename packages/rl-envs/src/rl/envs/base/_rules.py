"""The rules that every reset and step of an environment obeys, whichever form it has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import RLError, SpecError
from rl.core.interfaces import Leaves
from rl.core.keys import NestedKey, as_tuple
from rl.core.mdp import StepMDP
from rl.core.specs import TensorSpec, group_sizes, set_group_sizes
from rl.envs.base._checks import check_entries, check_not_done
from rl.envs.base._specs import ROLES, EnvSpecs, Flags, Masks, StackedSpecs, leaf_keys


class StepRules:
    """Specs and done flags of one environment, and the checks that follow from them.

    Args:
        owner: Name of the environment, for messages.
        batch_size: Batch of the environment.
        device: Device of its specs; as assigned if None.
    """

    closed = False
    compiled: Callable[[Any], Any] | None = None
    """The compiled step on leaves."""
    compile_options: dict[str, Any] | None = None
    legal_actions: Callable[[Any], Mapping[NestedKey, Tensor]] | None = None
    """Masks of legal actions, by action, that the action specs of the environments inside of this one have."""
    members: Sequence[Any] = ()
    """Environments of a batch whose specs differ, so that its data are lazy stacks; empty otherwise."""

    def __init__(self, owner: str, batch_size: torch.Size, device: torch.device | None) -> None:
        self.owner = owner
        self.specs = EnvSpecs(owner, batch_size, device)
        self._derive()

    def _derive(self) -> None:
        #: whether a reset and a step were compared with the specs
        self.reset_checked = self.step_checked = False
        self.flags = Flags(self.specs.keys("done"))
        self.step_mdp: StepMDP | None = None
        self._groups: dict[NestedKey, torch.Size] | None = None
        #: whether flags must be added to what the leaf form writes; known after the first reset
        self.completes = False
        #: whether environments inside have masks of legal actions; known after a reset
        self.masked = False
        #: the environment with another batch, if it takes any
        self.other_batch: dict[torch.Size, Any] = {}

    @property
    def groups(self) -> dict[NestedKey, torch.Size]:
        """Batch sizes of groups."""
        if self._groups is None:
            self._groups = group_sizes(self.specs.batched(role) for role in ROLES if self.specs.has(role))
        return self._groups

    def tensordict(self, leaves: Leaves) -> TensorDict:
        """Return the TensorDict of entries by key, with the batch sizes of groups."""
        entries: Any = leaves
        out = TensorDict(entries, batch_size=self.specs.batch_size, device=self.specs.device)
        set_group_sizes(out, self.groups)
        return out

    def rename(self, owner: str) -> None:
        """Set the name for messages."""
        self.owner = self.specs.owner = owner

    def assign(self, role: str, spec: TensorSpec | None) -> None:
        """Set a spec; the next reset and the next step are checked again."""
        self.specs.assign(role, spec)
        self._derive()

    def stack_members(self, members: Sequence[Any], difference: str) -> None:
        """Take the specs from environments that differ.

        Args:
            members: Environments of the batch.
            difference: How two of them differ, for messages.
        """
        specs = self.specs
        self.members = members
        self.specs = StackedSpecs(self.owner, members, specs.batch_size, specs.device, difference)
        self._derive()

    def with_batch(self, batch_size: torch.Size) -> StepRules:
        """Return the same rules for another batch."""
        other = StepRules(self.owner, batch_size, self.specs.device)
        for role in ROLES:
            if self.specs.has(role):
                other.assign(role, self.specs.unbatched(role))
        return other

    def compile(self, step: Callable[[Any], Any] | None, options: dict[str, Any] | None) -> None:
        """Set the compiled step, or remove it with None."""
        self.compiled, self.compile_options, self.other_batch = step, options, {}

    def uncompiled(self) -> StepRules:
        """Return a copy that can be pickled."""
        other = copy.copy(self)
        other.compiled = other.compile_options = None
        other.other_batch = {}
        return other

    def to(self, device: torch.device) -> None:
        """Move the specs."""
        self.specs.device = device
        for role in () if self.members else ROLES:
            if self.specs.has(role):
                self.assign(role, self.specs.unbatched(role))

    def update_masks(self, env: Any, *, look: bool) -> None:
        """Give the action spec the masks of legal actions that the environments inside have.

        Args:
            env: Environment of these rules.
            look: Whether to look for masks where there were none before.
        """
        if self.legal_actions is None or not (look or self.masked):
            return
        masks = self.legal_actions(env)
        self.masked = bool(masks)
        for key, mask in masks.items():
            self.specs.batched("action")[key].update_mask(mask)

    def check_open(self) -> None:
        """Raise an RLError if the environment was closed."""
        if self.closed:
            raise RLError(
                f"{self.owner} is closed; use a new one. The shutdown of a collector closes its environment: give each"
                " collector one of its own, or a function that creates it"
            )

    def check_batch(self, tensordict: TensorDictBase, method: str) -> None:
        """Raise a SpecError unless an input has the batch of the environment."""
        if tensordict.batch_size != self.specs.batch_size:
            raise SpecError(
                f"{self.owner}.{method} was given a TensorDict of batch size {tuple(tensordict.batch_size)};"
                f" this environment runs {tuple(self.specs.batch_size)}: take env.reset(), or create it with that"
                " batch_size"
            )

    def check_result(self, out: Any, given: Any, method: str) -> None:
        """Raise a SpecError unless a method of the author returned a new TensorDict with the environment's batch."""
        expected = self.specs.batch_size
        if not isinstance(out, TensorDictBase):
            raise SpecError(f"{self.owner}.{method} must return a TensorDict, got {type(out).__name__}")
        if out is given:
            raise SpecError(f"{self.owner}.{method} returned its input: return a new TensorDict")
        if out.batch_size != expected:
            raise SpecError(
                f"{self.owner}.{method} returned batch size {tuple(out.batch_size)}, expected"
                f" {tuple(expected)}: build it with batch_size=self.batch_size"
            )

    def check_reset(self, fresh: Any, masks: Masks | None) -> None:
        """Compare the root entries of new episodes with the specs."""
        check_not_done(fresh, self.flags.done_keys, masks, self.owner)
        specs = [self.specs.batched("observation"), self.specs.batched("done")]
        check_entries(fresh, specs, owner=f"{self.owner}._reset", allowed=self.specs.keys("state"))
        self.reset_checked = True

    def check_step(self, outcome: Any) -> None:
        """Compare the entries that a step wrote with the specs, and its done flags with each other."""
        specs = [self.specs.batched(role) for role in ("observation", "reward", "done")]
        check_entries(outcome, specs, owner=f"{self.owner}._step", allowed=self.specs.keys("state"))
        self.flags.check(outcome, self.owner)
        self.step_checked = True


def partial_root(env: Any, masks: TensorDictBase) -> TensorDictBase:
    """Root entries for a partial reset of `env` whose other rows are discarded: zeros, and the masks.

    Args:
        env: Any environment of the `rl.core.interfaces.Env` protocol.
        masks: The ``_reset`` entries that `EnvBase` passes to ``_reset``.
    """
    blank: Any = env.observation_spec.zero().update(env.full_done_spec.zero())
    if getattr(env, "full_state_spec", None) is not None:
        blank = env.full_state_spec.zero().update(blank)
    several = len(leaf_keys(masks)) > 1  # the one at the root is then the union of the others, and would override them
    return blank.update(masks.exclude("_reset") if several else masks)


def state_root(env: Any, state: TensorDictBase) -> TensorDictBase:
    """Return the input of ``env.reset(set_state=True)`` from state entries and maybe masks of a partial reset."""
    masks = [key for key in leaf_keys(state) if as_tuple(key)[-1] == "_reset"]
    return partial_root(env, state.select(*masks)).update(state.select(*env.state_keys)) if masks else state


def start_at(env: Any, state: TensorDictBase) -> TensorDictBase:
    """Reset an environment in the state entries of `state`, which may hold the masks of a partial reset too."""
    return env.reset(state_root(env, state), set_state=True)
