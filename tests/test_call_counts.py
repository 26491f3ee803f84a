"""Number of our functions that a transition passes: a reader has to follow them, and each costs time at every step."""

import sys
from collections import Counter

import pytest
from tensordict.nn import TensorDictModule

from rl.collectors import Collector
from rl.envs import GymEnv
from rl.modules import MLP, OneHotCategorical, ProbabilisticActor
from rl.objectives import GAE, ClipPPOLoss
from rl.replay import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement

pytest.importorskip("gymnasium")
COMPREHENSIONS = {
    "<listcomp>",
    "<setcomp>",
    "<dictcomp>",
    "<genexpr>",
}  # the first three are no calls from Python 3.12 on
WARM_UP = 4
"""Calls of each stage before it is counted: the first ones check more, and look for plugins."""


@pytest.fixture(scope="module")
def actor():
    network = TensorDictModule(MLP(in_features=4, out_features=2, num_cells=[64]), ["observation"], ["logits"])
    return ProbabilisticActor(network, ["logits"], distribution_class=OneHotCategorical, return_log_prob=True)


def functions_of(function):
    """Return the calls of our functions in one call of `function`, by module and name."""
    calls = Counter()

    def record(frame, event, _):
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if event == "call" and module.startswith("rl.") and code.co_name not in COMPREHENSIONS:
            calls[module, code.co_qualname] += 1

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def collected_step(actor):
    """Return the calls of a batch of one step in which no episode ends, which would add those of a reset."""
    ended = []
    collector = Collector(
        GymEnv("CartPole-v1", num_envs=8),
        actor,
        frames_per_batch=8,
        post_collect_hook=lambda batch: ended.append(bool(batch["next", "done"].any())),
    )
    calls = [functions_of(collector.collect) for _ in range(100)][WARM_UP:]
    collector.shutdown()
    return next(count for count, reset in zip(calls, ended[WARM_UP:], strict=True) if not reset)


def test_collected_step_calls_few_functions(actor):
    calls = collected_step(actor)
    assert sum(calls.values()) <= 110, calls.most_common()


def test_step_of_a_long_batch_calls_half_as_many_functions(actor):
    collector = Collector(GymEnv("CartPole-v1", num_envs=8), actor, frames_per_batch=8 * 64)
    for _ in range(WARM_UP):
        collector.collect()
    calls = functions_of(collector.collect)
    collector.shutdown()
    assert sum(calls.values()) <= 64 * 60, calls.most_common()


def test_ppo_step_passes_few_functions_from_the_simulator_to_the_loss(actor):
    critic = TensorDictModule(MLP(in_features=4, out_features=1, num_cells=[64]), ["observation"], ["state_value"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(actor, critic)
    buffer = ReplayBuffer(storage=LazyTensorStorage(128), sampler=SamplerWithoutReplacement(), batch_size=64)
    collector = Collector(GymEnv("CartPole-v1", num_envs=8), actor, frames_per_batch=128)
    batch = collector.collect()
    collector.shutdown()

    def learn():
        rows = gae(batch).reshape(-1)
        buffer.extend(rows)
        loss(buffer.sample())

    for _ in range(WARM_UP):
        learn()
    functions = {*collected_step(actor), *functions_of(learn)}
    files = sorted({module for module, _ in functions})
    assert len(functions) <= 185, sorted(functions)
    assert len(files) <= 52, files
