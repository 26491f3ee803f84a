"""The value estimators of `rl.objectives.estimators`, under the path that TorchRL has."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives._estimator_base import TDEstimatorBase, ValueEstimatorBase
    from rl.objectives.estimators import (
        GAE,
        MultiAgentGAE,
        TD0Estimator,
        TD1Estimator,
        TDLambdaEstimator,
        ValueEstimators,
        VTrace,
    )
    from rl.objectives.functional._recurrence import recurrence_backend

__all__ = [
    "GAE",
    "MultiAgentGAE",
    "TD0Estimator",
    "TD1Estimator",
    "TDEstimatorBase",
    "TDLambdaEstimator",
    "VTrace",
    "ValueEstimatorBase",
    "ValueEstimators",
    "recurrence_backend",
]

__getattr__, __dir__ = lazy_exports(__name__)
