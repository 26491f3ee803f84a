"""Environments whose step is a learned model."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl.core.errors import ArgumentError, ContractError, RLError, SpecError
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs import (
    DreamerDecoder,
    DreamerEnv,
    ImaginedEnv,
    ModelBasedEnvBase,
    PendulumEnv,
    StepCounter,
    TransformedEnv,
    WorldModelEnv,
)
from rl.testing import check_env

ROOT = ["state", "belief", "action"]


class Cell(nn.Module):
    """A recurrent cell: state [2], belief [3], action [1]."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(3, 3), nn.Linear(3, 2)

    def forward(self, state, belief, action):
        flat = torch.cat([state, action], -1).reshape(-1, 3)
        belief = self.cell(flat, belief.reshape(-1, 3)).view(*belief.shape)
        return self.out(belief), belief


def dreamer_env(batch_size=None, *, below=False, **options):
    torch.manual_seed(0)
    where = (lambda name: ("next", name)) if below else (lambda name: name)
    model = TensorDictSequential(
        TensorDictModule(Cell(), ROOT, [where("state"), where("belief")]),
        TensorDictModule(nn.Linear(2, 1), [where("state")], [where("reward")]),
    )
    decoder = TensorDictModule(nn.Linear(2, 3), ["state"], ["reco_pixels"])
    env = DreamerEnv(model, (2,), (3,), decoder, batch_size=batch_size, **options)
    return env.set_specs_from_env(PendulumEnv())


def starts(count):
    torch.manual_seed(1)
    return TensorDict(state=torch.randn(count, 2), belief=torch.randn(count, 3), batch_size=[count])


