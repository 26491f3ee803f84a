"""Steps in time order whose rows lie anywhere."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ContractError
from rl.objectives.value import GAE


def test_slices_of_environments_side_by_side_are_in_order_if_they_say_so():
    done = torch.tensor([0, 0, 0, 1, 0, 0, 0, 1], dtype=torch.bool).unsqueeze(-1)
    index = torch.tensor([2, 3, 10, 11, 18, 19, 26, 27])
    after = TensorDict(
        done=done, terminated=done, reward=torch.ones(8, 1), state_value=torch.ones(8, 1), batch_size=[8]
    )
    td = TensorDict(index=index, state_value=torch.ones(8, 1), next=after, batch_size=[8])
    estimate = GAE(gamma=0.9, lmbda=0.9, value_network=None)
    with pytest.raises(ContractError, match="'index' jumps"):
        estimate(td.clone())
    td.names = ["time"]
    one, other = estimate(td)["advantage"].view(2, 4)
    torch.testing.assert_close(one, other)  # scans round by their place in the sequence


def test_sequences_that_begin_without_an_end_before_are_not_one_sequence():
    done = torch.zeros(8, 1, dtype=torch.bool)
    after = TensorDict(
        done=done, terminated=done, reward=torch.ones(8, 1), state_value=torch.ones(8, 1), batch_size=[8]
    )
    is_init = torch.tensor([1, 0, 0, 0, 1, 0, 0, 0], dtype=torch.bool).unsqueeze(-1)
    td = TensorDict(is_init=is_init, state_value=torch.ones(8, 1), next=after, batch_size=[8], names=["time"])
    estimate = GAE(gamma=0.9, lmbda=0.9, value_network=None)
    with pytest.raises(ContractError, match="'is_init' is true at step 4, and step 3 is not done"):
        estimate(td.clone())
    one, other = estimate(td.clone().reshape(2, 4))["advantage"]
    torch.testing.assert_close(one, other)  # rows may be computed with different instructions
    td["next", "done"][3] = True
    estimate(td)


def test_flags_may_lack_the_last_dimension_where_values_do():
    done = torch.zeros(2, 4, dtype=torch.bool)
    done[0, 1] = True
    after = TensorDict(done=done, terminated=done, reward=torch.ones(2, 4), state_value=torch.ones(2, 4))
    td = TensorDict(state_value=torch.ones(2, 4), next=after.auto_batch_size_(2), batch_size=[2, 4])
    estimate = GAE(gamma=0.9, lmbda=0.9, value_network=None)
    wide = estimate(td.apply(lambda leaf: leaf.unsqueeze(-1)))
    torch.testing.assert_close(estimate(td)["advantage"], wide["advantage"].squeeze(-1))
