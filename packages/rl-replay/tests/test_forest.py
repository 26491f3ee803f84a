"""`MCTSForest`: trees of rollouts, and the statistics by which a search selects."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.replay import MCTSForest

WIDTH = 6


def state(place):
    return TensorDict(observation=torch.tensor([place]))


def walk(start, actions):
    """A corridor of WIDTH places: action 1 goes right, 0 left; the right end gives 1, the left end 0.1, and ends."""
    rows, place = [], start
    for action in actions:
        after = place + 2 * action - 1
        end = after in (0, WIDTH - 1)
        reward = {0: 0.1, WIDTH - 1: 1.0}.get(after, 0.0)
        following = {
            "observation": torch.tensor([after]),
            "reward": torch.tensor([reward]),
            "done": torch.tensor([end]),
        }
        rows.append(state(place).update({"action": torch.tensor(action), "next": TensorDict(following)}))
        place = after
        if end:
            break
    return torch.stack(rows)


def test_rollouts_share_what_they_have_in_common_and_are_read_back():
    forest = MCTSForest()
    one, two = walk(2, [1, 1, 1]), walk(2, [1, 0, 0, 0])  # 2 3 4 5, and 2 3 2 1 0
    forest.extend(one)
    assert len(forest) == 3
    forest.extend(two)
    assert len(forest) == 6  # (2, 1) was there
    tree = forest.get_tree(state(2))
    assert tree.num_children == 2
    assert (tree.visits, tree.subtree[0].visits, tree.subtree[1].visits) == (3, 2, 1)
    assert (tree.subtree[0].rollout["action"].tolist(), tree.subtree[0].node_data["observation"].item()) == ([1], 3)
    found = tree.rollout_from_path((0, 0))
    assert (found == one).all()
    assert tree.subtree[0].subtree[1].subtree == ()  # back in 2, which is above
    assert list(tree.valid_paths()) == [(0, 0), (0, 1), (1,)]
    assert (tree.num_vertices, tree.max_length) == (5, 2)
    assert (tree.rollout_from_path((1,)) == two[2:]).all()


def test_a_batch_of_rollouts_is_that_of_each_and_an_end_begins_another_episode():
    both, alone = MCTSForest(gamma=0.5), MCTSForest(gamma=0.5)
    one, two = walk(3, [1, 1]), walk(2, [0, 0])
    both.extend(torch.cat((one, two)))
    alone.extend(torch.stack((one, two)))
    for place in (1, 2, 3, 4):
        a, b = both.branches(state(place)), alone.branches(state(place))
        assert (a == b).all()
    assert both.branches(state(3))["win_count"].item() == 0.5
    assert both.branches(state(2))["win_count"].item() == pytest.approx(0.05)


def test_statistics_are_those_of_all_visits_and_of_actions_not_taken_zero():
    forest = MCTSForest()
    for actions in ([1, 1, 1], [1, 1, 1], [0, 0]):
        forest.extend(walk(2, actions))
    node = forest.branches(state(2), actions=torch.tensor([0, 1, 7]))
    assert node["visits"].tolist() == [1, 2, 0]
    assert node["win_count"].tolist() == pytest.approx([0.1, 2.0, 0])
    assert node["total_visits"].item() == 3
    assert forest.branches(state(2))["action"].tolist() == [1, 0]  # in the order of their first visit


def test_a_search_by_upper_confidence_bounds_finds_the_distant_reward():
    """Selection, random continuation and backup: from the place next to the small reward the larger one is found."""
    generator = torch.Generator().manual_seed(0)
    forest, actions = MCTSForest(gamma=0.9), torch.tensor([0, 1])
    for _ in range(200):
        place, taken, random = 1, [], False
        while place not in (0, WIDTH - 1) and len(taken) < 20:
            node = forest.branches(state(place), actions)
            random = random or bool((node["visits"] == 0).any())
            if random:
                action = int(torch.randint(2, (), generator=generator))
            else:
                score = node["win_count"] / node["visits"] + node["total_visits"].sqrt() / (1 + node["visits"])
                action = int(score.argmax())
            taken.append(action)
            place += 2 * action - 1
        forest.extend(walk(1, taken))
    node = forest.branches(state(1), actions)
    assert node["visits"].argmax() == 1
    assert node["visits"][1] > 2 * node["visits"][0]


def test_entries_that_are_absent_and_states_that_are_unknown_are_rejected():
    forest = MCTSForest()
    with pytest.raises(ContractError, match=r"has no 'action', .*'reward'"):
        forest.extend(walk(2, [1]).exclude("action", ("next", "reward")))
    with pytest.raises(ShapeError, match="single step"):
        forest.extend(walk(2, [1])[0])
    assert len(forest) == 0
    forest.extend(walk(2, [1]))
    with pytest.raises(ArgumentError, match="no stored step begins"):
        forest.get_tree(state(4))
    with pytest.raises(ArgumentError, match="pass actions"):
        forest.branches(state(4))
    with pytest.raises(ContractError, match="the state has no 'observation'"):
        forest.get_tree(TensorDict(place=torch.zeros(1)))
    with pytest.raises(ArgumentError, match="number 1 where there are 1"):
        forest.get_tree(state(2)).rollout_from_path((1,))
    with pytest.raises(ArgumentError, match="gamma"):
        MCTSForest(gamma=1.5)


def test_several_keys_identify_a_state():
    forest = MCTSForest(observation_keys=["observation", ("agents", "turn")], done_key="terminated")
    rows = walk(2, [1, 1]).repeat(2).reshape(2, 2)
    rows["agents", "turn"] = torch.tensor([[0, 1], [1, 0]])
    rows["next", "agents", "turn"] = 1 - rows["agents", "turn"]
    rows["next", "terminated"] = rows["next", "done"]
    forest.extend(rows)
    assert len(forest) == 4
    assert forest.get_tree(rows[0, 0]).subtree[0].rollout["agents", "turn"].tolist() == [0, 1]