class LatentModel(nn.Module):
    """The form of `WorldModel` of rl-modules: an encoder, and a step in its latent state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = TensorDictModule(nn.Linear(3, 2), ["observation"], ["latent"])
        self.step_module = TensorDictSequential(
            TensorDictModule(torch.add, ["latent", "action"], [("next", "latent")]),
            TensorDictModule(nn.Linear(2, 1), [("next", "latent")], [("next", "reward")]),
        )


def observed(size):
    return PendulumEnv(seed=5).with_batch(size).reset().select("observation")


@pytest.mark.parametrize("below", [False, True], ids=["root", "next"])
def test_imagination_is_that_of_a_plain_loop_of_the_same_cells(below):
    env, begin = dreamer_env(below=below), starts(50)
    actor = nn.Linear(5, 1)
    policy = TensorDictModule(lambda s, b: torch.tanh(actor(torch.cat([s, b], -1))), ["state", "belief"], ["action"])
    found = env.rollout(15, policy, tensordict=begin.clone())
    cell, reward = (part.module for part in env.world_model)
    state, belief = begin["state"], begin["belief"]
    for step in range(15):
        action = torch.tanh(actor(torch.cat([state, belief], -1)))
        torch.testing.assert_close(found["action"][:, step], action)
        state, belief = cell(state, belief, action)
        torch.testing.assert_close(found["next", "state"][:, step], state)
        torch.testing.assert_close(found["next", "belief"][:, step], belief)
        torch.testing.assert_close(found["next", "reward"][:, step], reward(state))


def test_gradients_flow_through_imagination_to_policy_start_and_model():
    env, begin = dreamer_env(), starts(4)
    actor = nn.Linear(2, 1)
    begin["state"].requires_grad_()
    found = env.rollout(3, TensorDictModule(actor, ["state"], ["action"]), tensordict=begin)
    found["next", "reward"][:, -1].sum().backward()
    for leaf in (*actor.parameters(), *env.world_model.parameters(), begin["state"]):
        assert leaf.grad.abs().sum() > 0


def test_imagined_return_of_a_chain_of_three_states_is_its_known_value():
    # 0 -> 1 -> 2 -> end, with the rewards 1, 2, 4
    def move(observation, action):
        del action
        return observation.roll(1, -1), observation @ torch.tensor([[1.0], [2.0], [4.0]]), observation[..., 2:] > 0.5

    keys = [("next", "observation"), ("next", "reward"), ("next", "terminated")]
    env = ModelBasedEnvBase(TensorDictModule(move, ["observation", "action"], keys))
    env.observation_spec = Composite(observation=Bounded(0, 1, shape=(3,)))
    env.state_spec = env.observation_spec_unbatched.clone()
    env.action_spec = Bounded(-1, 1, shape=(1,))
    steps = env.rollout(10, tensordict=TensorDict(observation=torch.eye(3)[:1], batch_size=[1]))
    assert steps.shape == (1, 3)
    discounts = 0.5 ** torch.arange(3)
    assert (steps["next", "reward"][0, :, 0] * discounts).sum() == 1 + 2 * 0.5 + 4 * 0.25
    assert steps["next", "done"].flatten().tolist() == [False, False, True]


@pytest.mark.parametrize("batch", [[], [3]])
def test_dreamer_env_conforms(batch):
    check_env(lambda: dreamer_env(batch), steps=40)


@pytest.mark.parametrize("batch", [[], [3]])
def test_world_model_env_conforms_with_a_start_and_a_termination(batch):
    def make():
        env = WorldModelEnv(
            LatentModel(),
            PendulumEnv(),
            batch_size=batch,
            start=lambda size: TensorDict(observation=torch.ones(*size, 3), batch_size=size),
            termination=lambda td: td["next", "latent"].sum(-1, keepdim=True).abs() > 4,
        )
        return TransformedEnv(env, StepCounter(max_steps=10))

    check_env(make, steps=40)


def test_imagined_env_conforms():
    def widen(observation, action):
        return observation["mean"] + 0.1 * action, observation["var"] + torch.eye(3)

    keys = [("next", "observation", "mean"), ("next", "observation", "var")]
    module = TensorDictModule(widen, ["observation", "action"], keys)
    check_env(lambda: ImaginedEnv(module, PendulumEnv(), batch_size=[3]), steps=40)


def test_a_base_env_draws_its_starts_from_the_specs_by_its_seed():
    env = dreamer_env([4])
    env.set_seed(1)
    one = env.reset()
    env.set_seed(1)
    assert (env.reset()["state"] == one["state"]).all()
    assert (env.reset()["state"] != one["state"]).any()


def test_a_reset_begins_in_the_given_states_and_a_partial_one_in_those_of_start():
    env = dreamer_env(
        [3], start=lambda size: TensorDict(state=torch.full((3, 2), 7.0), belief=torch.zeros(3, 3), batch_size=size)
    )
    begin = starts(3)
    root = env.reset(begin.clone())
    assert (root["state"] == begin["state"]).all()
    assert not root["done"].any()
    root["_reset"] = torch.tensor([[True], [False], [False]])
    again = env.reset(root)
    assert (again["state"][0] == 7).all()
    assert (again["state"][1:] == begin["state"][1:]).all()


def test_a_reset_with_a_part_of_the_state_is_rejected():
    with pytest.raises(ContractError, match="belief"):
        dreamer_env().reset(TensorDict(state=torch.zeros(2, 2), batch_size=[2]))


def test_world_model_env_encodes_what_it_begins_in_once():
    model, begin = LatentModel(), observed([6])
    env = WorldModelEnv(model, PendulumEnv())
    assert env.observation_keys == env.state_keys == ["latent"]
    assert env.observation_spec["latent"].shape == (2,)
    steps = env.rollout(3, tensordict=begin.clone())
    latent = model.encoder.module(begin["observation"])
    torch.testing.assert_close(steps["latent"][:, 0], latent)
    torch.testing.assert_close(steps["next", "latent"][:, -1], latent + steps["action"].sum(1))
    given = env.reset(TensorDict(latent=torch.ones(2, 2), observation=torch.ones(2, 3), batch_size=[2]))
    assert (given["latent"] == 1).all()


def test_world_model_env_has_no_states_of_its_own_to_begin_in():
    with pytest.raises(RLError, match="start="):
        WorldModelEnv(LatentModel(), PendulumEnv()).reset()


def test_a_model_without_a_latent_state_steps_in_the_observations_of_the_real_environment():
    keys = [("next", "observation"), ("next", "reward")]
    model = TensorDictModule(lambda o, a: (o + a, o[..., :1]), ["observation", "action"], keys)
    real = PendulumEnv()
    env = WorldModelEnv(model, real, start=observed)
    assert env.reset()["observation"].shape == (3,)
    assert env.observation_keys == ["observation"]
    assert env.action_spec == real.action_spec
    assert env.state_keys == env.observation_keys


def test_the_termination_function_reads_what_the_model_writes():
    env = dreamer_env(termination=lambda td: td["belief"][..., :1] > 0)
    steps = env.rollout(5, tensordict=starts(30), break_when_any_done=False)
    assert (steps["next", "terminated"] == (steps["next", "belief"][..., :1] > 0)).all()
    assert steps["next", "done"].any()
    assert not steps["next", "done"].all()


def test_imagined_env_begins_certain_and_has_no_reward_of_its_own():
    keys = [("next", "observation", "mean"), ("next", "observation", "var")]
    module = TensorDictModule(lambda o, a: (o["mean"], o["var"] + a[..., None]), ["observation", "action"], keys)
    env = ImaginedEnv(module, PendulumEnv())
    begin = observed([2])
    root = env.reset(begin.clone())
    assert (root["observation", "mean"] == begin["observation"]).all()
    assert (root["observation", "var"] == 0).all()
    both = TensorDict(mean=torch.ones(2, 3), var=torch.ones(2, 3, 3), batch_size=[2])
    steps = env.rollout(2, tensordict=TensorDict(observation=both, batch_size=[2]))
    assert (steps["observation", "var"][:, 0] == 1).all()
    assert (steps["next", "reward"] == 0).all()


def test_the_decoder_writes_observations_after_resets_and_steps():
    env = dreamer_env([2])
    decoded = env.append_transform(DreamerDecoder())
    assert decoded.observation_spec["reco_pixels"].shape == (2, 3)
    steps = decoded.rollout(3)
    decode = env.obs_decoder.module
    torch.testing.assert_close(steps["reco_pixels"], decode(steps["state"]))
    torch.testing.assert_close(steps["next", "reco_pixels"], decode(steps["next", "state"]))
    check_env(lambda: dreamer_env([2]).append_transform(DreamerDecoder()), steps=20)


def test_decode_obs_takes_a_step_before_if_asked():
    env, begin = dreamer_env(), starts(2)
    begin["action"] = torch.ones(2, 1)
    still = env.decode_obs(begin.clone())["reco_pixels"]
    torch.testing.assert_close(still, env.obs_decoder.module(begin["state"]))
    moved = env.decode_obs(begin.clone(), compute_latents=True)
    torch.testing.assert_close(moved["state"], env.step(begin.clone())["next", "state"])


def test_an_environment_without_a_decoder_decodes_nothing():
    env = DreamerEnv(dreamer_env().world_model, (2,), (3,)).set_specs_from_env(PendulumEnv())
    with pytest.raises(RLError, match="obs_decoder"):
        env.decode_obs(starts(1))
    with pytest.raises(RLError, match="obs_decoder"):
        env.append_transform(DreamerDecoder())


def test_a_module_without_keys_and_a_model_without_a_reward_are_rejected():
    with pytest.raises(ArgumentError, match="in_keys"):
        DreamerEnv(nn.Linear(2, 2), (2,), (2,))
    module = TensorDictModule(torch.add, ["state", "action"], [("next", "state")])
    env = ModelBasedEnvBase(module)
    env.observation_spec = Composite(state=Unbounded((1,)))
    env.action_spec = Unbounded((1,))
    with pytest.raises(SpecError, match="reward"):
        env.rollout(1)
