"""Supervised fine-tuning, preferences and reward models against plain loops and invariances."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.testing import check_loss
from rl.llm import DPOLoss, RewardModelLoss, SFTLoss, TokenScorer


@pytest.mark.parametrize("loss_type", ["nll", "dft"])
@pytest.mark.parametrize("normalizer", ["tokens", "sequence", "constant", "prompt"])
def test_fine_tuning_is_that_of_plain_loops(loss_type, normalizer, data):
    td, policy = data
    out = SFTLoss(policy, loss_type=loss_type, normalizer=normalizer, max_tokens=9)(td)
    mask, group = td["masks", "all_assistant_mask"], td["group"].flatten().tolist()
    lengths = mask.sum(-1).tolist()
    total = 0.0
    for row in range(6):
        prompt = sum(n for n, g in zip(lengths, group, strict=True) if g == group[row])
        weight = {
            "tokens": 1 / sum(lengths),
            "sequence": 1 / (6 * lengths[row]),
            "constant": 1 / (6 * 9),
            "prompt": 1 / (3 * prompt),
        }[normalizer]
        for lp in policy.log_prob[row, mask[row]].tolist():
            total -= weight * lp * (math.exp(lp) if loss_type == "dft" else 1)
    assert out["loss_sft"].item() == pytest.approx(total, rel=1e-12)
    assert out["num_tokens"] == sum(lengths)


def test_fine_tuning_is_a_sum_over_micro_batches(data, bigram):
    td, _ = data
    loss = SFTLoss(bigram)
    step = loss.normalize(td)
    for size in (1, 2, 4):
        parts = [loss(micro)["loss_sft"] for micro in step.split(size)]
        torch.testing.assert_close(sum(parts), loss(td)["loss_sft"], rtol=1e-12, atol=0)


def test_fine_tuning_keeps_the_promises_of_losses(make_batch):
    td, _ = make_batch(dtype=torch.float32)
    check_loss(SFTLoss(TokenScorer(nn.Embedding(7, 7))), td)


def pairs(make_batch, dtype=torch.float64):
    td, policy = make_batch(dtype=dtype)
    return td.reshape(3, 2), policy


class Pairs(nn.Module):
    """A policy of six rows on pairs."""

    in_keys = (("tokens", "full"),)
    out_keys = (("log_probs", "full"),)

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, td):
        return td.set(("log_probs", "full"), self.policy.log_prob.view(td["tokens", "full"].shape))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_preferences_are_those_of_plain_loops(smoothing, make_batch):
    td, policy = pairs(make_batch)
    out = DPOLoss(Pairs(policy), beta=0.3, label_smoothing=smoothing)(td)
    mask = td["masks", "all_assistant_mask"]
    log_prob, reference = policy.log_prob.view(3, 2, 8), td["ref_log_probs", "full"]
    total, hits = 0.0, 0
    for i in range(3):
        rewards = [0.3 * (log_prob[i, j, mask[i, j]] - reference[i, j, mask[i, j]]).sum().item() for j in range(2)]
        margin = rewards[0] - rewards[1]
        hits += margin > 0
        total += (1 - smoothing) * math.log(1 + math.exp(-margin)) + smoothing * math.log(1 + math.exp(margin))
    assert out["loss_dpo"].item() == pytest.approx(total / 3, rel=1e-12)
    assert out["rewards/accuracies"].item() == pytest.approx(hits / 3)


def test_preferences_are_a_sum_over_micro_batches_and_ignore_padding(make_batch, bigram):
    td, _ = pairs(make_batch)
    loss = DPOLoss(bigram)
    step = loss.normalize(td)
    expected = loss(td)["loss_dpo"]
    torch.testing.assert_close(sum(loss(one)["loss_dpo"] for one in step.split(1)), expected, rtol=1e-12, atol=0)
    wide = td.clone()
    wide["tokens", "full"] = nn.functional.pad(td["tokens", "full"], (2, 1), value=3)
    wide["ref_log_probs", "full"] = nn.functional.pad(td["ref_log_probs", "full"], (2, 1), value=float("nan"))
    for key in ("all_attention_mask", "all_assistant_mask"):
        wide["masks", key] = nn.functional.pad(td["masks", key], (2, 1))
    torch.testing.assert_close(loss(wide)["loss_dpo"], expected, rtol=1e-12, atol=0)


def test_preferences_keep_the_promises_of_losses(make_batch):
    td, _ = pairs(make_batch, torch.float32)
    td = td.apply(lambda x: x.nan_to_num(0.0, 0.0, 0.0) if x.is_floating_point() else x)
    check_loss(DPOLoss(TokenScorer(nn.Embedding(7, 7))), td, frozen=[("ref_log_probs", "full")])
    with pytest.raises(ShapeError, match=r"the batch must be \[\*B, 2\]"):
        DPOLoss(TokenScorer(nn.Embedding(7, 7)))(td.reshape(6))
    for options in ({"beta": 0}, {"label_smoothing": 0.5}):
        with pytest.raises(ArgumentError):
            DPOLoss(TokenScorer(nn.Embedding(7, 7)), **options)


@pytest.mark.parametrize("center", [None, 0.1])
def test_reward_model(center):
    torch.manual_seed(0)
    network = TensorDictModule(nn.Linear(3, 1), ["features"], ["score"])
    td = TensorDict(features=torch.randn(5, 2, 3), batch_size=[5, 2])
    loss = RewardModelLoss(network, center_rewards_coefficient=center)
    out = check_loss(loss, td)
    scores = network.module(td["features"]).squeeze(-1).tolist()
    total = sum(math.log(1 + math.exp(b - a)) + (center or 0) * (a + b) ** 2 for a, b in scores)
    assert out["loss_reward"].item() == pytest.approx(total / 5, rel=1e-5)
    step = loss.normalize(td)
    torch.testing.assert_close(sum(loss(one)["loss_reward"] for one in step.split(1)), out["loss_reward"])


def test_reward_model_refuses_other_shapes_and_keys():
    with pytest.raises(ContractError, match="must write 'score'"):
        RewardModelLoss(TensorDictModule(nn.Linear(3, 1), ["features"], ["value"]))
    wide = RewardModelLoss(TensorDictModule(nn.Linear(3, 2), ["features"], ["score"]))
    td = TensorDict(features=torch.randn(5, 2, 3), batch_size=[5, 2])
    with pytest.raises(ShapeError, match="the score must be"):
        wide(td)
    with pytest.raises(ShapeError, match="chosen response first"):
        wide(td.reshape(10))
