"""The value estimators by name."""

from __future__ import annotations

from enum import Enum
from typing import Any

from rl.core.registry import load
from rl.objectives.value._estimator import ValueEstimatorBase
from rl.objectives.value._gae import GAE
from rl.objectives.value._td import TD0Estimator, TD1Estimator, TDLambdaEstimator

__all__ = ["ValueEstimators", "make_estimator"]


class ValueEstimators(Enum):
    """Our value estimators, under the names that ``rl plugins`` lists.

    Example:
        >>> ValueEstimators.TDLambda.value
        'td-lambda'
    """

    TD0 = "td0"
    TD1 = "td1"
    TDLambda = "td-lambda"
    GAE = "gae"


_OURS = {
    ValueEstimators.TD0: TD0Estimator,
    ValueEstimators.TD1: TD1Estimator,
    ValueEstimators.TDLambda: TDLambdaEstimator,
    ValueEstimators.GAE: GAE,
}


def make_estimator(kind: ValueEstimators | str, **arguments: Any) -> ValueEstimatorBase:
    """Construct an estimator.

    Args:
        kind: one of ours, or the name of an installed component of kind ``estimator``.
        arguments: of its constructor.

    Raises:
        UnknownComponentError: if no estimator has that name.

    Example:
        >>> make_estimator("gae", gamma=0.9).gamma
        0.9
    """
    make = _OURS[kind] if isinstance(kind, ValueEstimators) else load("estimator", kind)
    return make(**arguments)
