"""Settings of a collector, each against an environment whose episodes are known."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl.collectors import Collector
from rl.core.errors import ArgumentError, RLError, SpecError

LOOPS = pytest.mark.parametrize("fast", [True, False], ids=["leaves", "tensordict"])


def by_time(batches, *key):
    return torch.cat([batch[key] for batch in batches], dim=-1 if key[0] == "collector" else 1)


# ---- what is made, and where


def test_a_policy_factory_and_arguments_of_the_environment(counting_env, make_policy):
    made = []

    def factory():
        made.append(make_policy())
        return made[-1]

    collector = Collector(
        counting_env, policy_factory=factory, create_env_kwargs={"lengths": [[2], [5]], "batch_size": [2]},
        frames_per_batch=12,
    )  # fmt: skip
    batch = collector.collect()
    assert collector.policy is made[0]
    assert batch["observation"][..., 2].tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 3, 4, 0]]
    with pytest.raises(ArgumentError, match="got both"):
        Collector(counting_env, make_policy(), policy_factory=factory, frames_per_batch=2)
    with pytest.raises(ArgumentError, match="create_env_kwargs needs a function"):
        Collector(counting_env(), create_env_kwargs={"batch_size": [2]}, frames_per_batch=2)


def test_device_is_the_default_of_both_devices(counting_env, make_policy):
    moved = []

    class Movable(counting_env):
        def to(self, device):
            moved.append(str(device))
            return self

    with pytest.raises(ArgumentError, match=r"parameters are on cpu.*policy.to\('meta'\)"):
        Collector(Movable, make_policy(), frames_per_batch=1, policy_device="meta")
    with pytest.raises(ArgumentError, match="parameters are on cpu"):
        Collector(Movable, make_policy(), frames_per_batch=1, device="meta")
    assert moved == []
    Collector(Movable, frames_per_batch=1, device="meta")
    Collector(Movable, make_policy(), frames_per_batch=1, device="cpu", env_device="meta")
    assert moved == ["meta", "meta"]
    Collector(Movable, make_policy(), frames_per_batch=1, device="meta", policy_device="cpu", env_device="cpu")
    assert len(moved) == 2
    with pytest.raises(ArgumentError, match=r"CountingEnv is on cpu and has no to\(device\)"):
        Collector(counting_env, frames_per_batch=1, env_device="meta")


# ---- the length of episodes


@LOOPS
@pytest.mark.parametrize("recurrent", [False, True])
def test_episodes_are_truncated_at_the_limit_across_batches_and_checkpoints(counting_env, fast, recurrent):
    act = TensorDictModule(lambda obs: (obs[..., 0] * 0).long(), in_keys=["observation"], out_keys=["action"])
    if recurrent:
        from rl.core import State

        act = TensorDictModule(
            lambda obs, h: ((obs[..., 0] * 0).long(), h + 1),
            in_keys=["observation", "h"],
            out_keys=["action", ("next", "h")],
        )
        act.states = (State("h", (1,)),)

    def make():
        env = counting_env([[7], [2], [3, 9]], [3], fast=fast)
        return Collector(env, act, frames_per_batch=15, max_frames_per_traj=3)

    one = make()
    batches = [one.collect()]
    state = one.state_dict()
    other = make()
    other.load_state_dict(state)
    batches += [other.collect(), other.collect()]
    assert by_time(batches, "observation")[..., 2].tolist() == [
        [t % 3 for t in range(15)], [t % 2 for t in range(15)], [t % 3 for t in range(15)]
    ]  # fmt: skip
    done, terminated, truncated = (by_time(batches, "next", f)[..., 0] for f in ("done", "terminated", "truncated"))
    assert done.tolist() == [[(t + 1) % n == 0 for t in range(15)] for n in (3, 2, 3)]
    assert torch.equal(done, terminated | truncated)
    assert not terminated[0].any()  # it would take seven steps
    # the environment's own ends keep their flags: every other one is terminated, also at the limit
    assert terminated[1].nonzero().flatten().tolist() == [1, 5, 9, 13]
    assert terminated[2].nonzero().flatten().tolist() == [2, 8, 14]
    assert by_time(batches, "next", "observation")[0, :, 2].tolist() == [t % 3 + 1 for t in range(15)]
    assert not any(key == "_frames" for batch in batches for key in batch.keys())
    if recurrent:
        assert torch.equal(by_time(batches, "h"), by_time(batches, "observation")[..., 2:3])


def test_both_loops_agree_under_a_limit(counting_env, make_policy):
    found = []
    for fast in (True, False):
        torch.manual_seed(0)
        env = counting_env([[7], [2, 5]], [2], fast=fast, reuse=not fast)
        found.append(Collector(env, make_policy(), frames_per_batch=60, max_frames_per_traj=4).collect())
    assert set(found[0].keys(True, True)) == set(found[1].keys(True, True))
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0].keys(True, True))


def test_a_limit_needs_the_flag_that_it_sets(counting_env):
    env = counting_env()
    del env.full_done_spec["truncated"]
    with pytest.raises(SpecError, match=r"max_frames_per_traj=3 needs 'truncated'"):
        Collector(env, frames_per_batch=1, max_frames_per_traj=3)
    for off in (None, 0, -1):
        Collector(env, frames_per_batch=1, max_frames_per_traj=off)


# ---- the form of a batch


def test_split_trajs(counting_env):
    batch = Collector(counting_env([[3], [5]], [2]), frames_per_batch=12, split_trajs=True).collect()
    assert batch["observation"][..., 2].tolist() == [[0, 1, 2, 0, 0], [0, 1, 2, 0, 0], [0, 1, 2, 3, 4], [0, 0, 0, 0, 0]]
    assert batch["collector", "mask"].sum(-1).tolist() == [3, 3, 5, 1]


def test_the_same_tensordict_is_overwritten(counting_env):
    collector = Collector(counting_env([[9]]), frames_per_batch=3, return_same_td=True)
    first = collector.collect()
    observation = first["observation"]
    assert collector.collect() is first
    assert observation[:, 2].tolist() == [3, 4, 5]
    for settings in (
        {"split_trajs": True, "return_same_td": True},
        {"interruptor": object(), "return_same_td": True},
        {"split_trajs": True, "extend_buffer": False},
    ):
        with pytest.raises(ArgumentError, match=rf"{next(iter(settings))}.* exclude each other"):
            Collector(counting_env, frames_per_batch=3, **settings)


class Buffer:
    def __init__(self):
        self.batches = []

    def extend(self, batch):
        self.batches.append(batch)


@pytest.mark.parametrize("whole", [True, False])
def test_a_replay_buffer_is_extended_by_batches_or_single_steps(counting_env, whole):
    buffer = Buffer()
    env = counting_env([[9]] * 2, [2])
    collector = Collector(env, frames_per_batch=6, total_frames=12, replay_buffer=buffer, extend_buffer=whole)
    assert list(collector) == [None, None]
    first = buffer.batches[0]
    if whole:
        assert first.shape == (2, 3)
    else:
        assert first["observation"][:, :3].tolist() == [[i, 0, t] for t in range(3) for i in range(2)]


def test_hooks_are_called_around_each_batch(counting_env):
    events = []
    collector = Collector(
        counting_env, frames_per_batch=2, total_frames=4, postproc=lambda td: td.flip(0),
        pre_collect_hook=lambda: events.append("before"),
        post_collect_hook=lambda td: events.append(td["observation"][:, 2].tolist()),
    )  # fmt: skip
    list(collector)
    assert events == ["before", [1, 0], "before", [0, 2]]


def test_policy_versions_count_updates(counting_env, make_policy):
    policy = make_policy()
    collector = Collector(counting_env([[3]] * 2, [2]), policy, frames_per_batch=4, track_policy_version=True)
    for version in range(3):
        batch = collector.collect()
        assert batch["policy_version"].tolist() == [[version] * 2] * 2
        assert batch["policy_version"].dtype == torch.int64
        collector.update_policy_weights_(policy.state_dict() if version else None)
    other = Collector(counting_env([[3]] * 2, [2]), make_policy(), frames_per_batch=4)
    assert "policy_version" not in other.collect().keys()
    other.load_state_dict(collector.state_dict())
    assert other.policy_version == 3


def test_a_state_without_the_later_entries_loads(counting_env):
    collector = Collector(counting_env, frames_per_batch=2)
    collector.collect()
    state = collector.state_dict()
    del state["policy_version"], state["trajectories"]
    collector.load_state_dict(state)
    assert collector.collected_frames == 2


# ---- the policy's call


@LOOPS
def test_a_compiled_policy_gives_the_same_batches(counting_env, fast):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    module = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh())
    policy = TensorDictModule(lambda obs: module(obs).argmax(-1), in_keys=["observation"], out_keys=["action"])
    found = [
        Collector(counting_env([[5]], fast=fast), policy, frames_per_batch=20, compile_policy=options).collect()
        for options in (None, {"backend": backend})
    ]
    assert graphs
    assert torch.equal(found[0]["action"], found[1]["action"])


def test_settings_of_the_policy_that_cannot_be(counting_env, make_policy):
    for options, message in (
        ({"compile_policy": {"mode": "reduce-overhead"}}, "overwrite outputs.*use cudagraph_policy"),
        ({"compile_policy": 3}, "must be a bool or a dict"),
        ({"compile_policy": True, "cudagraph_policy": True}, "got both"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Collector(counting_env, make_policy(), frames_per_batch=2, **options)
    with pytest.raises(ArgumentError, match="need a policy"):
        Collector(counting_env, frames_per_batch=2, compile_policy=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the message without CUDA")
def test_a_cuda_graph_needs_cuda(counting_env, make_policy):
    with pytest.raises(ArgumentError, match=r"needs a CUDA device.*use compile_policy"):
        Collector(counting_env, make_policy(), frames_per_batch=2, cudagraph_policy=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_policy_in_a_cuda_graph_gives_the_same_batches(counting_env):
    module = torch.nn.Linear(4, 2, device="cuda")
    policy = TensorDictModule(lambda obs: module(obs).argmax(-1), in_keys=["observation"], out_keys=["action"])
    found = [
        Collector(
            counting_env([[5]]), policy, frames_per_batch=20, policy_device="cuda", cudagraph_policy=graph
        ).collect()
        for graph in (False, True)
    ]
    assert torch.equal(found[0]["action"], found[1]["action"])


# ---- the description


def test_the_description_names_stages_casts_and_keys(counting_env, make_policy):
    collector = Collector(counting_env([[3]] * 2, [2]), make_policy(), frames_per_batch=4, storing_device="meta")
    text = collector.explain()
    assert "environment  CountingEnv, batch [2], on cpu" in text
    assert "policy       TensorDictModule, on cpu\n" in text
    assert "storing      on meta (each batch: cpu -> meta)" in text
    row = next(line for line in text.splitlines() if line.startswith("scores"))
    assert row.split()[-2:] == ["TensorDictModule", "-"]
    assert "next.reward" in text
    collector.collect()
    assert any(
        line.split() == ["next.reward", "[2,", "T,", "1]", "float32"] for line in collector.explain().splitlines()
    )

    def act(td):
        return td.set("action", torch.zeros(td.batch_size, dtype=torch.int64))

    elsewhere = Collector(counting_env, act, frames_per_batch=2, policy_device="meta", postproc=list)
    assert "policy       act, on meta (each step: inputs cpu -> meta, outputs meta -> cpu)" in elsewhere.explain()
    assert "postproc     list" in elsewhere.explain()
    assert "its keys are not known" in elsewhere.explain()


# ---- a batch that ends early


@pytest.mark.parametrize("path", ["leaves", "tensordict"])
def test_an_interrupted_batch_holds_the_steps_so_far(counting_env, path):
    class Once:
        asked = 0

        def collection_stopped(self):
            self.asked += 1
            return self.asked == 4

    env = counting_env([[4]] * 2, [2], fast=path == "leaves")
    collector = Collector(env, frames_per_batch=200, interruptor=Once())
    first, second = collector.collect(), collector.collect()
    assert first.shape[1] < second.shape[1] == 100
    whole = torch.cat([first, second], 1)
    assert whole["observation"][0, :, 2].tolist() == [t % 4 for t in range(whole.shape[1])]
    assert whole["collector", "traj_ids"][0].unique().numel() == -(-whole.shape[1] // 4)
    assert collector.collected_frames == whole.numel()


def test_a_closed_collector_refuses(counting_env):
    collector = Collector(counting_env, frames_per_batch=2, replay_buffer=Buffer())
    collector.shutdown()
    with pytest.raises(RLError, match="shut down"):
        collector.start()
