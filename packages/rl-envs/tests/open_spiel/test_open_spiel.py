from __future__ import annotations

import sys

import pytest
import torch

from rl.core.errors import ArgumentError, MissingExtraError, SpecError, UnknownComponentError
from rl.envs import ActionMask, Compose, MarlGroupMapType, OpenSpielEnv, OpenSpielWrapper, SerialEnv, TransformedEnv
from rl.testing import check_env

pyspiel = pytest.importorskip("pyspiel")

GAMES = ["tic_tac_toe", "leduc_poker", "goofspiel(num_cards=4)", "backgammon", "matrix_rps", "kuhn_poker(players=3)"]


@pytest.mark.parametrize("name", GAMES)
def test_a_thousand_steps_are_those_of_the_library(name):
    """Chance takes the first outcome, so that both play the same game."""
    first = lambda state: state.chance_outcomes()[0][0]
    env = OpenSpielEnv(name, categorical_actions=True, chance_sampler=first)
    torch.manual_seed(0)
    steps = ends = 0
    state, root = None, None
    while steps < 1000:
        if state is None or state.is_terminal():
            state, root = env.game.new_initial_state(), env.reset()
            while state.is_chance_node():
                state.apply_action(first(state))
            ends += 1
        look = state.observation_tensor if state.get_game().get_type().provides_observation_tensor else None
        for player in range(env.game.num_players()):
            if look is not None:
                seen = root["agents", "observation"][player].flatten()
                assert torch.equal(seen, torch.tensor(look(player), dtype=torch.float32))
            legal = state.legal_actions(player)
            assert root["agents", "mask"][player].item() == bool(legal)
            if legal:
                assert root["agents", "action_mask"][player].nonzero().flatten().tolist() == legal
        assert root["current_player"].item() == int(state.current_player())
        masks = root["agents", "action_mask"].double()
        action = torch.multinomial(masks, 1).squeeze(-1)
        before = state.returns()
        if state.is_simultaneous_node():
            state.apply_actions(action.tolist())
        else:
            state.apply_action(action[state.current_player()].item())
        while state.is_chance_node():
            state.apply_action(first(state))
        out = env.step(root.set(("agents", "action"), action))["next"]
        gained = [after - old for after, old in zip(state.returns(), before, strict=True)]
        assert out["agents", "reward"].flatten().tolist() == pytest.approx(gained)
        assert out["terminated"].item() == out["done"].item() == state.is_terminal()
        root = env.step_mdp(env.fake_tensordict().update({"next": out}))
        steps += 1
    assert ends > 1


def test_chance_follows_the_seed_and_its_probabilities():
    env = OpenSpielEnv("kuhn_poker")
    env.set_seed(4)
    deals = [env.reset()["agents", "observation"] for _ in range(300)]
    env.set_seed(4)
    assert all(torch.equal(env.reset()["agents", "observation"], deal) for deal in deals)
    cards = torch.stack(deals)[:, 0, 2:5].mean(0)
    assert torch.allclose(cards, torch.full((3,), 1 / 3), atol=0.1)


@pytest.mark.parametrize("name", ["kuhn_poker", "matrix_rps"])
def test_conformance_of_games_in_which_every_action_is_legal(name):
    check_env(lambda: OpenSpielEnv(name))


@pytest.mark.parametrize("kwargs", [{}, {"group_map": MarlGroupMapType.ONE_GROUP_PER_AGENT}], ids=["group", "each"])
def test_conformance_of_games_with_illegal_actions(kwargs):
    groups = list(OpenSpielEnv("leduc_poker", **kwargs).group_map)

    def make():
        masks = [ActionMask((group, "action"), (group, "action_mask")) for group in groups]
        return TransformedEnv(SerialEnv(2, lambda: OpenSpielEnv("leduc_poker", **kwargs)), Compose(*masks))

    check_env(make, steps=30)


def test_a_collector_runs():
    collectors = pytest.importorskip("rl.collectors")
    env = TransformedEnv(OpenSpielEnv("tic_tac_toe"), ActionMask(("agents", "action"), ("agents", "action_mask")))
    batch = collectors.Collector(env, frames_per_batch=60).collect()
    assert batch["next", "done"].sum() >= 6


def test_groups_state_and_batches():
    env = OpenSpielEnv("tic_tac_toe", group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT, return_state=True)
    root = env.reset()
    assert root["player_0", "action_mask"].shape == (9,)
    assert isinstance(root["state"], str)
    begun = pyspiel.load_game("tic_tac_toe").new_initial_state()
    begun.apply_action(4)
    late = OpenSpielWrapper(begun, categorical_actions=True)
    assert late.reset()["current_player"].item() == 1
    assert not late.reset()["agents", "action_mask"][1, 4]
    keys = ("agents", "action"), ("agents", "action_mask")
    serial = TransformedEnv(SerialEnv(2, lambda: OpenSpielEnv("tic_tac_toe")), ActionMask(*keys))
    data = serial.rollout(30, break_when_any_done=False)
    assert data["next", "done"].any()


def test_a_saved_game_continues():
    env, other = (
        OpenSpielEnv("leduc_poker", categorical_actions=True),
        OpenSpielEnv("leduc_poker", categorical_actions=True),
    )
    root = env.step_mdp(env.step(env.reset().set(("agents", "action"), torch.tensor([1, 1]))))
    other.load_state_dict(env.state_dict())
    root["agents", "action"] = torch.tensor([1, 1])
    one, two = env.step(root.clone())["next"], other.step(root.clone())["next"]
    assert torch.equal(one["agents", "observation"], two["agents", "observation"])


def test_wrong_input_is_refused(monkeypatch):
    with pytest.raises(UnknownComponentError, match="Did you mean 'tic_tac_toe'"):
        OpenSpielEnv("tictactoe")
    with pytest.raises(ArgumentError, match=r"wraps a pyspiel.Game or pyspiel.State"):
        OpenSpielWrapper("chess")
    env = OpenSpielEnv("tic_tac_toe", categorical_actions=True)
    root = env.reset().set(("agents", "action"), torch.tensor([4, 0]))
    root = env.step_mdp(env.step(root)).set(("agents", "action"), torch.tensor([0, 4]))
    with pytest.raises(SpecError, match=r"action 4 of player 1 is illegal; legal are \[0, 1, 2, 3, 5"):
        env.step(root)
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(MissingExtraError, match=r'pip install "rl-envs\[open-spiel\]"'):
        OpenSpielEnv("chess")
