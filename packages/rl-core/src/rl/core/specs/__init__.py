"""Specs: shape, dtype and range of the entries of a TensorDict."""

from rl.core.specs._base import TensorSpec
from rl.core.specs._choice import Choice
from rl.core.specs._composite import (
    BoundedContinuous,
    BoundedDiscrete,
    Composite,
    Stacked,
    StackedComposite,
    UnboundedContinuous,
    UnboundedDiscrete,
    group_sizes,
    make_composite_from_td,
    set_group_sizes,
)
from rl.core.specs._continuous import Bounded, CategoricalBox, ContinuousBox, Unbounded
from rl.core.specs._discrete import Binary, Categorical, MultiCategorical, MultiOneHot, OneHot
from rl.core.specs._leaf import NonTensor

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
