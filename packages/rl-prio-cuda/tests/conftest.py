"""The tree on tensors of the CPU, through the same Python and ctypes path, with the kernels compiled for the host."""

import subprocess
from contextlib import nullcontext
from ctypes import CDLL, c_int, c_int64
from pathlib import Path

import pytest
import torch
from torch.library import Library

from rl.prio_cuda import CudaPriorityTree

# the kernels are compiled for the host, and their operators registered for the CPU
from rl.prio_cuda._build import build_host, command_line, compiler, host_compiler
from rl.prio_cuda._calls import implement
from rl.prio_cuda._library import PLATFORMS, Platform, declare


def pytest_collection_modifyitems(config, items):
    """The long variants run only where `-m` asks for them, or for what runs on a GPU."""
    asked = config.getoption("markexpr")
    if "slow" in asked or "gpu" in asked.replace("not gpu", ""):
        return
    skip = pytest.mark.skip(reason="a long variant: `-m slow` runs it")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def host_library(tmp_path_factory):
    """The kernels, compiled for the host."""
    if host_compiler() is None:
        pytest.skip("no C++ compiler: the kernels cannot be compiled for the host")
    library = declare(CDLL(str(build_host(tmp_path_factory.mktemp("host"), "-O1"))))
    library.rl_prio_host_order.argtypes = [c_int, c_int64]
    return library


@pytest.fixture(scope="session")
def compiled_kernels(tmp_path_factory):
    """prio.cu as nvcc compiles it for one architecture, not linked yet, and what ptxas said of it.

    Needs nvcc. For tests that link it with one CUDA runtime or another: compiling takes long, linking does not.
    """
    made = tmp_path_factory.mktemp("compiled") / "prio.o"
    line = command_line(compiler(), ["90"], made)
    line[line.index("-shared")] = "-c"
    done = subprocess.run([*line, "-Xptxas", "-v"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made, done.stderr + done.stdout


@pytest.fixture
def on_host(host_library, monkeypatch):
    """Trees on the CPU, in this test alone. Only three things differ: the library, the stream, the device guard."""
    monkeypatch.setitem(PLATFORMS, "cpu", Platform(lambda: host_library, lambda _: 0, lambda _: nullcontext()))
    operators = Library("rl_prio_cuda", "IMPL")
    implement(operators, "CPU")
    yield host_library
    operators._destroy()
    host_library.rl_prio_host_order(0, 0)
    host_library.rl_prio_single(-1)


def _gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is False")
    from rl.prio_cuda import why_not

    if why_not():
        pytest.skip(why_not())
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """Where a tree is tested: the host library everywhere, and the GPU where there is one."""
    if request.param == "gpu":
        return _gpu()
    request.getfixturevalue("on_host")
    return torch.device("cpu")


@pytest.fixture
def gpu():
    """The GPU alone."""
    return _gpu()


@pytest.fixture
def make(device):
    """A new tree, by capacity and dtype."""
    return lambda capacity, dtype=torch.float32: CudaPriorityTree(capacity, dtype=dtype, device=device)
