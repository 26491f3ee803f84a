"""Weights of policies: how they reach the workers of a collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictParams
from torch import Tensor, nn

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, RLError
from rl.core.keys import NestedKey
from rl.core.workers import SharedLeaves, layout_of, write_leaves

__all__ = [
    "MultiProcessedWeightUpdater",
    "RayWeightUpdater",
    "SharedWeights",
    "VanillaWeightUpdater",
    "WeightUpdaterBase",
]


def chosen_weights(
    given: Any,
    *,
    weights: Any,
    policy: Any,
    model_id: str | None,
    weights_dict: Any,
    models: Sequence[str] = ("policy",),
) -> dict[str, Any]:
    """Return the sources of weights among the arguments of `update_policy_weights_`, by model; None for its own.

    Raises:
        ArgumentError: If there are several sources for a model, or a model is named that is not among `models`.
    """
    sources = {"policy_or_weights": given, "weights": weights, "policy": policy, "weights_dict": weights_dict}
    named = [name for name, source in sources.items() if source is not None]
    if len(named) > 1:
        raise ArgumentError(f"update_policy_weights_ takes one source of weights, got {', '.join(named)}")
    if weights_dict is not None and model_id is not None:
        raise ArgumentError(
            f"update_policy_weights_ got weights_dict and model_id={model_id!r}: the dict names its models, leave"
            " model_id out"
        )
    if weights_dict is not None:
        chosen = dict(weights_dict)
    elif model_id is None and not named:
        chosen = dict.fromkeys(models)
    elif model_id is None and len(models) > 1:
        raise ArgumentError(f"update_policy_weights_ got weights and no model_id, one of {', '.join(models)}")
    else:
        chosen = {model_id or models[0]: sources[named[0]] if named else None}
    if not chosen or not chosen.keys() <= {*models}:
        raise ArgumentError(
            f"update_policy_weights_ got the models {[*chosen]}: there "
            + (f"is one, {models[0]!r}" if len(models) == 1 else f"are {', '.join(models)}")
        )
    return chosen


def load_weights(policy: Any, source: Any) -> None:
    """Copy the weights of `source` into `policy`; names and shapes are compared first.

    Args:
        policy: A module.
        source: A module of the same structure, a ``state_dict()``, or a TensorDict of parameters.

    Raises:
        ArgumentError: If `policy` is not a module, or `source` does not fit it. Nothing is written then.

    Example:
        >>> import torch
        >>> one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        >>> load_weights(one, other)
        >>> torch.equal(one.weight, other.weight)
        True
    """
    if not isinstance(policy, nn.Module):
        raise ArgumentError(
            f"the policy is {type(policy).__name__} and has no weights to update: give the collector a module, or"
            " create a new collector"
        )
    new = matching_weights(policy.state_dict(), source, f"the policy ({type(policy).__name__})", policy)
    policy.load_state_dict(dict(new), strict=False)


def matching_weights(
    own: Mapping[str, Any], source: Any, owner: str, policy: nn.Module | None = None
) -> dict[str, Any]:
    """Return the weights of `source` by name.

    Args:
        own: Weights of the policy that gets them.
        source: Weights as for `load_weights`.
        owner: Name of the policy in messages.
        policy: The policy, if a TensorDict of parameters may leave its buffers out.

    Raises:
        ArgumentError: If names or shapes are others.
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
        raise ArgumentError(
            f"the weights do not fit {owner}: {', '.join(problems)}; pass a policy of the same structure, or its"
            " state_dict()"
        )
    return dict(new)


def weights_of(source: Any) -> Mapping[str, Any]:
    """Return the weights of a module, ``state_dict()`` or TensorDict of parameters by name.

    Raises:
        ArgumentError: If it is something else.
    """
    if isinstance(source, nn.Module) and not isinstance(source, TensorDictParams):
        return source.state_dict()
    if isinstance(source, (TensorDictBase, TensorDictParams)):
        flat: TensorDict = source.data.flatten_keys(".")
        return dict(flat.items())
    if isinstance(source, Mapping):
        return source
    raise ArgumentError(
        f"update_policy_weights_ got {type(source).__name__}, expected a policy, its state_dict(), or a TensorDict"
        " of its parameters"
    )


