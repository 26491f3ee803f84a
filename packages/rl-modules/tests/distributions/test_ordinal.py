import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch.testing import assert_close

from rl.core.errors import ShapeError
from rl.core.specs import Categorical as CategoricalSpec
from rl.core.specs import OneHot
from rl.modules import MLP, OneHotOrdinal, Ordinal, ProbabilisticActor

F64 = torch.float64


def reference(scores):
    """Logits of section 4.2 of the paper, action by action."""
    s = scores.sigmoid()
    rows = [
        sum(s[j].log() for j in range(i + 1)) + sum((1 - s[j]).log() for j in range(i + 1, len(s)))
        for i in range(len(s))
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("make", [Ordinal, OneHotOrdinal])
def test_probabilities_are_those_of_the_paper(make):
    scores = torch.randn(3, 5, dtype=F64, requires_grad=True)
    dist = make(scores)
    expected = torch.stack([reference(one) for one in scores]).log_softmax(-1)
    assert_close(dist.logits, expected)
    index = torch.randint(5, (3,))
    value = index if make is Ordinal else torch.nn.functional.one_hot(index, 5)
    assert_close(dist.log_prob(value), expected.gather(-1, index.unsqueeze(-1)).squeeze(-1))
    assert_close(dist.entropy(), -(expected.exp() * expected).sum(-1))
    found, other = (torch.autograd.grad(one.sum(), scores)[0] for one in (dist.entropy(), -(expected.exp() * expected)))
    assert_close(found, other)


def test_large_scores_stay_finite():
    scores = torch.tensor([300.0, -300.0, 300.0, -300.0], requires_grad=True)
    dist = Ordinal(scores)
    assert dist.logits.isfinite().all()
    dist.entropy().backward()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize(("make", "spec"), [(Ordinal, CategoricalSpec(4)), (OneHotOrdinal, OneHot(4))])
def test_in_a_policy(make, spec):
    def actor(width):
        net = TensorDictModule(MLP(3, width), ["observation"], ["scores"])
        return ProbabilisticActor(net, ["scores"], spec=spec, distribution_class=make, return_log_prob=True)

    out = actor(4)(TensorDict(observation=torch.randn(5, 3), batch_size=[5]))
    assert spec.is_in(out["action"])
    assert out["action_log_prob"].shape == (5,)
    with pytest.raises(ShapeError, match="5 entries, its spec needs 4"):
        actor(5)


def test_gradient_of_one_hot_samples_is_straight_through():
    scores = torch.randn(4, dtype=F64, requires_grad=True)
    dist, weight = OneHotOrdinal(scores), torch.randn(4, dtype=F64)
    (found,) = torch.autograd.grad((dist.rsample() * weight).sum(), scores)
    (expected,) = torch.autograd.grad((reference(scores).softmax(-1) * weight).sum(), scores)
    assert_close(found, expected)
