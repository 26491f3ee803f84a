"""Planners on a point that is pushed to the origin, and in a latent space with known values."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Bernoulli, Independent, Normal

from rl.core import ExplorationType, set_exploration_type, states_of
from rl.core.errors import ArgumentError, ContractError
from rl.core.specs import Bounded, Composite, Unbounded
from rl.modules import CEMPlanner, MPCPlannerBase, MPPIPlanner, TDMPC2Planner


class Point:
    """A point that moves by half of the action; the reward is minus its squared distance to the origin."""

    batch_size = torch.Size([])
    observation_spec = Composite(position=Unbounded((2,)))
    full_action_spec = Composite(action=Bounded(-1, 1, (2,)))

    def step(self, td):
        position = td["position"] + 0.5 * td["action"]
        reward = -position.square().sum(-1, keepdim=True)
        ended = position.abs().amax(-1, keepdim=True) > 50
        after = {"position": position, "reward": reward, "done": ended, "terminated": ended}
        return td.set("next", TensorDict(after, batch_size=td.batch_size))


class Advantage(nn.Module):
    def forward(self, td):
        total = td["next", "reward"].sum(-2, keepdim=True).expand_as(td["next", "reward"])
        return td.set("advantage", total)


def cem(**options):
    return CEMPlanner(Point(), 3, 4, 64, 8, **options)


def mppi():
    return MPPIPlanner(Point(), Advantage(), 2.0, 3, 4, 64, 8)


@pytest.mark.parametrize("make", [cem, mppi])
def test_a_planner_moves_each_point_of_a_batch_to_the_origin(make):
    torch.manual_seed(0)
    planner = make()
    start = torch.tensor([[1.0, -1.0], [-2.0, 0.5], [0.0, 0.0]])
    td = TensorDict(position=start, plan=torch.zeros(3, 3, 2), batch_size=[3])
    for _ in range(8):
        td = planner(td)
        assert td["action"].abs().max() <= 1
        plan = td["next", "plan"]
        td = TensorDict(position=Point().step(td)["next", "position"], plan=plan, batch_size=[3])
    assert td["position"].abs().max() < 0.25
    first = planner(TensorDict(position=torch.tensor([5.0, -5.0])))
    assert first["action"].shape == (2,)
    torch.testing.assert_close(first["action"].sign(), torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize("make", [cem, mppi])
def test_the_plan_is_a_recurrent_state_and_a_restored_one_goes_on_exactly(make):
    torch.manual_seed(0)
    planner = make()
    (state,) = states_of(planner)
    assert state.name == "plan"
    assert state.start((4,)).shape == (4, 3, 2)
    assert not state.start().any()
    assert planner.in_keys == ["position", "plan"]
    assert planner.out_keys == ["action", ("next", "plan")]
    position = torch.randn(4, 2)
    plan = planner(TensorDict(position=position, plan=state.start((4,)), batch_size=[4]))["next", "plan"]
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(make()(TensorDict(position=position, plan=plan.clone(), batch_size=[4]))["action"])
    assert torch.equal(*found)
    shifted = planner.start(TensorDict(plan=plan, batch_size=[4]), plan)
    torch.testing.assert_close(shifted[:, :2], plan[:, 1:])
    assert not shifted[:, 2].any()


def test_rewards_after_the_end_of_an_episode_are_left_out():
    planner = CEMPlanner(Point(), 3, 1, 2, 1)
    td = TensorDict(position=torch.tensor([[50.0, 0.0]]), batch_size=[1])
    steps = planner.simulate(td, torch.tensor([[[[1.0, 0.0]] * 3, [[-1.0, 0.0]] * 3]]))
    assert steps.shape == (1, 2, 3)
    assert steps["next", "terminated"][0, 0, :, 0].tolist() == [True, True, True]
    from rl.modules.planners._mpc import total_reward  # private: its sum decides which plan is the best

    rewards = steps["next", "reward"][0, :, :, 0]
    expected = torch.stack((rewards[0, 0], rewards[1].sum()))
    torch.testing.assert_close(total_reward(steps, ("next", "reward"))[0], expected)


def test_bad_arguments_are_refused():
    class Locked(Point):
        batch_locked = True
        batch_size = torch.Size([3])

    with pytest.raises(ArgumentError, match="locked to the batch"):
        CEMPlanner(Locked(), 3, 4, 8, 2)
    with pytest.raises(ArgumentError, match="top_k=9"):
        CEMPlanner(Point(), 3, 4, 8, 9)
    with pytest.raises(ArgumentError, match="planning_horizon"):
        CEMPlanner(Point(), 0, 4, 8, 2)
    with pytest.raises(ContractError, match="pass a value estimator"):
        MPPIPlanner(Point(), nn.Identity(), 1.0, 3, 4, 8, 2)(TensorDict(position=torch.zeros(2)))

    class Flat(Point):
        full_action_spec = Composite(action=Bounded(-1, 1, ()))

    with pytest.raises(ArgumentError, match="one dimension"):
        CEMPlanner(Flat(), 3, 4, 8, 2)


def test_a_planner_of_ones_own_is_a_method():
    class Zero(MPCPlannerBase):
        def planning(self, td):
            return self.start(td, td["position"])

    assert not Zero(Point(), 2)(TensorDict(position=torch.ones(2)))["action"].any()


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def normal(loc):
    return Independent(Normal(loc, 1e-6), 1)


def bernoulli(logits):
    return Bernoulli(logits=logits, validate_args=False)


def head(function, keys, out, kind=normal, name="loc"):
    body = TensorDictModule(Function(function), keys, [f"{out}_{name}"])
    last = ProbabilisticTensorDictModule({name: body.out_keys[0]}, [out], distribution_class=kind)
    return ProbabilisticTensorDictSequential(body, last)


def latent_planner(value=0.0, policy=0.0, ends=None, **options):
    """The point in a latent space: rewards are minus squared distances, and each critic has a constant value."""
    both = ["latent", "action"]
    return TDMPC2Planner(
        TensorDictModule(nn.Identity(), ["position"], ["latent"]),
        TensorDictModule(Function(lambda z, a: z + 0.5 * a), both, [("next", "latent")]),
        head(lambda z, a: -(z + 0.5 * a).square().sum(-1, keepdim=True), both, "reward"),
        [head(lambda z, a: torch.full_like(z[..., :1], value), both, "value") for _ in range(3)],
        head(lambda z: torch.full_like(z, policy), ["latent"], "action"),
        2,
        terminated_model=ends,
        num_candidates=options.pop("num_candidates", 128),
        num_elites=options.pop("num_elites", 16),
        num_policy_plans=options.pop("num_policy_plans", 8),
        **options,
    )


def test_the_score_of_a_plan_is_its_discounted_return():
    planner = latent_planner(value=7.0, gamma=0.9)
    latent, actions = torch.randn(2, 4, 2), torch.rand(2, 4, 3, 2)
    state, expected = latent, 0.0
    for t in range(3):
        state = state + 0.5 * actions[:, :, t]
        expected = expected - 0.9**t * state.square().sum(-1)
    torch.testing.assert_close(planner.score(latent, actions), expected + 0.9**3 * 7.0)


def test_a_predicted_end_cuts_rewards_and_value():
    ends = head(lambda z: 100 * (z[..., :1] - 1), ["latent"], "end", bernoulli, "logits")
    planner = latent_planner(value=7.0, gamma=0.5, ends=ends)
    latent, actions = torch.zeros(1, 1, 2), torch.ones(1, 1, 3, 2)
    found = planner.score(latent, actions)  # positions 0.5, 1.0, 1.5: the end is predicted at the third
    torch.testing.assert_close(found, torch.tensor([[-0.5 - 0.5 * 2 - 0.25 * 4.5]]))


def test_the_latent_planner_moves_each_point_to_the_origin_and_resumes_exactly():
    torch.manual_seed(0)
    planner = latent_planner()
    td = TensorDict(position=torch.tensor([[1.0, -1.0], [-2.0, 0.5]]), plan=torch.zeros(2, 3, 2), batch_size=[2])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        for _ in range(8):
            before = td.clone()
            torch.manual_seed(5)
            td = planner(td)
            torch.manual_seed(5)
            assert torch.equal(latent_planner()(before)["action"], td["action"])
            position = td["position"] + 0.5 * td["action"]
            td = TensorDict(position=position, plan=td["next", "plan"], batch_size=[2])
    assert td["position"].abs().max() < 0.25
    assert states_of(planner)[0].shape == (3, 2)


def test_the_policy_is_among_the_candidates():
    planner = latent_planner(policy=-0.9, num_candidates=4, num_elites=1, num_policy_plans=4, optim_steps=1)
    td = TensorDict(position=torch.full((3, 2), 5.0), batch_size=[3])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        found = planner(td)
    torch.testing.assert_close(found["action"], torch.full((3, 2), -0.9), atol=1e-3, rtol=0)
    torch.testing.assert_close(found["next", "plan"], torch.full((3, 3, 2), -0.9), atol=1e-3, rtol=0)


def test_random_actions_spread_by_at_least_the_least_deviation_and_stay_inside():
    torch.manual_seed(0)
    planner = latent_planner(min_std=0.3, num_candidates=16, num_elites=4, num_policy_plans=0)
    td = TensorDict(position=torch.zeros(400, 2), batch_size=[400])
    action = planner(td)["action"]
    assert action.abs().max() <= 1
    assert action.std() > 0.25


def test_defaults_are_those_of_the_paper():
    made = latent_planner()
    parts = made.encoder, made.dynamics, made.reward_model, made.qvalue_network, made.actor_network
    planner = TDMPC2Planner(*parts, 2)
    settings = (planner.num_candidates, planner.num_elites, planner.num_policy_plans, planner.planning_horizon)
    assert settings == (512, 64, 24, 3)
    assert (planner.optim_steps, planner.temperature, planner.min_std, planner.max_std) == (6, 0.5, 0.05, 2.0)
    wide = TDMPC2Planner(*parts, 20)
    assert wide.optim_steps == 8
    with pytest.raises(ArgumentError, match="two random critics"):
        TDMPC2Planner(made.encoder, made.dynamics, made.reward_model, made.qvalue_network[:1], made.actor_network, 2)
    with pytest.raises(ArgumentError, match="more elites"):
        latent_planner(num_candidates=8)
