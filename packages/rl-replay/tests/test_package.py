"""The package as a whole: its names, its plugin, what its import costs."""

import subprocess
import sys
from importlib import import_module

import pytest

import rl.replay
from rl.plugins.replay import rl_components
from rl.replay import (
    ImmutableDatasetWriter,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl.testing import check_sampler, check_storage, check_writer

COMPONENTS = list(rl_components())


@pytest.mark.parametrize("name", rl.replay.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rl.replay, name) is not None
    assert name in dir(rl.replay)


@pytest.mark.parametrize("module", ["rl.replay.storages", "rl.replay.samplers", "rl.replay.writers"])
def test_public_modules_export_the_same_objects(module):
    names = import_module(module).__all__
    assert names
    for name in names:
        assert getattr(import_module(module), name) is getattr(rl.replay, name)


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda c: f"{c.kind}-{c.name}")
def test_every_component_resolves(component):
    module, _, attribute = component.target.partition(":")
    assert isinstance(getattr(import_module(module), attribute), type)


def test_importing_the_root_and_the_plugin_imports_no_torch():
    code = "import sys, rl.replay, rl.plugins.replay as p; list(p.rl_components()); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


@pytest.mark.parametrize("make", [ListStorage, LazyTensorStorage, LazyMemmapStorage], ids=lambda c: c.__name__)
def test_storages_conform(make):
    check_storage(make)


SAMPLERS = {
    "random": RandomSampler,
    "prioritized": lambda: PrioritizedSampler(64, 0.6, 0.4, backend="torch"),
    "slices": lambda: SliceSampler(slice_len=1, end_key=("next", "flag")),
    "prioritized-slices": lambda: PrioritizedSliceSampler(
        64, 0.6, 0.4, slice_len=1, end_key=("next", "flag"), backend="torch"
    ),
    "without-replacement": SamplerWithoutReplacement,
    "drop-last": lambda: SamplerWithoutReplacement(drop_last=True),
    "in-order": lambda: SamplerWithoutReplacement(shuffle=False),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)
def test_samplers_conform(make):
    check_sampler(make)


@pytest.mark.parametrize("make", [RoundRobinWriter, ImmutableDatasetWriter], ids=lambda c: c.__name__)
def test_writers_conform(make):
    check_writer(make)


class _Forgetful(LazyTensorStorage.__mro__[1]):
    """A storage that returns views."""

    def get(self, index):
        rows = super().get(index)
        return (
            rows
            if not isinstance(index, int)
            else self._layout.build({key: cell[index] for key, cell in self._cells.items()}, (), None)
        )


def test_the_kit_finds_a_storage_that_returns_views():
    with pytest.raises(AssertionError, match="rows"):
        check_storage(_Forgetful)


class _Biased:
    """A sampler that ignores the generator."""

    def __init__(self):
        self._inner = RandomSampler()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def sample(self, storage, batch_size, *, generator=None):
        return self._inner.sample(storage, batch_size)


def test_the_kit_finds_a_sampler_that_ignores_the_generator():
    with pytest.raises(AssertionError, match="must come from `generator`"):
        check_sampler(_Biased)


class _Overlapping:
    """A writer that claims one place for all."""

    def __init__(self):
        self._inner = RoundRobinWriter()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def claim(self, storage, count):
        return self._inner.claim(storage, count) * 0


def test_the_kit_finds_a_writer_that_claims_a_place_twice():
    with pytest.raises(AssertionError, match="claims a slot twice"):
        check_writer(_Overlapping)


def test_repr_tells_what_is_inside():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    assert "no layout yet" in repr(buffer)
    import torch
    from tensordict import TensorDict

    buffer.extend(TensorDict({"next": {"reward": torch.zeros(3, 1)}}, batch_size=[3]))
    text = repr(buffer)
    for part in ("3 of 10 rows", "('next', 'reward'): float32 [1]", "RandomSampler", "cursor=3", "batch_size=4"):
        assert part in text
