"""Padded sequences count as the same sequences without padding."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

from rl.core.errors import ContractError, ShapeError
from rl.objectives import GAE, ClipPPOLoss, DQNLoss, PPOLoss, TDLambdaEstimator

MASK = ("collector", "mask")


def q_net():
    return TensorDictModule(nn.Linear(3, 2), ["observation"], ["action_value"])


def actor_and_critic(seed=None):
    if seed is not None:
        torch.manual_seed(seed)
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    actor = ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"]), head)
    return actor, TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])


def samples(seed=0):
    """Sequences of 1 to 6 steps, padded with noise to 6, and the same steps, one sequence behind the other."""
    torch.manual_seed(seed)
    size = (20, 6)
    steps = torch.randint(1, 7, (20, 1))
    steps[0] = 3
    last = torch.arange(6) == steps - 1
    data = TensorDict(observation=torch.randn(*size, 3), action=torch.randint(2, size), batch_size=size)
    data["action_log_prob"] = -torch.rand(size)
    data["advantage"], data["value_target"], data["state_value"] = (torch.randn(*size, 1) for _ in range(3))
    done = last.unsqueeze(-1)
    after = {"observation": torch.randn(*size, 3), "reward": torch.randn(*size, 1), "done": done}
    data["next"] = TensorDict({**after, "terminated": done & (torch.rand(*size, 1) < 0.5)}, batch_size=size)
    data[MASK] = torch.arange(6) < steps
    real = data[data[MASK]].exclude(MASK[0])
    real.names = ["time"]
    return data, real


def check(loss, padded, real, keys=()):
    """Same figures, same gradients, and nothing of what padding holds."""
    spoiled, unusable = padded.clone(), padded.clone()
    for key in ("observation", "advantage", "value_target", ("next", "observation"), ("next", "reward"), *keys):
        spoiled[key][~spoiled[MASK]] += 1e3
    for leaf in unusable.exclude(MASK[0]).values(include_nested=True, leaves_only=True):
        if leaf.dtype is not torch.bool:
            leaf[~unusable[MASK]] = torch.nan if leaf.is_floating_point() else 9
    expected, gradients = None, None
    for batch in (real, padded, spoiled, unusable):
        out = loss(batch.clone())
        found = torch.autograd.grad(sum(out[key] for key in out.keys() if key.startswith("loss")), [*loss.parameters()])
        if expected is None:
            expected, gradients = out, found
            continue
        for key in expected.keys():
            torch.testing.assert_close(out[key], expected[key], atol=1e-5, rtol=1e-4)
        for one, other in zip(found, gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("double", [False, True])
def test_dqn(double, reduction):
    check(DQNLoss(q_net(), double_dqn=double, reduction=reduction), *samples())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", [PPOLoss, ClipPPOLoss])
def test_ppo(kind, reduction):
    loss = kind(*actor_and_critic(), normalize_advantage=True, clip_value=0.3, reduction=reduction)
    check(loss, *samples())


class Diagonal(torch.distributions.Independent):
    def __init__(self, loc, scale):
        super().__init__(torch.distributions.Normal(loc, scale), 1)


def test_continuous_ppo():
    head = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Diagonal)
    body = nn.Sequential(nn.Linear(3, 4), nn.Softplus())
    split = TensorDictModule(lambda x: x.chunk(2, -1), ["features"], ["loc", "scale"])
    actor = ProbabilisticTensorDictSequential(TensorDictModule(body, ["observation"], ["features"]), split, head)
    batches = samples()
    for batch in batches:
        batch["action"] = torch.ones(*batch.shape, 2)
    check(ClipPPOLoss(actor, actor_and_critic()[1], normalize_advantage=True), *batches)


def test_weights_of_elements_and_masks_go_together():
    padded, real = samples()
    padded["priority_weight"] = torch.rand(padded.batch_size)
    real["priority_weight"] = padded["priority_weight"][padded[MASK]]
    check(DQNLoss(q_net()), padded, real)


@pytest.mark.parametrize("loss", ["dqn", "ppo"])
def test_elements_of_padding_are_zero(loss):
    padded, real = samples()
    module = DQNLoss(q_net(), reduction="none") if loss == "dqn" else PPOLoss(*actor_and_critic(), reduction="none")
    name = "loss" if loss == "dqn" else "loss_objective"
    found, expected = module(padded)[name], module(real)[name]
    assert found.shape == padded.batch_size
    assert not found[~padded[MASK]].any()
    torch.testing.assert_close(found[padded[MASK]], expected)


@pytest.mark.parametrize("average", [False, True])
def test_estimates_of_real_steps_do_not_see_padding(average):
    padded, real = samples()
    critic = actor_and_critic()[1]
    estimators = [GAE(value_network=critic, average_gae=average), TDLambdaEstimator(value_network=critic)]
    for key in ("observation", ("next", "observation"), ("next", "reward")):
        padded[key][~padded[MASK]] = torch.nan
    for estimator in estimators:
        found, expected = estimator(padded.clone()), estimator(real.clone())
        for key in ("advantage", "value_target", "state_value"):
            torch.testing.assert_close(found[key][padded[MASK]], expected[key], atol=1e-5, rtol=1e-4)


def test_a_mask_may_have_a_dimension_of_its_own_or_another_name():
    padded, real = samples()
    loss = DQNLoss(q_net())
    expected = loss(real)["loss"]
    padded[MASK] = padded[MASK].unsqueeze(-1)
    torch.testing.assert_close(loss(padded)["loss"], expected)
    padded.rename_key_(MASK, "valid")
    loss.set_keys(mask="valid")
    torch.testing.assert_close(loss(padded)["loss"], expected)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(20, 6), r"\('collector', 'mask'\) is torch.float32 \[20, 6\], expected bool \[20, 6\]"),
        (torch.ones(20, 6, 2, dtype=torch.bool), r"is torch.bool \[20, 6, 2\], expected bool"),
        (torch.zeros(20, 6, dtype=torch.bool), "is false at each of 120 steps"),
    ],
)
def test_other_masks_are_refused(mask, message):
    padded, _ = samples()
    padded[MASK] = mask
    for loss in (DQNLoss(q_net()), ClipPPOLoss(*actor_and_critic())):
        with pytest.raises(ShapeError, match=message):
            loss(padded.clone())


def test_padding_behind_a_step_that_does_not_end_is_refused_where_returns_would_see_it():
    padded, _ = samples()
    padded["next", "done"].zero_()
    padded["next", "terminated"].zero_()
    critic = actor_and_critic()[1]
    with pytest.raises(ContractError, match=r"GAE: step \d of this batch is the last one before padding"):
        GAE(value_network=critic)(padded)


@pytest.mark.parametrize("kind", [GAE, TDLambdaEstimator])
def test_estimators_read_the_mask_that_the_loss_names(kind):
    padded, _ = samples()
    padded["next", "done"].zero_()
    padded["next", "terminated"].zero_()
    padded.rename_key_(MASK, "valid")
    loss = PPOLoss(*actor_and_critic())
    loss.make_value_estimator(kind(value_network=loss.critic_network))
    loss.set_keys(mask="valid")
    with pytest.raises(ContractError, match=r"last one before padding \('valid' is false after it\)"):
        loss(padded.exclude("advantage", "value_target"))


def test_averages_leave_a_mask_of_another_name_out():
    padded, _ = samples()
    expected = GAE(average_gae=True, value_network=actor_and_critic(seed=1)[1])(padded.clone())["advantage"]
    padded.rename_key_(MASK, "valid")
    estimator = GAE(average_gae=True, value_network=actor_and_critic(seed=1)[1])
    estimator.set_keys(mask="valid")
    torch.testing.assert_close(estimator(padded)["advantage"], expected)


@pytest.mark.parametrize("masked", [False, True])
def test_constant_advantages_have_finite_gradients(masked):
    value = torch.zeros(2, 4, 1, requires_grad=True)
    done = torch.ones(2, 4, 1, dtype=torch.bool)
    after = TensorDict(done=done, terminated=done, reward=torch.ones(2, 4, 1), state_value=torch.zeros(2, 4, 1))
    td = TensorDict(state_value=value, next=after.auto_batch_size_(2), batch_size=[2, 4])
    if masked:
        td[MASK] = torch.arange(4) < torch.tensor([[2], [4]])
    advantage = GAE(average_gae=True, differentiable=True, value_network=None)(td)["advantage"]
    assert advantage.isfinite().all()
    (gradient,) = torch.autograd.grad((advantage * torch.arange(4).unsqueeze(-1)).sum(), value)
    assert gradient.isfinite().all()


def test_steps_of_several_agents_have_one_mask():
    torch.manual_seed(0)
    head = ProbabilisticTensorDictModule(
        ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    actor = ProbabilisticTensorDictSequential(TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"]), head)
    critic = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
    size = (5, 4, 2)  # sequences, steps, agents
    mask = torch.arange(4) < torch.tensor([[1], [2], [3], [4], [4]])
    padded = TensorDict(observation=torch.randn(*size, 3), action=torch.randint(2, size), batch_size=size[:2])
    padded["action_log_prob"] = -torch.rand(size)
    padded["advantage"], padded["value_target"] = torch.randn(*size, 1), torch.randn(*size, 1)
    padded[MASK] = mask
    loss = ClipPPOLoss(actor, critic, normalize_advantage=True)
    found, expected = loss(padded), loss(padded[mask].exclude("collector"))
    for key in expected.keys():
        torch.testing.assert_close(found[key], expected[key])


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_batches_without_rows_need_no_step_that_counts(reduction):
    padded, _ = samples()
    found = DQNLoss(q_net(), reduction=reduction)(padded[:0])["loss"]
    assert found.sum() == 0


def test_masks_are_compiled():
    padded, real = samples()
    loss = DQNLoss(q_net())
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(padded)["loss"], loss(real)["loss"])
    for rows in (17, 13, 5):  # sizes become variables of the graph
        part = padded[:rows]
        torch.testing.assert_close(compiled(part)["loss"], loss(part)["loss"])
