"""Kernels compile for real GPUs, without one: no stack (nothing spills, but for `SPILLED`), shared memory that fits.

The launch functions are called with tensors of no content, and what they would launch is compiled instead.
"""

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import pytest
import torch

triton = pytest.importorskip("triton", reason="the kernels need triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from rl.core.errors import BackendError  # noqa: E402

# kernels are compiled for GPUs that are not here, from what each launch passes
from rl.recurrent_triton import _launch  # noqa: E402
from rl.recurrent_triton._plan import Device, Launch, plan  # noqa: E402

pytestmark = pytest.mark.skipif(_launch.is_interpreted(), reason="TRITON_INTERPRET is set: nothing is compiled")

# Compute capability, processors, shared memory of a program: A100, RTX 4090, H200, B200.
DEVICES = {
    "a100": (80, Device(108, 166912)),
    "rtx4090": (89, Device(128, 101376)),
    "h200": (90, Device(132, 232448)),
    "b200": (100, Device(148, 232448)),
}
SECONDS = 5  # the aim for one kernel, alone on a processor; the test allows for one that is shared
# Bytes of stack of the kernels that spill a little: masked tiles of 64 columns on a B200, which the estimate takes for
# the products of many rows. On the other devices the same tiles have no stack.
SPILLED = {("b200", "gru", "forward", 300, "tf32x3"): 40}
OPTIONS = {"num_warps", "num_stages", "launch_cooperative_grid", "maxnreg"}
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.bool: "i1", torch.int32: "i32"}


_seen = set()


class _Recorded(Exception):
    """A kernel was about to be launched."""


class _Recorder:
    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        def launch(*given, **constants):
            raise _Recorded(self.function, given, constants)

        return launch


def _recorded(monkeypatch, cell, direction, batch, hidden, dtype, precision, launch, resets):
    """The first kernel that a call launches, and what it is given."""
    for name, function in list(_launch.KERNELS.items()):
        monkeypatch.setitem(_launch.KERNELS, name, _Recorder(function))

    def new(*shape, like=torch.float32):
        return torch.empty(shape, dtype=like)

    def state():
        return new(batch, 1, hidden)

    first, slots = new(batch, hidden), 4 if cell == "lstm" else 3
    weight, gates = new(slots * hidden, hidden, like=dtype), new(batch, 1, 4 * hidden, like=dtype)
    mask, reset = new(batch, 1, like=torch.bool), state() if resets else None
    how = {"precision": precision, "launch": launch}
    given = [first] * (2 if cell == "lstm" else 1)
    after = [state() for _ in given]
    if direction == "forward":
        bias = [] if cell == "lstm" else [first[0].to(dtype)]
        resets = [reset] * len(given)
        what = (gates, weight, *bias, *given, mask, *resets, *after, (0, 1))
        how["keep"] = True
    else:
        grads = [state() for _ in given]
        what = (gates, weight, first, mask, reset, after[0], *grads, *given, gates, reset, (0, 1))
        how["activated"] = reset is None
    with pytest.raises(_Recorded) as caught:
        getattr(_launch, f"{cell}_{direction}")(*what, **how)
    return caught.value.args