class SharedWeights:
    """The weights of a policy in shared memory, each update with a version, for one writer and several readers.

    There are two copies: an update is written into the one that is not current, and then made current. A reader that
    took so long that its copy was written again reads once more, so that no reader ever has a part of an update.

    Args:
        readers: Number of readers.

    Example:
        >>> store = SharedWeights(readers=1)
        >>> net = torch.nn.Linear(2, 1)
        >>> store.map(net.state_dict())
        >>> store.publish(net.state_dict())
        1
        >>> other = torch.nn.Linear(2, 1)
        >>> store.acquire(other.state_dict(), reader=0)
        1
        >>> bool((net.weight == other.weight).all()), store.acknowledged
        (True, [1])
    """

    def __init__(self, readers: int) -> None:
        self._memory = SharedLeaves()
        self._readers = readers
        self._copies: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})

    def map(self, weights: Mapping[str, Any]) -> None:
        """Map the memory for weights of these names, shapes and dtypes, in the writer and in every reader.

        Raises:
            ArgumentError: If one is no tensor.
        """
        named: dict[Any, Any] = dict(weights)
        layout = layout_of(named, "weights")
        count = ((), torch.int64)
        whole: dict[NestedKey, Any] = {"begun": count, "current": count}
        whole["acknowledged"], whole["versions"] = ((self._readers,), torch.int64), ((2,), torch.int64)
        whole |= {(str(copy), name): place for copy in (0, 1) for name, place in layout.items()}
        found: dict[Any, Tensor] = dict(self._memory.map(whole))
        self._begun, self._current, self._acknowledged = (found[k] for k in ("begun", "current", "acknowledged"))
        self._versions = found["versions"]  # of the two copies
        self._copies = tuple({name: found[str(copy), name] for name in named} for copy in (0, 1))  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        """Close the file of the memory; mapped weights stay valid. May be called twice."""
        self._memory.close()

    @property
    def version(self) -> int:
        """Version of the current weights, 0 before the first update."""
        return int(self._versions[int(self._current) % 2])

    @property
    def acknowledged(self) -> list[int]:
        """The version that each reader took last."""
        return self._acknowledged.tolist()

    def publish(self, weights: Mapping[str, Tensor], version: int | None = None) -> int:
        """Make new weights current and return their version.

        Args:
            weights: The weights.
            version: Version, above the current one; the next one if None.

        Raises:
            ShapeError: If one has another shape than the mapped one.
        """
        version, turn = version or self.version + 1, int(self._current) + 1
        self._begun.fill_(turn)
        places = self._copies[turn % 2]
        given = {name: weights[name].to(place.dtype) for name, place in places.items()}  # as load_state_dict does
        write_leaves(places, given, "SharedWeights.publish")
        self._versions[turn % 2] = version
        self._current.fill_(turn)
        return version

    def acquire(self, weights: Mapping[str, Tensor], reader: int, known: int = 0) -> int:
        """Copy the current weights into `weights` unless they are of version `known`; return their version."""
        version = known
        while (found := int(self._versions[(turn := int(self._current)) % 2])) != version:
            version = found
            given = {name: value.to(weights[name].dtype) for name, value in self._copies[turn % 2].items()}
            write_leaves(weights, given, "SharedWeights.acquire")
            if int(self._begun) > turn + 1:  # written again in the meantime
                version = -1
        self._acknowledged[reader] = version
        return version


@foreign_arguments()
class WeightUpdaterBase:
    """Object that passes new weights to the collector to which it was passed as ``weight_updater=``.

    The collector sends its weights itself: the three subclasses, with TorchRL's names, do the same. A subclass may
    override `update_weights`, for example to fetch them from elsewhere.

    Example:
        >>> from rl.collectors import Collector
        >>> from rl.testing import CountingEnv
        >>> updater = VanillaWeightUpdater()
        >>> collector = Collector(CountingEnv(), frames_per_batch=4, weight_updater=updater)
        >>> updater.update_weights()
    """

    collector: Any = None

    def register_collector(self, collector: Any) -> None:
        """Set the collector; the collector calls this when it is constructed."""
        self.collector = collector

    def update_weights(self, policy_or_weights: Any = None, *, worker_ids: Any = None) -> None:
        """Call the collector's `update_policy_weights_`.

        Args:
            policy_or_weights: Policy, its ``state_dict()`` or a TensorDict of parameters; None for the policy that
                the collector was given.
            worker_ids: Numbers of the workers that are sent the weights; all if None.

        Raises:
            RLError: If there is no collector.
        """
        if self.collector is None:
            raise RLError(f"this {type(self).__name__} has no collector; pass it to one as weight_updater=")
        self.collector.update_policy_weights_(policy_or_weights, worker_ids=worker_ids)

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Call `update_weights`, which TorchRL has under this name."""
        self.update_weights(policy_or_weights, worker_ids=worker_ids)


class VanillaWeightUpdater(WeightUpdaterBase):
    """Updater for collectors in this process, and all others."""


class MultiProcessedWeightUpdater(WeightUpdaterBase):
    """Updater for collectors with worker processes, and all others."""


class RayWeightUpdater(WeightUpdaterBase):
    """Updater for collectors in actors of Ray, and all others."""
