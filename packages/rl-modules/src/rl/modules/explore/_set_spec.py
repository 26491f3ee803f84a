"""Specs of exploration modules, from an environment."""

from __future__ import annotations

from typing import Any

from torch import nn

from rl.modules.explore._egreedy import EGreedyModule
from rl.modules.explore._gaussian import AdditiveGaussianModule
from rl.modules.explore._ou import OrnsteinUhlenbeckProcessModule

__all__ = ["set_exploration_modules_spec_from_env"]


def set_exploration_modules_spec_from_env(policy: nn.Module, env: Any) -> None:
    """Give the exploration modules of a policy the specs of their actions, in place.

    Args:
        policy: a module with any number of `EGreedyModule`, `AdditiveGaussianModule` and
            `OrnsteinUhlenbeckProcessModule` in it.
        env: anything with ``full_action_spec_unbatched``, a composite with the specs of all actions of one element.

    Raises:
        SpecError: if the environment has no action under the key of a module, or one of another kind.

    Example:
        >>> from types import SimpleNamespace
        >>> from rl.core.specs import Composite, OneHot
        >>> explore = EGreedyModule(spec=None)
        >>> env = SimpleNamespace(full_action_spec_unbatched=Composite(action=OneHot(3)))
        >>> set_exploration_modules_spec_from_env(explore, env)
        >>> explore.spec["action"].n
        3
    """
    for module in policy.modules():
        if isinstance(module, (EGreedyModule, AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule)):
            module.set_spec(env.full_action_spec_unbatched)
