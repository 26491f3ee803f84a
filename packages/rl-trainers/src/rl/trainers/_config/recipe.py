"""`Recipe`: the description of a recipe for ``rl train``. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rl.core.registry import components, default, load
from rl.trainers._config.config import RunConfig
from rl.trainers._config.presets import Preset, read_presets

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """A training algorithm by name: its settings, and where its code is.

    A plugin offers one as a component of kind ``recipe`` whose target is such an object.

    Args:
        name: the argument of ``rl train``.
        config: a frozen dataclass on top of `RunConfig`, each field documented in its docstring.
        train: ``"module:function"``; called as ``train(config, out=, resume=, display=)``.
        policy: ``"module:function"``; called as ``policy(config, env)``, returns the untrained policy.
        presets: ``"package:file"``, a YAML file of settings for environments, see `load_presets`; empty without one.

    Example:
        >>> from rl.trainers.recipes.ppo._config import PPO
        >>> PPO.name, PPO.config.__name__
        ('ppo', 'PPOConfig')
    """

    name: str
    config: type[RunConfig]
    train: str
    policy: str
    presets: str = ""

    @classmethod
    def of(cls, config: type[RunConfig]) -> Recipe:
        """Return the recipe `config.recipe`, in the folder of that name.

        Its `_train` has ``train_NAME`` and ``NAME_policy``, where ``-`` is ``_``; its presets are ``presets.yaml``.
        """
        name = config.recipe.replace("-", "_")
        module = f"rl.trainers.recipes.{name}"
        return cls(
            name=config.recipe,
            config=config,
            train=f"{module}._train:train_{name}",
            policy=f"{module}._train:{name}_policy",
            presets=f"{module}:presets.yaml",
        )

    @property
    def reference(self) -> str:
        """What names it in a command or a file.

        Its name, ``distribution:name`` if several plugins offer that name, ``module:attribute`` if none offers it.

        Example:
            >>> from rl.trainers.recipes.ppo._config import PPO
            >>> PPO.reference
            'ppo'
        """
        offered = [component for component in components("recipe") if component.name == self.name]
        if len(offered) == 1 and load("recipe", self.name) == self:
            return self.name
        for owner in default().plugins if offered else ():
            name = f"{owner.distribution}:{self.name}"
            if any(one in owner.components for one in offered) and load("recipe", name) == self:
                return name
        for module in dict.fromkeys((self.config.__module__, self.train.partition(":")[0])):
            for attribute, value in vars(sys.modules.get(module, object)).items():
                if value is self:
                    return f"{module}:{attribute}"
        return self.name

    def load_train(self) -> Callable[..., Any]:
        """The function that trains."""
        return _load(self.train)

    def load_policy(self) -> Callable[..., Any]:
        """The function that builds the untrained policy."""
        return _load(self.policy)

    def load_presets(self) -> dict[str, Preset]:
        """The presets of this recipe, by name of the environment.

        Example:
            >>> from rl.trainers.recipes.ppo._config import PPO, PPOConfig
            >>> PPOConfig(env="Pendulum-v1", **PPO.load_presets()["Pendulum-v1"].settings).gamma
            0.9
        """
        return read_presets(self.presets) if self.presets else {}


def _load(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
