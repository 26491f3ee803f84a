"""PPO without its diagnostics: the same losses, and nothing else."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule

from rl.objectives import ClipPPOLoss, PPOLoss


@pytest.mark.parametrize("kind", [PPOLoss, ClipPPOLoss])
def test_without_diagnostics_the_losses_are_the_same_and_all_that_is_declared(kind):
    body = TensorDictModule(torch.nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    actor = ProbabilisticTensorDictSequential(body, head)
    critic = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
    batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
    batch = batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
    full, lean = kind(actor, critic)(batch), kind(actor, critic, diagnostics=False)
    out = lean(batch)
    assert list(out.keys()) == lean.out_keys == ["loss_objective", "loss_critic", "loss_entropy"]
    for key in lean.out_keys:
        assert torch.equal(out[key], full[key])
    lean.diagnostics = True
    assert lean.out_keys == list(full.keys()) == list(lean(batch).keys())
