"""A loss that uses our distributions compiles without a break."""

import pytest
import torch
from torch.testing import assert_close

from rl.modules import (
    Categorical,
    IndependentNormal,
    MaskedOneHotCategorical,
    OneHotCategorical,
    Ordinal,
    TanhNormal,
    TruncatedNormal,
)

MASK = torch.tensor([True, True, False])
CASES = {
    "tanh": (lambda a, b: TanhNormal(a, b.exp(), -2.0, 2.0), torch.tensor([0.3, -0.2, 1.0])),
    "truncated": (lambda a, b: TruncatedNormal(a, b.exp(), low=-2.0, high=2.0), torch.tensor([0.3, -0.2, 1.0])),
    "ordinal": (lambda a, b: Ordinal(a), torch.tensor([1, 0])),
    "normal": (lambda a, b: IndependentNormal(a, b.exp()), torch.tensor([0.3, -0.2, 1.0])),
    "categorical": (lambda a, b: Categorical(logits=a), torch.tensor([1, 0])),
    "one-hot": (lambda a, b: OneHotCategorical(logits=a), torch.tensor([[1, 0, 0], [0, 1, 0]])),
    "masked": (lambda a, b: MaskedOneHotCategorical(logits=a, mask=MASK), torch.tensor([[1, 0, 0], [0, 1, 0]])),
}


@pytest.mark.parametrize(("make", "value"), list(CASES.values()), ids=list(CASES))
def test_score_and_entropy_compile_whole(make, value):
    def loss(a, b):
        dist = make(a, b)
        total = dist.log_prob(value).sum()
        return total + dist.entropy().sum() if dist.has_entropy else total

    a, b = torch.randn(2, 3), torch.randn(2, 3)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert_close(compiled(a, b), loss(a, b))
    torch.compiler.reset()
