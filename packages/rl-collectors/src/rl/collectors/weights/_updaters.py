"""Weight updaters of TorchRL: the collector's `update_policy_weights_` as an object."""

from __future__ import annotations

from typing import Any

from rl.collectors import _foreign
from rl.core.errors import RLError

__all__ = ["MultiProcessedWeightUpdater", "RayWeightUpdater", "VanillaWeightUpdater", "WeightUpdaterBase"]


@_foreign.weight_updater
class WeightUpdaterBase:
    """Object that gives new weights to the collector to which it was passed as ``weight_updater=``.

    The collector sends its weights itself: the three subclasses, with TorchRL's names, do the same. A subclass may
    override `update_weights`, for example to fetch them from elsewhere.

    Example:
        >>> from rl.collectors import Collector
        >>> from rl.core.testing import CountingEnv
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
            RLError: if there is no collector.
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
