"""In-place update of the weights of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictParams
from torch import nn

from rl.core.errors import SpecError

__all__ = ["chosen_weights", "load_weights", "matching_weights", "weights_of"]


def chosen_weights(given: Any, *, weights: Any, policy: Any, model_id: str | None, weights_dict: Any) -> Any:
    """Return the one source of weights among the arguments of `update_policy_weights_`; None if there is none.

    Raises:
        SpecError: if there are several, or a model other than ``"policy"`` is named.
    """
    sources = {"policy_or_weights": given, "weights": weights, "policy": policy, "weights_dict": weights_dict}
    named = [name for name, source in sources.items() if source is not None]
    if len(named) > 1:
        raise SpecError(f"update_policy_weights_ takes one source of weights, got {', '.join(named)}")
    if weights_dict is not None and model_id is not None:
        raise SpecError(
            f"update_policy_weights_ got weights_dict and model_id={model_id!r}: the dict names its models, leave"
            " model_id out"
        )
    models = [model_id or "policy"] if weights_dict is None else [*weights_dict]
    if models != ["policy"]:
        raise SpecError(f"update_policy_weights_ got the models {models}: a collector has one, 'policy'")
    if weights_dict is not None:
        return weights_dict["policy"]
    return sources[named[0]] if named else None


def load_weights(policy: Any, source: Any) -> None:
    """Copy the weights of `source` into `policy`; names and shapes are compared first.

    Args:
        policy: a module.
        source: a module of the same structure, a ``state_dict()``, or a TensorDict of parameters.

    Raises:
        SpecError: if `policy` is not a module, or `source` does not fit it. Nothing is written then.

    Example:
        >>> import torch
        >>> one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> load_weights(one, other)
        >>> torch.equal(one.weight, other.weight)
        True
    """
    if not isinstance(policy, nn.Module):
        raise SpecError(
            f"the policy is {type(policy).__name__} and has no weights to update: give the collector a module, or"
            " make a new collector"
        )
    new = matching_weights(policy.state_dict(), source, f"the policy ({type(policy).__name__})", policy)
    policy.load_state_dict(dict(new), strict=False)


def matching_weights(
    own: Mapping[str, Any], source: Any, owner: str, policy: nn.Module | None = None
) -> dict[str, Any]:
    """Return the weights of `source` by name.

    Args:
        own: weights of the policy that gets them.
        source: as for `load_weights`.
        owner: names the policy in messages.
        policy: the policy, if a TensorDict of parameters may leave its buffers out.

    Raises:
        SpecError: if names or shapes are others.
    """
    new = weights_of(source)
    partial = policy is not None and isinstance(source, (TensorDictBase, TensorDictParams))  # parameters only
    wanted = {name for name, _ in policy.named_parameters()} if partial and policy is not None else set(own)
    problems = [f"{name} is missing" for name in sorted(wanted - set(new))]
    problems += [f"{name} is unknown" for name in sorted(set(new) - set(own))]
    problems += [
        f"{name} has shape {tuple(value.shape)} instead of {tuple(own[name].shape)}"
        for name, value in new.items()
        if name in own and getattr(value, "shape", None) != getattr(own[name], "shape", None)
    ]
    if problems:
        raise SpecError(
            f"the weights do not fit {owner}: {', '.join(problems)}; pass a policy of the same structure, or its"
            " state_dict()"
        )
    return dict(new)


def weights_of(source: Any) -> Mapping[str, Any]:
    """Return the weights of a module, ``state_dict()`` or TensorDict of parameters by name.

    Raises:
        SpecError: if it is something else.
    """
    if isinstance(source, nn.Module) and not isinstance(source, TensorDictParams):
        return source.state_dict()
    if isinstance(source, (TensorDictBase, TensorDictParams)):
        flat: TensorDict = source.data.flatten_keys(".")
        return dict(flat.items())
    if isinstance(source, Mapping):
        return source
    raise SpecError(
        f"update_policy_weights_ got {type(source).__name__}, expected a policy, its state_dict(), or a TensorDict"
        " of its parameters"
    )
