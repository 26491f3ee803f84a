"""Value estimators: returns and advantages on TensorDicts; `rl.objectives.value.functional` has them on tensors."""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.objectives.value._estimator import TDEstimatorBase, ValueEstimatorBase
    from rl.objectives.value._gae import GAE
    from rl.objectives.value._kinds import ValueEstimators
    from rl.objectives.value._recurrence import recurrence_backend
    from rl.objectives.value._td import TD0Estimator, TD1Estimator, TDLambdaEstimator
    from rl.objectives.value._vtrace import VTrace

__all__ = [
    "GAE",
    "TD0Estimator",
    "TD1Estimator",
    "TDEstimatorBase",
    "TDLambdaEstimator",
    "VTrace",
    "ValueEstimatorBase",
    "ValueEstimators",
    "recurrence_backend",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.objectives.value._estimator": ["TDEstimatorBase", "ValueEstimatorBase"],
        "rl.objectives.value._gae": ["GAE"],
        "rl.objectives.value._kinds": ["ValueEstimators"],
        "rl.objectives.value._recurrence": ["recurrence_backend"],
        "rl.objectives.value._td": ["TD0Estimator", "TD1Estimator", "TDLambdaEstimator"],
        "rl.objectives.value._vtrace": ["VTrace"],
    },
)
