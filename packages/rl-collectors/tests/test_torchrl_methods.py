"""Methods of TorchRL's collectors, with the same meaning in one process and in several."""

import inspect

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl.collectors import (
    AsyncBatchedCollector,
    Collector,
    Evaluator,
    MultiAsyncCollector,
    MultiaSyncDataCollector,
    MultiCollector,
    MultiProcessedWeightUpdater,
    MultiSyncCollector,
    MultiSyncDataCollector,
    RayCollector,
    RayWeightUpdater,
    SyncDataCollector,
    VanillaWeightUpdater,
    split_trajectories,
)
from rl.core.errors import ArgumentError, WorkerError
from rl.testing import CountingEnv

KINDS = pytest.mark.parametrize("kind", [Collector, MultiSyncCollector, MultiAsyncCollector])


class Weight(torch.nn.Module):
    """Writes its weight next to the action."""

    size = 3

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        batch = observation.shape[:-1]
        return torch.zeros(batch, dtype=torch.int64), self.weight.expand(batch).detach().clone()


def policy(value=0.0):
    module = TensorDictModule(Weight(), in_keys=["observation"], out_keys=["action", "weight"])
    module.name = "weighted"
    torch.nn.init.constant_(module.module.weight, value)
    return module


def make(kind, act=None, **settings):
    source = CountingEnv if kind is Collector else [CountingEnv] * 2
    return kind(source, act, **{"frames_per_batch": 8, "track_policy_version": True, **settings})


@KINDS
def test_every_spelling_of_new_weights_reaches_the_policy(kind):
    with make(kind, policy()) as collector:
        for number, spelling in enumerate(
            (
                collector.update_policy_weights_,
                lambda new: collector.update_policy_weights_(policy=new),
                lambda new: collector.update_policy_weights_(weights=new.state_dict(), model_id="policy"),
                lambda new: collector.update_policy_weights_(weights=TensorDict.from_module(new)),
                lambda new: collector.update_policy_weights_(weights_dict={"policy": new}),
                lambda new: collector.update_policy_weights_(new, worker_ids=[*range(1 if kind is Collector else 2)]),
            ),
            start=1,
        ):
            spelling(policy(number))
            assert collector.policy_version == collector.get_policy_version() == number
        for _ in range(5 if kind is MultiAsyncCollector else 1):  # batches that were collected before
            batch = collector.collect()
        assert (batch["weight"] == 6).all()
        assert (batch["policy_version"] == 6).all()
        for wrong, message in (
            ({"weights": {}, "policy": policy()}, "one source of weights, got weights, policy"),
            ({"policy": policy(), "model_id": "critic"}, r"models \['critic'\]"),
            ({"weights_dict": {"policy": policy(), "critic": policy()}}, r"there is one, 'policy'"),
            ({"weights_dict": {"policy": policy()}, "model_id": "policy"}, "weights_dict and model_id='policy'"),
            ({"policy": policy(), "worker_ids": 7}, "got .*7"),
        ):
            with pytest.raises(ArgumentError, match=message):
                collector.update_policy_weights_(**wrong)
        assert collector.policy_version == 6


def test_single_workers_have_weights_of_their_own_until_the_next_update_of_all():
    def found():
        batch = collector.collect()
        return [[int(x) for x in row.unique()] for row in (*batch["weight"], *batch["policy_version"])]

    with make(MultiSyncCollector, policy(), restart=True) as collector:
        assert found() == [[0], [0], [0], [0]]
        collector.update_policy_weights_(policy(1.0), worker_ids=1)
        assert found() == [[0], [1], [0], [1]]
        collector.update_policy_weights_({0: policy(2.0), 1: policy(3.0).state_dict()})
        assert found() == [[2], [3], [2], [2]]
        collector.update_policy_weights_(policy(4.0))
        assert found() == [[4], [4], [3], [3]]
        collector.update_policy_weights_(policy(5.0), worker_ids=[0])
        assert found() == [[5], [4], [4], [3]]
        with pytest.raises(ArgumentError, match=r"workers \[0\], and worker_ids=\[1\]: pass one"):
            collector.update_policy_weights_({0: policy(6.0)}, worker_ids=[1])
        with pytest.raises(ArgumentError, match=r"weights do not fit"):
            collector.update_policy_weights_({0: policy(6.0), 1: {"other": torch.zeros(())}})
        assert found() == [[5], [4], [4], [3]]


