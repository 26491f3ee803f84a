"""Specs: shape, dtype and range of the entries of a TensorDict."""

from rl.core.specs._aliases import (
    BoundedContinuous,
    BoundedDiscrete,
    StackedComposite,
    UnboundedContinuous,
    UnboundedDiscrete,
)
from rl.core.specs._base import TensorSpec
from rl.core.specs._bounded import Bounded
from rl.core.specs._boxes import CategoricalBox, ContinuousBox
from rl.core.specs._choice import Choice
from rl.core.specs._composite import Composite, make_composite_from_td
from rl.core.specs._discrete import Binary, Categorical, OneHot
from rl.core.specs._groups import group_sizes, set_group_sizes
from rl.core.specs._multi import MultiCategorical, MultiOneHot
from rl.core.specs._nontensor import NonTensor
from rl.core.specs._stacked import Stacked
from rl.core.specs._unbounded import Unbounded

__all__ = [
    "Binary",
    "Bounded",
    "BoundedContinuous",
    "BoundedDiscrete",
    "Categorical",
    "CategoricalBox",
    "Choice",
    "Composite",
    "ContinuousBox",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "Stacked",
    "StackedComposite",
    "TensorSpec",
    "Unbounded",
    "UnboundedContinuous",
    "UnboundedDiscrete",
    "group_sizes",
    "make_composite_from_td",
    "set_group_sizes",
]
