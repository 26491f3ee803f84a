"""Losses, gradients, diagnostics and advantages of TRL on the same inputs; `benchmarks/trl_fixtures.py` wrote them."""

import json
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl.llm import (
    SAPO,
    CISPOLoss,
    Correction,
    DAPOLoss,
    DPOLoss,
    DrGRPOLoss,
    GRPOLoss,
    GSPOLoss,
    MCAdvantage,
    PolicyLoss,
    RewardModelLoss,
    RLOOLoss,
    log_probs_of_logits,
)

# Most batches here are off-policy on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*in the first batch the log-ratio")

DATA = json.loads((Path(__file__).parent / "trl.json").read_text())
INPUTS = {key: torch.tensor(value, dtype=torch.float64) for key, value in DATA["inputs"].items()}
TOKENS, MASK = INPUTS["completion_ids"].long(), INPUTS["completion_mask"].bool()


class Logits(nn.Module):
    """Policy with given logits."""

    in_keys = (("tokens", "full"),)
    out_keys = (("log_probs", "full"), ("entropy", "full"))

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(INPUTS["logits"])

    def forward(self, td):
        logits = self.logits.view(*td["tokens", "full"].shape, -1)
        log_prob, entropy = log_probs_of_logits(logits, td["tokens", "full"], chunk=(3, 4))
        return td.set(("log_probs", "full"), log_prob).set(("entropy", "full"), entropy)


LOSSES = {
    "grpo": lambda p: GRPOLoss(p, kl_to_ref_coeff=None),
    "grpo-k3": GRPOLoss,
    "grpo-k3-ratio": lambda p: GRPOLoss(p, kl_importance=True),
    "grpo-delta": lambda p: GRPOLoss(p, dual_clip=1.3, kl_to_ref_coeff=None),
    "dapo": DAPOLoss,
    "dapo-entropy": lambda p: DAPOLoss(p, entropy_coeff=0.05),
    "dapo-correction": lambda p: DAPOLoss(p, clip_epsilon=0.2, correction=Correction("token", cap=1.1)),
    "dapo-off-policy": lambda p: DAPOLoss(p, clip_epsilon=0.2, correction=Correction(None, drift=0.05)),
    "dr_grpo": lambda p: DrGRPOLoss(p, 7),
    "cispo": lambda p: CISPOLoss(p, high=1.2),
    "sapo": lambda p: PolicyLoss(p, SAPO(), ratio="token", normalizer="sequence"),
    "gspo": lambda p: GSPOLoss(p, clip_epsilon=(3e-2, 4e-2)),
    "rloo": RLOOLoss,
}


def batch(name):
    sampled = INPUTS[
        "sampling_per_token_logps" if name in ("dapo-correction", "dapo-off-policy") else "old_per_token_logps"
    ]
    return TensorDict(
        {
            "tokens": {"full": TOKENS},
            "masks": {"all_assistant_mask": MASK},
            "log_probs": {"full": sampled},
            "old_log_probs": {"full": INPUTS["old_per_token_logps"]},
            "ref_log_probs": {"full": INPUTS["ref_per_token_logps"]},
            "advantage": INPUTS["advantages"].unsqueeze(-1),
        },
        batch_size=[4],
    )


def test_all_cases_are_compared():
    assert {*LOSSES, "dpo", "reward"} == {*DATA["cases"]}


@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses(name):
    policy, wanted = Logits(), DATA["cases"][name]
    out = LOSSES[name](policy)(batch(name))
    loss = sum(value for key, value in out.items() if key.startswith("loss"))
    assert loss.item() == pytest.approx(wanted["loss"], rel=1e-6, abs=1e-9)
    (gradient,) = torch.autograd.grad(loss, policy.logits)
    expected = torch.tensor(wanted["gradient"], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)
    same = {"kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}
    compared = same & {*wanted["metrics"]}
    assert "entropy" in compared
    for key in compared:
        assert out[key].item() == pytest.approx(wanted["metrics"][key], rel=1e-6, abs=1e-8), key


def test_preferences():
    policy, wanted = Logits(), DATA["cases"]["dpo"]
    pairs = torch.tensor([[0, 2], [1, 3]])  # TRL's rows are chosen responses, then rejected ones
    td = batch("dpo")[pairs]

    class Pairs(Logits):
        def forward(self, td):
            self_logits, tokens = self.logits[pairs], td["tokens", "full"]
            return td.set(("log_probs", "full"), log_probs_of_logits(self_logits, tokens)[0])

    policy = Pairs()
    out = DPOLoss(policy)(td)
    assert out["loss_dpo"].item() == pytest.approx(wanted["loss"], rel=1e-6)
    (gradient,) = torch.autograd.grad(out["loss_dpo"], policy.logits)
    torch.testing.assert_close(gradient, torch.tensor(wanted["gradient"], dtype=torch.float64), rtol=1e-6, atol=1e-8)
    for key in set(out.keys()) - {"loss_dpo"}:
        assert out[key].item() == pytest.approx(wanted["metrics"][key], rel=1e-6), key


def test_reward_model():
    wanted = DATA["cases"]["reward"]
    scores = torch.tensor(wanted["scores"], dtype=torch.float64)
    network = TensorDictModule(nn.Linear(1, 1, bias=False, dtype=torch.float64), ["features"], ["score"])
    nn.init.ones_(network.module.weight)
    features = scores[torch.tensor([[0, 2], [1, 3]])].clone().requires_grad_()
    loss = RewardModelLoss(network, center_rewards_coefficient=0.01)
    out = loss(TensorDict(features=features, batch_size=[2, 2]))
    assert out["loss_reward"].item() == pytest.approx(wanted["loss"], rel=1e-6)
    (gradient,) = torch.autograd.grad(out["loss_reward"], features)
    expected = torch.tensor(wanted["gradient"], dtype=torch.float64)[torch.tensor([[0, 2], [1, 3]])]
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
    for key in set(out.keys()) - {"loss_reward"}:
        assert out[key].item() == pytest.approx(wanted["metrics"][key], rel=1e-6), key


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("group/sum_then_normalize", {}),
        ("batch/sum_then_normalize", {"scale": "batch"}),
        ("none/sum_then_normalize", {"scale": None}),
        ("group/normalize_then_sum", {"per_reward": True}),
    ],
)
def test_advantages(name, options):
    rewards = torch.tensor(
        [[float("nan") if x is None else x for x in row] for row in DATA["rewards"]], dtype=torch.float64
    )
    td = TensorDict({"next": {"reward": rewards}}, batch_size=[12])
    found = MCAdvantage(4, reward_weights=(1.0, 0.5), **options)(td)["advantage"].squeeze(-1)
    expected = torch.tensor(DATA["advantages"][name], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