@KINDS
def test_next_returns_the_batches_of_one_iteration(kind):
    with make(kind, total_frames=24) as collector:
        assert len(collector) == 3
        assert bool(collector)
        assert [collector.next().numel() for _ in range(3)] == [8] * 3
        assert collector.next() is None
        assert collector.requested_frames_per_batch == 8
    with make(kind) as collector, pytest.raises(TypeError, match="no length"):
        len(collector)


class Breaks(CountingEnv):
    """Raises in its sixth step."""

    taken = 0

    def step_leaves(self, root):
        self.taken += 1
        if self.taken == 6:
            raise ValueError("it broke")
        return super().step_leaves(root)


@KINDS
def test_next_goes_on_after_an_error(kind):
    source = Breaks if kind is Collector else [Breaks] * 2
    with kind(source, frames_per_batch=4 if kind is not MultiSyncCollector else 8, total_frames=24) as collector:
        found, errors = [], 0
        for _ in range(20):
            try:
                found.append(collector.next())
            except (ValueError, WorkerError):
                errors += 1
        assert errors == (1 if kind is Collector else 2)
        batches = [batch for batch in found if batch is not None]
        assert sum(batch.numel() for batch in batches) == 24
        assert found[-1] is None


@KINDS
def test_attributes_of_policy_environment_and_buffer_are_read(kind):
    class Buffer:
        size = 7

    with make(kind, policy(), replay_buffer=Buffer()) as collector:
        assert collector.getattr_policy("name") == "weighted"
        assert collector.getattr_policy("module.size") == 3
        assert collector.getattr_env("batch_size") == torch.Size([])
        assert collector.getattr_rb("size") == 7
        found = collector.get_distant_attr("env.batch_size")
        assert found == (torch.Size([]) if kind is Collector else [torch.Size([])] * 2)
        with pytest.raises(AttributeError, match="wheels"):
            collector.getattr_env("wheels")
        with pytest.raises(AttributeError, match="wheels"):
            collector.getattr_policy("wheels")


@KINDS
def test_a_method_is_called_with_several_sets_of_arguments(kind):
    with make(kind) as collector:
        assert len(collector.map_fn("set_seed", list_of_args=[(1,), (5,)])) == 2
        assert collector.map_fn("set_seed", list_of_kwargs=[{"seed": 1, "static_seed": True}] * 2) == [1, 1]
        assert collector.map_fn("reset") == [None] * (1 if kind is Collector else 2)
        with pytest.raises(ArgumentError, match="expected"):
            collector.map_fn("set_seed", list_of_args=[(1,), (2,)], list_of_kwargs=[{}])
        assert collector.set_seed(3, static_seed=True) == 3


def mark(batch):
    batch.set("seen", torch.ones(batch.batch_size))


@KINDS
def test_hooks_and_updaters_can_be_assigned(kind):
    updater = VanillaWeightUpdater()
    with make(kind, policy()) as collector:
        assert collector.post_collect_hook is None
        collector.set_post_collect_hook(mark)
        assert collector.post_collect_hook is not None
        assert "seen" in [collector.collect() for _ in range(5)][-1].keys()
        if kind is not Collector:
            with pytest.raises(ArgumentError, match="cannot be sent to the workers"):
                collector.pre_collect_hook = lambda: None
        collector.weight_updater = updater
        updater.update_weights()
        assert collector.weight_updater is updater
        assert collector.policy_version == 1
        collector.increment_version()
        assert collector.policy_version == 2
        collector.shutdown(timeout=5, raise_on_error=False)


def settings_of(collector):
    """Names of the constructor's arguments; those that collectors with workers pass on to a `Collector` included."""
    kinds = (*type(collector).__mro__, *([] if hasattr(collector, "env") else [Collector]))
    starts = [inspect.signature(kind.__init__) for kind in kinds if "__init__" in vars(kind)]
    found = [one for start in starts for one in start.parameters.values()]
    return {one.name for one in found if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}


