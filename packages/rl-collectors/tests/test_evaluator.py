"""Evaluator: figures of whole episodes, in this process and beside it."""

import multiprocessing
import threading
from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl.collectors import Evaluator
from rl.core.errors import ArgumentError, RLError, WorkerError
from rl.testing import CountingEnv

BACKENDS = ["foreground", "thread", "process"]


class Act(torch.nn.Module):
    """Takes the action that is its weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, observation):
        return self.weight.round().long().expand(observation.shape[:-1])


class Gated(CountingEnv):
    """Its steps wait for a gate."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def step_and_maybe_reset(self, tensordict):
        assert self.gate.wait(60)
        return super().step_and_maybe_reset(tensordict)


def policy():
    return TensorDictModule(Act(), in_keys=["observation"], out_keys=["action"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_figures_of_episodes_with_the_weights_of_the_moment(backend):
    act, seen = policy(), []
    with Evaluator(CountingEnv, act, num_trajectories=4, backend=backend, on_result=seen.append) as evaluator:
        first = evaluator.evaluate(step=7)
        assert (first["eval/reward"], first["eval/reward_std"], first["eval/num_episodes"]) == (3.0, 0.0, 4)
        assert (first["eval/episode_length"], first["eval/step"]) == (3.0, 7)
        with torch.no_grad():
            act.module.weight.fill_(0)
        assert evaluator.trigger_eval()
        with torch.no_grad():
            act.module.weight.fill_(1)  # after the evaluation was asked for
        assert evaluator.wait()["eval/reward"] == 0
        assert evaluator.evaluate({"module.weight": torch.zeros(())})["eval/reward"] == 0
        assert evaluator.evaluate()["eval/reward"] == 3
        assert evaluator.poll() is None
        assert len(seen) == 4
    evaluator.shutdown()
    with pytest.raises(RLError, match="was shut down"):
        evaluator.evaluate()


def test_every_element_contributes_the_same_number_of_episodes():
    env = CountingEnv([2, 6], batch_size=(2,))  # the first ends three times as often
    result = Evaluator(env, policy(), num_trajectories=4, backend="foreground").evaluate()
    assert (result["eval/num_episodes"], result["eval/episode_length"]) == (4, 4.0)
    limited = Evaluator(
        CountingEnv([2, 60], batch_size=(2,)), policy(), num_trajectories=6, max_steps=5, log_prefix="test"
    )
    result = limited.evaluate()
    limited.shutdown()
    assert (result["test/episode_length"], result["test/reward"]) == (3.5, 3.5)


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_busy_evaluator_skips_waits_or_raises(backend):
    gate = multiprocessing.Event()
    make = partial(Gated, gate)
    with Evaluator(make, policy(), num_trajectories=1, backend=backend) as evaluator:
        assert evaluator.trigger_eval(step=1)
        assert evaluator.pending
        assert not evaluator.trigger_eval(step=2)
        assert evaluator.poll() is None
        gate.set()
        assert evaluator.wait()["eval/step"] == 1
        assert not evaluator.pending
        assert evaluator.wait() is None
    gate.clear()
    with Evaluator(make, policy(), num_trajectories=1, backend=backend) as evaluator:
        assert evaluator.poll(timeout=1) is None  # nothing is running
        evaluator.trigger_eval(step=3)
        for wait in (evaluator.wait, evaluator.poll):
            assert wait(timeout=0.01) is None
            assert evaluator.pending
        gate.set()
        assert evaluator.poll(timeout=60)["eval/step"] == 3
        evaluator.trigger_eval(step=4)
        assert evaluator.wait(timeout=60)["eval/step"] == 4
    gate.clear()
    with Evaluator(make, policy(), num_trajectories=1, backend=backend, busy_policy="error") as evaluator:
        evaluator.trigger_eval()
        with pytest.raises(RLError, match="an evaluation is running"):
            evaluator.trigger_eval()
        gate.set()
    with Evaluator(make, policy(), num_trajectories=1, backend=backend, busy_policy="wait") as evaluator:
        evaluator.trigger_eval(step=1)
        assert evaluator.trigger_eval(step=2)
        assert evaluator.wait()["eval/step"] == 2


def test_video_metrics_and_policies_made_in_the_worker():
    settings = {"video_key": "observation", "metrics_fn": lambda returns, lengths: {"best": float(returns.max())}}
    with Evaluator(CountingEnv, policy_factory=policy, num_trajectories=2, backend="process", **settings) as evaluator:
        result = evaluator.evaluate(policy())
    assert result["eval/video"].flatten().tolist() == [0, 1, 2]
    assert result["eval/best"] == 3


def poll(evaluator):
    while evaluator.pending:
        assert evaluator.poll() is None


def test_faults_are_raised_here():
    class Broken(CountingEnv):
        def step_and_maybe_reset(self, tensordict):
            raise ValueError("the motor is hot")

    for backend, error in (("foreground", ValueError), ("thread", ValueError), ("process", WorkerError)):
        with Evaluator(Broken, policy(), backend=backend) as evaluator, pytest.raises(error, match="the motor is hot"):
            evaluator.evaluate()
    with Evaluator(Broken, policy(), backend="process") as evaluator:
        for _ in range(2):
            assert evaluator.trigger_eval()
            with pytest.raises(WorkerError, match="the motor is hot"):
                poll(evaluator)
            assert not evaluator.pending
            assert evaluator.wait() is None
    locked = policy()
    locked.lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"TensorDictModule cannot be copied.*policy_factory="):
        Evaluator(CountingEnv, locked)
    with pytest.raises(ArgumentError, match="got 'ray'"):
        Evaluator(CountingEnv, policy(), backend="ray")
    with pytest.raises(ArgumentError, match="a policy or a policy_factory"):
        Evaluator(CountingEnv)


def test_assigned_settings_are_followed_or_refused():
    seen = []
    with Evaluator(CountingEnv, policy(), num_trajectories=2, backend="foreground") as evaluator:
        evaluator.log_prefix, evaluator.on_result = "test", seen.append
        evaluator.metrics_fn = lambda returns, lengths: {"best": float(returns.max())}
        assert evaluator.evaluate()["test/best"] == 3
        assert seen[0]["test/num_episodes"] == 2
        with pytest.raises(ArgumentError, match="busy_policy"):
            evaluator.busy_policy = "sleep"
        for name in ("num_trajectories", "max_steps", "env", "exploration_type", "reward_key", "video_key", "backend"):
            before = getattr(evaluator, name)
            with pytest.raises(AttributeError, match=rf"Evaluator\.{name} is set by the constructor"):
                setattr(evaluator, name, 3)
            assert getattr(evaluator, name) is before
