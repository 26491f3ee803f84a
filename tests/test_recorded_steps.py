"""Steps that are replayed from CUDA graphs: on a GPU, and on the CPU with a double that runs the steps again."""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl.collectors import Collector
from rl.collectors import _loops as recorded  # a recording needs CUDA: a double takes its place
from rl.collectors._loops import LeafLoop
from rl.core.errors import ArgumentError, BackendError
from rl.envs import CartPoleEnv, Compose, RewardSum, StepCounter, TransformedEnv


def parts(steps):
    return [*steps.roots, *steps.nexts, steps.last]


def run_again(call, device, generators):
    """What a CUDA graph does: record without running, then write into the same memory each time."""
    assert device.type == "cpu"
    before = [generator.get_state() for generator in generators]
    result = call()
    for generator, state in zip(generators, before, strict=True):
        generator.set_state(state)

    def replay():
        again = call()
        for old, new in zip(parts(result), parts(again), strict=True):
            for key, leaf in new.items():
                old[key].copy_(leaf)

    return result, replay


@pytest.fixture
def device(request, monkeypatch):
    if request.param == "cuda":
        return "cuda"
    monkeypatch.setattr(recorded, "record", run_again)
    monkeypatch.setattr("rl.collectors._runner._check_recordable", lambda *_, **__: None)
    return "cpu"


each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)


def pole(device, copies=16):
    return TransformedEnv(CartPoleEnv([copies], device=device, seed=3), Compose(RewardSum(), StepCounter(max_steps=20)))


def policy_on(device):
    torch.manual_seed(0)
    module = nn.Linear(4, 2, device=device)
    return TensorDictModule(
        lambda o: nn.functional.one_hot(module(o).argmax(-1), 2), in_keys=["observation"], out_keys=["action"]
    ), module


@pytest.fixture
def always_reset(monkeypatch):
    """The plain loop resets after each step, too, so that both draw the same start states."""
    made = LeafLoop.__init__
    monkeypatch.setattr(LeafLoop, "__init__", lambda self, *args, reads_done=True: made(self, *args, reads_done=False))


@each_device
@pytest.mark.parametrize(("frames", "random"), [(16 * 5, 0), (16 * 70, 0), (16 * 12, 16 * 15)])
def test_replayed_steps_are_those_of_the_loop(device, always_reset, frames, random):
    policy, module = policy_on(device)
    sides = [
        Collector(pole(device), policy, frames_per_batch=frames, init_random_frames=random, cudagraph=graph)
        for graph in (False, True)
    ]
    assert sides[1].path == "leaves, CUDA graph"
    for number in range(8):
        if number == 5:
            with torch.no_grad():
                module.weight.neg_()  # an update in place is seen
        torch.manual_seed(number)
        plain = sides[0].collect()
        torch.manual_seed(number)
        replayed = sides[1].collect()
        assert {*replayed.keys(True)} == {*plain.keys(True)}
        if not random:
            for key in plain.keys(include_nested=True, leaves_only=True):
                torch.testing.assert_close(replayed[key], plain[key], msg=lambda text, k=key: f"{k}: {text}")
        after = replayed["next", "episode_reward"].squeeze(-1)
        begins = replayed["step_count"].squeeze(-1) == 0
        assert (replayed["episode_reward"].squeeze(-1)[begins] == 0).all()
        assert (after <= 20).all()
        assert (replayed["next", "step_count"] == replayed["step_count"] + 1).all()


@each_device
def test_a_batch_is_not_overwritten_by_the_next_one(device):
    collector = Collector(pole(device), policy_on(device)[0], frames_per_batch=16 * 4, cudagraph=True)
    for _ in range(3):
        collector.collect()
    batch = collector.collect()
    kept = batch.clone()
    state = collector.state_dict()
    collector.collect()
    assert (batch == kept).all()
    again = Collector(pole(device), policy_on(device)[0], frames_per_batch=16 * 4, cudagraph=True)
    again.load_state_dict(state)
    first = again.collect()
    assert torch.equal(first["observation"][:, 0], batch["next", "observation"][:, -1]) or bool(
        batch["next", "done"][:, -1].any()
    )


@pytest.mark.gpu
def test_random_numbers_go_on_between_replays():
    env = CartPoleEnv([8], device="cuda", seed=0)
    noise = TensorDictModule(
        lambda o: nn.functional.one_hot((torch.rand_like(o[..., 0]) < 0.5).long(), 2),
        in_keys=["observation"],
        out_keys=["action"],
    )
    collector = Collector(env, noise, frames_per_batch=8 * 16, cudagraph=True)
    batches = [collector.collect()["action"] for _ in range(5)]
    assert not any(torch.equal(one, other) for i, one in enumerate(batches) for other in batches[:i])
    ids = ("collector", "traj_ids")
    starts = []
    for batch in (collector.collect() for _ in range(3)):
        begins = batch[ids].diff(dim=1, prepend=batch[ids][:, :1] - 1) != 0
        starts.append(batch["observation"][begins])
    starts = torch.cat(starts)
    assert len(starts.unique(dim=0)) == len(starts)


@pytest.mark.gpu
def test_what_reads_the_device_cannot_be_recorded():
    reads = TensorDictModule(
        lambda o: nn.functional.one_hot((o[..., 0] > o.mean().item()).long(), 2), ["observation"], ["action"]
    )
    collector = Collector(CartPoleEnv([8], device="cuda"), reads, frames_per_batch=16, cudagraph=True)
    for _ in range(2):  # step by step
        collector.collect()
    with pytest.raises(BackendError, match=r"steps of CartPoleEnv with .* cannot be recorded"):
        collector.collect()


def test_settings_that_exclude_a_recording():
    with pytest.raises(ArgumentError, match=r"one CUDA device, and CartPoleEnv with .* is on cpu: create them there"):
        Collector(CartPoleEnv([2]), policy_on("cpu")[0], frames_per_batch=4, cudagraph=True)
    with pytest.raises(ArgumentError, match="got both"):
        Collector(CartPoleEnv([2]), policy_on("cpu")[0], frames_per_batch=4, cudagraph=True, cudagraph_policy=True)
