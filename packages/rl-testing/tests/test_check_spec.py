"""The conformance check finds specs that break their promises."""

from __future__ import annotations

import pytest
import torch

from rl.core.specs import Binary, Bounded, Categorical, OneHot, Unbounded
from rl.testing import check_spec


class DrawsOutside(Bounded):
    def rand(self, shape=(), *, generator=None):
        return super().rand(shape, generator=generator) + 10


class DrawsFlat(Unbounded):
    def rand(self, shape=(), *, generator=None):
        return super().rand(shape, generator=generator).flatten()


class ForgetsToEncode(OneHot):
    def to_numpy(self, value):
        return super().to_numpy(value) * 0


class MovesWhatIsInside(Bounded):
    def project(self, value):
        return self.low.expand_as(value)


class AcceptsAnything(Unbounded):
    def _fault(self, value, lead):
        return None


class ListsTooFew(Binary):
    def enumerate(self):
        return super().enumerate()[:-1]


class ForgetsItsMask(Categorical):
    _parameters = ()


class NeverEqual(Unbounded):
    def _same(self, other):
        return False


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        pytest.param(DrawsOutside(0, 1), r"rand\(\) returned .* not in", id="draw"),
        pytest.param(DrawsFlat((2, 2)), r"rand\(\) has shape", id="shape"),
        pytest.param(ForgetsToEncode(5, (8, 5)), r"encode\(to_numpy\(x\)\)", id="encode"),
        pytest.param(MovesWhatIsInside(0, 1), r"project\(\) changed", id="project"),
        pytest.param(AcceptsAnything(), r"an object\(\) is in", id="accepts"),
        pytest.param(ListsTooFew(2), r"returned 3 values, the cardinality is 4", id="cardinality"),
        pytest.param(NeverEqual(), r"clone\(\) of .* not equal", id="equality"),
        pytest.param(
            ForgetsItsMask(2, (3,), mask=torch.tensor([[True, False], [False, True], [True, True]])),
            r"slices",
            id="mask",
        ),
    ],
)
def test_broken_specs_are_found(spec, text):
    with pytest.raises((AssertionError, RuntimeError), match=rf"(?s){text}"):
        check_spec(spec)
