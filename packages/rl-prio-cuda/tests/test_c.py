"""The kernels on this computer, in C++: against a naive tree, under sanitizers, on simulated warps, for races."""

import shutil
import subprocess
from pathlib import Path

import pytest

# the C tests are compiled as the build compiles for the host
from rl.prio_cuda._build import HOST_FLAGS, SOURCES, host_compiler

HERE = Path(__file__).parent / "c"
ORDERS = {"forward": 0, "backward": 1, "shuffled": 2}
AT_ONCE = 3
MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-Og"]  # -O0 runs twice as long
RACES = ["-fsanitize=thread", "-g", "-O0"]
ALONE = 0  # in place of a capacity: what needs none


def long_(*before):
    """All capacities of the program, which takes long."""
    return pytest.param(*before, (), id="-".join([*before, "long"]), marks=pytest.mark.slow)


pytestmark = pytest.mark.skipif(host_compiler() is None, reason="no C++ compiler")


def _compile(flags, program, *sources):
    line = [*host_compiler(), *HOST_FLAGS, *flags, f"-I{SOURCES}", *map(str, sources), "-o", str(program)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def _run(program, *words):
    # A race detector wants addresses where it expects them.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    for command in ([*fixed, str(program)], [str(program)]):
        done = subprocess.run([*command, *map(str, words)], capture_output=True, text=True, timeout=600, check=False)
        if "setarch:" not in done.stderr:
            break
    return done


def _has(flags, folder):
    source, program = folder / "empty.cpp", folder / "empty"
    source.write_text("#include <thread>\nint main() { std::thread([] {}).join(); }\n")
    return _compile(flags, program, source).returncode == 0 and _run(program).returncode == 0


@pytest.fixture(scope="module")
def main(tmp_path_factory):
    """The part that calls and compares, which needs no sanitizer: compiled once for all programs."""
    made = tmp_path_factory.mktemp("main") / "main.o"
    done = _compile(["-O1", "-Werror", "-c"], made, HERE / "test_prio.cpp")
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def checked(main, tmp_path_factory):
    """The test program, under the sanitizers of address and undefined behaviour where the compiler has them."""
    folder = tmp_path_factory.mktemp("checked")
    flags = MEMORY if _has(MEMORY, folder) else ["-O1"]
    made = _compile([*flags, "-Werror"], folder / "program", SOURCES / "host.cpp", main)
    assert made.returncode == 0, made.stderr
    return folder / "program"


@pytest.mark.parametrize("capacities", [(ALONE, 1, 17, 1025, 8193, 32769), long_()])
@pytest.mark.parametrize("order", ORDERS)
def test_it_agrees_with_a_naive_tree_whatever_the_order_of_threads(checked, order, capacities):
    ran = _run(checked, ORDERS[order], *capacities)
    assert ran.returncode == 0, ran.stderr


@pytest.fixture(scope="module")
def simulated(main, tmp_path_factory):
    """The same program with what a GPU would run, prio.cu itself: see simulated/cuda_runtime.h."""
    program = tmp_path_factory.mktemp("simulated") / "program"
    flags = ["-O1", "-Wno-unknown-pragmas", f"-I{HERE / 'simulated'}", "-x", "c++"]
    made = _compile(flags, program, SOURCES / "prio.cu", HERE / "simulated" / "simulated.cpp", "-xnone", main)
    assert made.returncode == 0, made.stderr
    return program


@pytest.mark.parametrize(
    ("order", "capacities"),
    [("forward", (129,)), ("backward", (129,)), ("shuffled", (129, 32769)), *(long_(order) for order in ORDERS)],
)
def test_barriers_and_shuffles_are_reached_by_all_and_give_the_same_bytes(simulated, order, capacities):
    ran = _run(simulated, ORDERS[order], *capacities)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("capacities", [(32769,), long_()])
def test_no_two_threads_race(main, tmp_path, capacities):
    """Threads of a block between barriers, and blocks of a launch, run at once here, four at a time."""
    if not _has(RACES, tmp_path):
        pytest.skip("the compiler has no race detector that runs here")
    made = _compile(RACES, tmp_path / "program", SOURCES / "host.cpp", main)
    assert made.returncode == 0, made.stderr
    ran = _run(tmp_path / "program", AT_ONCE, *capacities)
    assert ran.returncode == 0, ran.stderr


def _layout(capacity, bits):
    """Bytes of a tree, and where its leaves begin, from the definition."""
    blocks = -(-capacity // 16)
    at, count = 128, blocks
    while True:
        at += -(-count // 8) * (64 + 16 * bits // 8)
        count = -(-count // 8)
        if count == 1:
            return at + -(-blocks // 8) * 128 * bits // 8, at


@pytest.mark.parametrize("bits", [32, 64])
def test_the_layout_goes_beyond_32_bits(host_library, bits):
    capacities = [2**k + d for k in range(47) for d in (-1, 0, 1) if 1 <= 2**k + d <= 2**46]
    for capacity in capacities:
        size, leaves = _layout(capacity, bits)
        assert host_library.rl_prio_bytes(capacity, bits) == size
        assert host_library.rl_prio_leaves_at(capacity, bits) == leaves
        work = host_library.rl_prio_workspace_bytes(capacity)
        assert 64 + 4 * capacity <= work < 64 + 4 * capacity + 16
        assert work % 16 == 0


@pytest.mark.parametrize(("capacity", "bits"), [(0, 32), (-1, 32), (2**46 + 1, 32), (10, 16), (2**63 - 1, 64)])
def test_an_invalid_tree_has_no_size(host_library, capacity, bits):
    assert host_library.rl_prio_bytes(capacity, bits) == -1
    assert host_library.rl_prio_leaves_at(capacity, bits) == -1
    assert bits == 16 or host_library.rl_prio_workspace_bytes(capacity) == -1
