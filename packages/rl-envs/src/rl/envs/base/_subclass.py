"""What an author's subclass of `EnvBase` may have done: left out its constructor, or overridden one form of two."""

from __future__ import annotations

from typing import Any

from rl.core.errors import RLError

__all__ = ["FromInit", "overtaken"]


class FromInit:
    """Stands in the class for what ``EnvBase.__init__`` sets, and says so if that was not called.

    An attribute of the instance comes before it, so that reading one costs nothing more.
    """

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        raise RLError(
            f"{owner.__name__} was used before EnvBase.__init__: begin its __init__ with"
            " super().__init__(batch_size=..., device=...), then assign the specs"
        )


def overtaken(kind: type) -> bool:
    """Whether a subclass changed the TensorDict form alone, so that the leaf form says something else.

    Example:
        >>> from rl.envs import PendulumEnv
        >>> class Doubled(PendulumEnv):
        ...     def _step(self, tensordict):
        ...         out = super()._step(tensordict)
        ...         return out.set("reward", 2 * out["reward"])
        >>> overtaken(PendulumEnv), overtaken(Doubled)
        (False, True)
    """

    def depth(name: str) -> int:
        return next(index for index, one in enumerate(kind.__mro__) if name in vars(one))

    resets, steps = depth("_reset_leaves"), depth("_step_leaves")
    pairs = [(name, resets) for name in ("_reset", "reset", "maybe_reset")]
    pairs += [(name, steps) for name in ("_step", "step", "step_mdp", "step_and_maybe_reset")]
    return any(depth(name) < leaves for name, leaves in pairs)
