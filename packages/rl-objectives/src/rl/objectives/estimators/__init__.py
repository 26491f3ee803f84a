"""Value estimators on TensorDicts."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.estimators._base import TDEstimatorBase, ValueEstimatorBase
    from rl.objectives.estimators._gae import GAE
    from rl.objectives.estimators._kinds import ValueEstimators
    from rl.objectives.estimators._multi_agent_gae import MultiAgentGAE
    from rl.objectives.estimators._td import TD0Estimator, TD1Estimator, TDLambdaEstimator
    from rl.objectives.estimators._vtrace import VTrace

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
]

__getattr__, __dir__ = lazy_exports(__name__)
