"""Launches of the library compiled by nvcc, recorded without a GPU."""

import re
import shutil
import subprocess
from ctypes import CDLL, c_char_p, c_int64, c_void_p
from pathlib import Path

import pytest

# launches are recorded by a runtime of the test in place of CUDA's
from rl.prio_cuda import _build
from rl.prio_cuda._calls import layout
from rl.prio_cuda._library import declare

NVCC = _build.compiler()
pytestmark = pytest.mark.skipif(NVCC is None, reason="no nvcc: $NVCC, $CUDA_HOME/bin/nvcc or nvcc on the PATH")

HERE, STREAM = 1 << 20, 77  # an address that is never read, and a stream
MOST = 2**31 - 2  # entries of a batch
CAPACITIES = [1, 16, 10**4, 32768, 32769, 10**6, 10**8, 2**31 + 5, 2**46]
BATCHES = [1, 7, 1024, 1025, 65_536, MOST]


@pytest.fixture(scope="module")
def library(compiled_kernels, tmp_path_factory):
    """prio.cu, with a runtime that writes down launches in place of CUDA's; see c/recorded/runtime.cpp."""
    made = tmp_path_factory.mktemp("recorded") / "recorded.so"
    line = _build.command_line(NVCC, ["90"], made)
    line[-1], line[line.index("static")] = str(compiled_kernels[0]), "none"
    source = Path(__file__).parent / "c" / "recorded" / "runtime.cpp"
    done = subprocess.run([*line, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if shutil.which("nm"):  # nvcc makes it of a function for the device that the host calls: it would end this process
        missing = subprocess.check_output(["nm", "-D", "--undefined-only", made], text=True)
        assert not re.search(r" exit(@|$)", missing, re.MULTILINE), "the host calls a function for the device"
    library = declare(CDLL(str(made)))
    library.recorded_restart.argtypes = [c_int64]
    library.recorded_count.restype = c_int64
    library.recorded_launch.restype, library.recorded_launch.argtypes = c_char_p, [c_int64, c_void_p]
    return library


def _launches(library, call, *, fails_at=-1):
    """The status of a call, and for each launch the kernel, blocks and threads of a block."""
    library.recorded_restart(fails_at)
    status, found, words = call(), [], (c_int64 * 4)()
    for i in range(library.recorded_count()):
        name = library.recorded_launch(i, words).decode()
        blocks, threads, shared, stream = words
        assert 1 <= blocks < 2**31
        assert 32 <= threads <= 1024
        assert threads % 32 == 0
        assert (shared, stream) == (0, STREAM)
        found.append((next(kind for kind in KINDS if kind in name), blocks, threads))
    return status, found


# As they are named in the library; the longer of two names first.
KINDS = ["rl_update_single", "rl_check_leaves", "rl_elect", "rl_write", "rl_level", "rl_top", "rl_sample", "rl_get"]


def _set(library, capacity, bits, n):
    return lambda: library.rl_prio_set(HERE, HERE, capacity, bits, HERE, HERE, n, 1, capacity, STREAM)


def _wide(capacity, bits=32):
    """Levels that one block would take too long for: with more than 2048 children, the root excepted."""
    return [each for each in layout(capacity, bits).children[:-1] if each > 2048]


def _above(capacity, bits, n):
    """Launches for the levels, with the children that each has to make again."""
    small = layout(capacity, bits).size <= 2**20
    return [count if (2 * n if small else n) >= count else n for count in _wide(capacity, bits)]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("n", BATCHES)
def test_an_update_takes_one_launch_or_one_for_each_wide_level(library, n, capacity, bits):
    status, found = _launches(library, _set(library, capacity, bits, n))
    assert status == 0
    if n <= 1024:
        assert found == [("rl_update_single", 1, min(1024, max(64, -(-8 * n // 32) * 32)))]
        return
    each = _above(capacity, bits, n)
    assert [kind for kind, _, _ in found] == ["rl_elect", "rl_write", *["rl_level"] * len(each), "rl_top"]
    for _, blocks, threads in found[:2]:
        assert blocks * threads >= n > (blocks - 1) * threads
    for touched, (_, blocks, threads) in zip(each, found[2:-1], strict=True):
        assert blocks == min(1024, -(-8 * touched // threads))  # eight lanes for each
    assert found[-1] == ("rl_top", 1, 1024)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_an_update_from_errors_launches_the_same(library, capacity):
    for n in BATCHES:
        errors = _launches(
            library,
            lambda n=n: library.rl_prio_set_errors(
                HERE, HERE, capacity, 32, HERE, HERE, n, 1, 1e-6, 0.6, HERE, HERE, capacity, STREAM
            ),
        )
        assert errors == _launches(library, _set(library, capacity, 32, n))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_rebuild_takes_all_levels(library, capacity):
    status, found = _launches(library, lambda: library.rl_prio_rebuild(HERE, HERE, capacity, 32, STREAM))
    assert status == 0
    assert [kind for kind, _, _ in found] == ["rl_check_leaves", *["rl_level"] * len(_wide(capacity)), "rl_top"]


@pytest.mark.parametrize("n", BATCHES)
def test_sample_and_get_take_one_launch_with_a_thread_per_entry(library, n):
    calls = {
        "rl_sample": lambda: library.rl_prio_sample(HERE, HERE, 10**6, 32, HERE, n, 1, 0.4, HERE, None, HERE, STREAM),
        "rl_get": lambda: library.rl_prio_get(HERE, HERE, 10**6, 32, HERE, HERE, n, STREAM),
    }
    for name, call in calls.items():
        status, [(kind, blocks, threads)] = _launches(library, call)
        assert (status, kind) == (0, name)
        assert blocks * threads >= n > (blocks - 1) * threads


@pytest.mark.parametrize("at", range(5))
def test_a_failed_launch_is_reported_and_ends_the_call(library, at):
    status, found = _launches(library, _set(library, 10**6, 32, 5000), fails_at=at)
    assert status == 719
    assert len(found) == at + 1
