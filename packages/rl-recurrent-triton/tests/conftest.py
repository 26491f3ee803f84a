"""Fixtures: operators with loops in torch in place of the kernels, on the CPU; skips without Triton or a GPU."""

import sys
from pathlib import Path

import pytest
import torch

# the kernels are replaced by a double in torch, as if the CPU were a GPU
from rl.recurrent_triton import TritonBackend, _backend
from rl.recurrent_triton import _device as support

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    """The long variants run only where `-m` asks for them."""
    if "slow" in config.getoption("markexpr"):
        return
    skip = pytest.mark.skip(reason="a long variant: `-m slow` runs it")
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("slow"):
            item.add_marker(skip)


def _load(name):
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(f"rl_recurrent_triton_tests_{name}", HERE / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if support.is_interpreted():
    _load("quick_interpreter").install()


@pytest.fixture
def in_torch(monkeypatch):
    """The double of the kernels, in their place; `calls` holds what was launched."""
    double = _load("in_torch")
    monkeypatch.setattr("rl.recurrent_triton._layers.kernels", lambda: double)
    monkeypatch.setattr(_backend, "unfit", lambda _: "")
    return double


@pytest.fixture
def backend(in_torch):
    pytest.importorskip("triton")
    return TritonBackend()


@pytest.fixture
def gpu():
    """A CUDA device that the kernels run on."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")
    device = torch.device("cuda", torch.cuda.current_device())
    if support.why_not(device):
        pytest.skip(support.why_not(device))
    return device