def _compiled(function, given, constants, arch):
    options = {name: value for name, value in constants.items() if name in OPTIONS}
    constants = {name: value for name, value in constants.items() if name not in OPTIONS}
    signature, aligned = {}, {}
    for place, parameter in enumerate(function.params):
        value = given[place] if place < len(given) else constants[parameter.name]
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = f"*{TYPES[value.dtype]}"
            aligned[place,] = [["tt.divisibility", 16]]
        elif parameter.name in constants or value is None:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            signature[parameter.name] = parameter.annotation_type
    source = ASTSource(function, signature, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def _cpu_seconds():
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _check(monkeypatch, tmp_path, device, cell, direction, hidden, dtype, precision, batch, shape=None, resets=False):
    arch, properties = DEVICES[device]
    try:
        launch = plan(cell, direction, batch, hidden, dtype, precision, properties, shape)
    except BackendError:
        pytest.skip("the device has no room for this shape")
    what = (cell, direction, batch, hidden, dtype, precision, launch, resets)
    once = (*DEVICES[device][:1], *what[:2], *what[3:6], replace(launch, wave=0), resets)
    if once in _seen:
        pytest.skip("the same has been compiled for another batch")
    _seen.add(once)
    function, given, constants = _recorded(monkeypatch, *what)
    before = _cpu_seconds()
    compiled = _compiled(function, given, constants, arch)
    seconds = _cpu_seconds() - before
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", said).groups())
    shared = compiled.metadata.shared
    print(
        f"\n{device} {cell} {direction} H={hidden} {TYPES[dtype]} {precision} {launch.shape} {launch.rows}x"
        f"{launch.columns}: {seconds:.1f} s, {registers} registers, {stack} stack, {shared // 1024} KB"
    )
    assert shared <= properties.shared_memory_per_block_optin, launch
    most = SPILLED.get((device, cell, direction, hidden, precision), 0)
    assert stack <= most, f"{launch} spills: {stack} bytes of stack, {registers} registers"
    assert registers * 32 * launch.warps <= 65536
    assert seconds < 4 * SECONDS, f"{launch} took {seconds:.1f} s of a processor; the aim is {SECONDS}"


# (device, cell, hidden, dtype, precision, batch, shape, resets): each shape, type and mode, and sizes with tails
FEW = [
    ("h200", "lstm", 256, torch.float32, "tf32", 256, None, False),
    ("h200", "gru", 256, torch.bfloat16, "ieee", 1024, None, True),
    ("h200", "gru", 64, torch.float32, "tf32x3", 32, None, False),
    ("a100", "lstm", 1024, torch.float32, "tf32", 32, None, False),
    ("rtx4090", "gru", 40, torch.float16, "ieee", 32, "group", True),
    ("b200", "lstm", 128, torch.bfloat16, "ieee", 32, None, True),
    ("rtx4090", "lstm", 300, torch.float32, "ieee", 2048, None, True),
]
SIZES = [(device, hidden) for device in DEVICES for hidden in (128, 300)] + [("b200", 512)]
SIZES += [("h200", hidden) for hidden in (16, 40, 64, 96, 200, 256, 384, 512, 700, 1024)]
MODES = [(torch.float32, "ieee"), (torch.float32, "tf32"), (torch.float32, "tf32x3")]
MODES += [(torch.bfloat16, "ieee"), (torch.float16, "ieee")]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("what", FEW, ids=lambda what: "-".join(map(str, what)).replace("torch.", ""))
def test_kernels_compile_without_a_stack(monkeypatch, tmp_path, direction, what):
    device, cell, hidden, dtype, precision, batch, shape, resets = what
    _check(monkeypatch, tmp_path, device, cell, direction, hidden, dtype, precision, batch, shape, resets)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "hidden"), SIZES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(("dtype", "precision"), MODES, ids=str)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("batch", "resets"), [(32, False), (256, True), (1024, True), (8192, True)])
def test_all_of_them(monkeypatch, tmp_path, device, cell, hidden, dtype, precision, direction, batch, resets):
    if dtype == torch.float16 and (device != "h200" or hidden not in {40, 256}):
        pytest.skip("differs from bfloat16 in nothing but the type of an instruction")
    _check(monkeypatch, tmp_path, device, cell, direction, hidden, dtype, precision, batch, resets=resets)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_programs_of_a_group_hand_over_in_order(monkeypatch, direction, ahead):
    """Acquire, barrier, product; writes, barrier, release; states of others do not come from the near cache."""
    launch = Launch("group", depth=64, ahead=ahead, stages=3, wave=1)
    what = ("gru", direction, 16, 64, torch.bfloat16, "ieee", launch, False)
    text = _compiled(*_recorded(monkeypatch, *what), 90).asm["ptx"]
    waits, tells = list(re.finditer(r"ld\.\S*acquire", text)), list(re.finditer(r"(atom|red)\.\S*release", text))
    assert len(waits) == 1
    assert len(tells) == 1
    products = [found.start() for found in re.finditer(r"\bw?g?mma\.", text) if found.start() > waits[0].start()]
    assert "bar.sync" in text[waits[0].end() : products[0]]
    written = text.rindex("st.global", 0, tells[0].start())
    assert "bar.sync" in text[written : tells[0].start()]
    near = re.findall(r"cp\.async\.ca\S*", text)
    assert not near


def _states_before():
    arguments = {"h0": torch.float32, "h": torch.float32, "mask": torch.bool, "reset_h": torch.float32}
    return [torch.empty(0, dtype=dtype) for dtype in (*arguments.values(), torch.bfloat16)]


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_states_before_compiles(arch, tmp_path):
    constants = {"H": 300, "BB": 16, "BN": 64, "RESET_H_UNIT": 4}
    compiled = _compiled(_launch.KERNELS["states_before"], [*_states_before(), *range(8)], constants, arch)
    assert compiled.metadata.shared <= 48 * 1024
