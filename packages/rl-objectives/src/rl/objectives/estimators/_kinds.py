"""The value estimators by name."""

from __future__ import annotations

from enum import Enum

from rl.core.registry import load
from rl.objectives.estimators._base import ValueEstimatorBase
from rl.objectives.estimators._gae import GAE
from rl.objectives.estimators._multi_agent_gae import MultiAgentGAE
from rl.objectives.estimators._td import TD0Estimator, TD1Estimator, TDLambdaEstimator
from rl.objectives.estimators._vtrace import VTrace

__all__ = ["ValueEstimators", "estimator_class"]


class ValueEstimators(Enum):
    """Names of the value estimators of this package, as ``rl plugins`` lists them.

    Example:
        >>> ValueEstimators.TDLambda.value
        'td-lambda'
    """

    TD0 = "td0"
    TD1 = "td1"
    TDLambda = "td-lambda"
    GAE = "gae"
    MAGAE = "multi-agent-gae"
    VTrace = "vtrace"


_OURS = {
    ValueEstimators.TD0: TD0Estimator,
    ValueEstimators.TD1: TD1Estimator,
    ValueEstimators.TDLambda: TDLambdaEstimator,
    ValueEstimators.GAE: GAE,
    ValueEstimators.MAGAE: MultiAgentGAE,
    ValueEstimators.VTrace: VTrace,
}


def estimator_class(kind: ValueEstimators | str) -> type[ValueEstimatorBase]:
    """The class of an estimator.

    Args:
        kind: one of ours, or the name of an installed component of kind ``estimator``.

    Raises:
        UnknownComponentError: if no estimator has that name.

    Example:
        >>> estimator_class("gae").__name__
        'GAE'
    """
    return _OURS[kind] if isinstance(kind, ValueEstimators) else load("estimator", kind)
