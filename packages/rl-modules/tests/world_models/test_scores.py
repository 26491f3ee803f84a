"""Scores of tree search."""

import math

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError
from rl.modules import PUCTScore, UCBScore


def node(**more):
    return TensorDict(
        win_count=torch.tensor([[3.0, -1.0, 0.0], [4.0, 2.0, 0.0]]),
        visits=torch.tensor([[4.0, 2.0, 0.0], [8.0, 1.0, 0.0]]),
        total_visits=torch.tensor([6.0, 9.0]),
        batch_size=[2],
        **more,
    )


def test_puct_is_the_formula_of_alphazero_for_each_action():
    prior = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    found = PUCTScore(c=1.5)(node(prior_prob=prior))["score"]
    for row, (returns, visits, total) in enumerate([((3, -1, 0), (4, 2, 0), 6), ((4, 2, 0), (8, 1, 0), 9)]):
        for a in range(3):
            mean = returns[a] / visits[a] if visits[a] else 0
            bonus = 1.5 * float(prior[row, a]) * math.sqrt(total) / (1 + visits[a])
            assert float(found[row, a]) == pytest.approx(mean + bonus)


def test_ucb_is_puct_with_equal_priors():
    equal = torch.full((2, 3), 1 / 3)
    one, two = UCBScore(c=2.0)(node()), PUCTScore(c=6.0)(node(prior_prob=equal))
    torch.testing.assert_close(one["score"], two["score"])


def test_visits_of_the_node_may_have_a_dimension_of_1():
    wide = node()
    wide["total_visits"] = wide["total_visits"].unsqueeze(-1)
    torch.testing.assert_close(UCBScore(c=1.0)(wide)["score"], UCBScore(c=1.0)(node())["score"])


def test_search_with_puct_finds_the_best_arm():
    torch.manual_seed(0)
    means, prior = torch.tensor([0.1, 0.5, 0.3]), torch.tensor([0.6, 0.1, 0.3])
    count, total, score = torch.zeros(3), torch.zeros(3), PUCTScore(c=1.0)
    for step in range(400):
        root = TensorDict(win_count=total, visits=count, total_visits=torch.tensor(float(step + 1)), prior_prob=prior)
        arm = int(score(root)["score"].argmax())
        count[arm] += 1
        total[arm] += means[arm] + 0.1 * torch.randn(())
    assert count.argmax() == 1


def test_other_keys_and_a_negative_weight():
    score = PUCTScore(c=1.0, score_key="s", visits_key=("tree", "n"), prior_prob_key="p")
    assert score.in_keys == ["win_count", ("tree", "n"), "total_visits", "p"]
    assert score.out_keys == ["s"]
    with pytest.raises(ArgumentError, match="c"):
        UCBScore(c=-1.0)
