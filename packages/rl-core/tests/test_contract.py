from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError

GAE = Contract(
    reads=(
        Key(("next", "reward"), (1,), "reward"),
        Key("weight", (1,), "optional weight", optional=True),
        Key("action_log_prob", (), "log-probability", remedy="Build the actor with return_log_prob=True."),
    ),
    writes=(Key("advantage", (1,)),),
)


def test_optional_keys_are_not_required():
    assert GAE.in_keys == [("next", "reward"), "action_log_prob"]
    assert GAE.out_keys == ["advantage"]


def test_read_gives_values_in_declared_order():
    td = TensorDict(
        {"action_log_prob": torch.ones(2), "next": TensorDict({"reward": torch.zeros(2, 1)}, [2])}, batch_size=[2]
    )
    reward, log_prob = GAE.read(td, "Loss")
    assert reward.shape == (2, 1)
    assert log_prob.shape == (2,)


def test_a_missing_key_is_named_with_reader_present_keys_and_remedy():
    td = TensorDict({"next": {"reward": torch.zeros(2, 1)}, "action": torch.zeros(2)}, batch_size=[2])
    with pytest.raises(ContractError) as caught:
        GAE.read(td, "ClipPPOLoss")
    text = str(caught.value)
    assert "ClipPPOLoss reads 'action_log_prob', which nothing in this batch wrote" in text
    assert "next.reward" in text
    assert "return_log_prob=True" in text


def test_a_misplaced_key_is_suggested():
    td = TensorDict({"reward": torch.zeros(2, 1), "action_log_prob": torch.zeros(2)}, batch_size=[2])
    with pytest.raises(ContractError, match=r"Did you mean 'reward'\?"):
        GAE.read(td, "Loss")


def test_rename_keeps_everything_else():
    renamed = GAE.rename({("next", "reward"): ("next", "agents", "reward"), "advantage": "adv"})
    assert renamed.in_keys == [("next", "agents", "reward"), "action_log_prob"]
    assert renamed.out_keys == ["adv"]
    assert renamed.reads[0].doc == "reward"


def test_renaming_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(ContractError, match=r"cannot rename 'advantag'.*did you mean 'advantage'"):
        GAE.rename({"advantag": "adv"})


def test_a_tuple_of_one_is_the_same_key():
    assert Key(("reward",)).name == "reward"


def test_all_absent_keys_of_a_batch_are_named_at_once():
    td = TensorDict({"action": torch.zeros(2)}, batch_size=[2])
    with pytest.raises(ContractError) as caught:
        GAE.read(td, "Loss")
    assert "('next', 'reward')" in str(caught.value)
    assert "'action_log_prob'" in str(caught.value)
    assert str(caught.value).count("keys: action") == 1


@pytest.mark.parametrize("name", [3, None, (), ("a", 3)], ids=str)
def test_what_is_no_key_is_refused(name):
    with pytest.raises(ArgumentError, match="a key is a string or a tuple of strings"):
        Key(name)


@pytest.mark.parametrize("reads", [["a"], ("a",), Key("a")], ids=["list", "strings", "no-tuple"])
def test_a_contract_holds_keys(reads):
    with pytest.raises(ArgumentError, match="reads of a Contract is a tuple of Key objects"):
        Contract(reads=reads)