@pytest.mark.parametrize(
    "kind",
    [
        AsyncBatchedCollector,
        Collector,
        MultiAsyncCollector,
        MultiCollector,
        MultiSyncCollector,
        MultiSyncDataCollector,
        MultiaSyncDataCollector,
        SyncDataCollector,
        pytest.param(RayCollector, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is an old name:DeprecationWarning")
def test_settings_that_are_assigned_later_have_an_effect_or_raise(kind):
    source = CountingEnv if issubclass(kind, Collector) else [CountingEnv] * 2
    more = {AsyncBatchedCollector: {"env_backend": "threading"}, MultiCollector: {"sync": True}}.get(kind, {})
    if needs := {RayCollector: "ray", AsyncBatchedCollector: "rl.envs"}.get(kind):
        pytest.importorskip(needs)
    with kind(source, policy(), frames_per_batch=8, **more) as collector:
        names = settings_of(collector) - {"self"}
        assert {"frames_per_batch", "policy", "postproc", "exploration_type", "storing_device"} < names
        works = {"pre_collect_hook": None, "post_collect_hook": mark, "weight_updater": VanillaWeightUpdater()}
        works |= {"total_frames": 16} | ({"replay_buffer": None} if kind is AsyncBatchedCollector else {})
        for name in sorted({*names, "env"} - {*works}):
            with pytest.raises(AttributeError, match=rf"\.{name} .*[Cc]reate a new {type(collector).__name__}"):
                setattr(collector, name, 7)
        for name, value in works.items():
            setattr(collector, name, value)
        collector.update_policy_weights_()
        batches = list(collector)
        assert sum(batch.numel() for batch in batches) == 16
        assert "seen" in batches[-1].keys()
        assert collector.policy_version == 1


def test_a_subclass_has_attributes_of_its_own():
    class Counts(Collector):
        def __init__(self, *args, gain, **kwargs):
            super().__init__(*args, **kwargs)
            self.gain = gain

    collector = Counts(CountingEnv, frames_per_batch=4, gain=1)
    collector.gain += 1
    assert collector.gain == 2


def test_an_environment_stays_open_on_request():
    env = CountingEnv()
    closed = []
    env.close = lambda: closed.append(1)
    Collector(env, frames_per_batch=2).shutdown(close_env=False)
    assert not closed
    env.close = lambda: 1 / 0
    Collector(env, frames_per_batch=2).shutdown(raise_on_error=False)
    with pytest.raises(ZeroDivisionError):
        Collector(env, frames_per_batch=2).shutdown()


@KINDS
def test_arguments_that_change_nothing_are_accepted_with_any_value(kind):
    for name in ("use_buffers", "trust_policy", "no_cuda_sync", "auto_register_policy_transforms"):
        for value in (None, True, False, {"policy": 1}, "auto"):
            make(kind, **{name: value}).shutdown()


def test_other_arguments_of_torchrl_are_answered():
    weights = TensorDict.from_module(policy())
    VanillaWeightUpdater(weight_getter=None, policy_weights=weights)
    MultiProcessedWeightUpdater(get_server_weights=None, policy_weights={"cpu": weights})
    RayWeightUpdater(policy_weights=weights, remote_collectors=[], max_interval=0)
    given = {"frames_per_batch": 7, "reward_keys": ("next", "reward"), "done_keys": "done", "num_gpus": 1}
    Evaluator(CountingEnv, policy(), backend="foreground", **given).shutdown()
    for wrong, message in (
        (lambda: VanillaWeightUpdater(weight_getter=dict), "weight_getter.*use update_weights"),
        (lambda: MultiSyncCollector([CountingEnv], frames_per_batch=2, collector_class=Collector), "collector_class"),
        (lambda: Evaluator(CountingEnv, ray_kwargs={}), "ray_kwargs.*not available yet"),
        (lambda: split_trajectories(rollout_tensordict=weights), "use the first argument"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong()
