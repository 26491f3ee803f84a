"""Networks as a loss calls them: on tensors, without touching the batch that these came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributions import Distribution

from rl.core.errors import ContractError
from rl.core.keys import NestedKey, as_tuple, key_str, nearest, unwrap
from rl.core.lowering import lower, lower_distribution

__all__ = ["ActorCall", "NetworkCall", "actor_keys"]


def _keys(module: Any, what: str) -> list[NestedKey]:
    keys = getattr(module, what, None)
    if keys is None:
        raise ContractError(
            f"{type(module).__name__} has no {what}, so it does not say which keys it uses: wrap it in"
            " tensordict.nn.TensorDictModule(network, in_keys=[...], out_keys=[...])"
        )
    return [unwrap(key) for key in keys]


def _as_tensordict(keys: Sequence[NestedKey], leaves: Sequence[Tensor], batch_size: torch.Size) -> TensorDict:
    td = TensorDict({}, batch_size=batch_size)
    for key, leaf in zip(keys, leaves, strict=True):
        td.set(key, leaf)
    return td


def actor_keys(actor: Any) -> dict[str, NestedKey]:
    """Where an actor says that it writes its action and the log-probability.

    Args:
        actor: has ``dist_sample_keys`` and ``log_prob_keys``, if not all is as usual.

    Returns:
        The keys by the names ``action`` and ``sample_log_prob``.
    """
    sampled = list(getattr(actor, "dist_sample_keys", None) or ["action"])
    action = unwrap(sampled[0] if len(sampled) == 1 else "action")
    *above, last = as_tuple(action)
    scored = list(getattr(actor, "log_prob_keys", None) or [])
    log_prob = scored[0] if len(scored) == 1 else (*above, f"{last}_log_prob")
    return {"action": action, "sample_log_prob": unwrap(log_prob)}


class NetworkCall:
    """A TensorDict module as a function of the tensors under its ``in_keys``.

    Args:
        module: has ``in_keys`` and ``out_keys``.
        out_keys: which results are wanted, in this order.

    Raises:
        ContractError: if the module does not write one of them.
    """

    __slots__ = ("_lowered", "_positions", "in_keys", "module", "out_keys")

    def __init__(self, module: Any, out_keys: Sequence[NestedKey]) -> None:
        self.module = module
        self.in_keys = _keys(module, "in_keys")
        self.out_keys = [unwrap(key) for key in out_keys]
        written = _keys(module, "out_keys")
        for key in self.out_keys:
            if key not in written:
                close = nearest(key, written)
                hint = f"; did you mean {key_str(close)}?" if close is not None else ""
                raise ContractError(
                    f"{type(module).__name__} does not write {key_str(key)}, it writes"
                    f" {', '.join(map(key_str, written))}: give it that out_key, or name the key with set_keys(){hint}"
                )
        self._lowered = lower(module)
        if self._lowered is not None:
            self.in_keys = [unwrap(key) for key in self._lowered.in_keys]
            written = [unwrap(key) for key in self._lowered.out_keys]
        self._positions = [written.index(key) for key in self.out_keys]

    def __call__(self, leaves: Sequence[Tensor], batch_size: torch.Size) -> list[Tensor]:
        """The tensors under `out_keys`."""
        if self._lowered is not None:
            out = self._lowered(*leaves)
            return [out[i] for i in self._positions]
        td = self.module(_as_tensordict(self.in_keys, leaves, batch_size))
        return [td.get(key) for key in self.out_keys]


class ActorCall:
    """An actor as a function from the tensors under its ``in_keys`` to its action distribution.

    Args:
        actor: has ``in_keys`` and ``get_dist``.

    Raises:
        ContractError: if it has no ``get_dist``.
    """

    __slots__ = ("_lowered", "actor", "in_keys")

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.in_keys = _keys(actor, "in_keys")
        self._lowered = lower_distribution(actor)
        if self._lowered is not None:
            self.in_keys = [unwrap(key) for key in self._lowered.in_keys]
        elif not callable(getattr(actor, "get_dist", None)):
            raise ContractError(
                f"{type(actor).__name__} has no get_dist, so its action distribution is not known: build the actor"
                " as a ProbabilisticTensorDictSequential"
            )

    def __call__(self, leaves: Sequence[Tensor], batch_size: torch.Size) -> Distribution:
        """The distribution of actions."""
        if self._lowered is not None:
            return self._lowered(*leaves)
        return self.actor.get_dist(_as_tensordict(self.in_keys, leaves, batch_size))
