"""`check_sequences`: whether a batch may be read as sequences."""

import pytest
import torch
from tensordict import TensorDict

from rl.core import ContractError, State
from rl.core._sequences import check_sequences

H = ("recurrent_state", "h")
STATES = [State(H, (1, 2), owner="LSTMModule")]


def batch(done=(0, 0, 1, 0, 0, 0), rows=2):
    """Steps in time order; the state counts the steps of an episode."""
    over = torch.tensor(done, dtype=torch.bool)
    starts = torch.cat([torch.ones(1, dtype=torch.bool), over[:-1]])
    states, state = [], 0.0
    for first in starts.tolist():
        state = 0.0 if first else state
        states.append(state)
        state += 1
    h = torch.tensor(states)[:, None, None].expand(-1, 1, 2)
    after = TensorDict({"done": over[:, None], H: h + 1}, batch_size=[len(done)])
    td = TensorDict({"is_init": starts[:, None], H: h, "next": after}, batch_size=[len(done)])
    return td if rows is None else torch.stack([td.clone() for _ in range(rows)])


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_what_was_collected_in_order_passes(rows):
    check_sequences(batch(rows=rows), STATES, "PPOLoss")


def test_without_states_nothing_is_asked_for():
    check_sequences(TensorDict(batch_size=[3]), (), "PPOLoss")


def test_a_single_step_passes():
    check_sequences(batch()[:, :1], STATES, "PPOLoss")


def test_slices_that_start_in_mid_trajectory_pass():
    td = batch()[:, 4:].clone()
    td["is_init"][:, 0] = True
    check_sequences(td, STATES, "PPOLoss")


def test_states_that_are_not_stored_are_not_compared():
    check_sequences(batch().exclude(H), STATES, "PPOLoss")
    check_sequences(batch().exclude(("next", *H)), STATES, "PPOLoss")


def test_a_missing_mark_is_refused():
    with pytest.raises(ContractError, match=r"PPOLoss reads 'is_init'.*leak.*Collector.*InitTracker"):
        check_sequences(batch().exclude("is_init"), STATES, "PPOLoss")


def test_a_mark_that_is_never_true_is_refused():
    td = batch()
    td["is_init"].zero_()
    with pytest.raises(ContractError, match="an episode ends at step 2"):
        check_sequences(td, STATES, "PPOLoss")


@pytest.mark.parametrize("element", [0, 1])
def test_one_wrong_element_is_enough(element):
    td = batch()
    td["is_init"][element] = False
    with pytest.raises(ContractError, match="leak"):
        check_sequences(td, STATES, "PPOLoss")


def test_shuffled_steps_are_refused():
    td = batch(done=(0,) * 6, rows=None)[torch.tensor([0, 3, 1, 2, 5, 4])]
    with pytest.raises(ContractError, match=r"not in time order, or were shuffled.*SliceSampler"):
        check_sequences(td, STATES, "PPOLoss")
