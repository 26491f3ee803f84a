"""The Triton kernels are compiled for real GPUs, without one: no stack, and shared memory that every GPU has."""

import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="the Triton twin needs triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from rl.prio_cuda import _triton_kernels as kernels  # noqa: E402
from rl.prio_cuda._triton import _ALONE, _ALONE_OPTIONS, _OPTIONS, interpreted  # noqa: E402

pytestmark = pytest.mark.skipif(interpreted(), reason="TRITON_INTERPRET is set: nothing is compiled")

SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
SHORT = (90, True)  # what is no long variant; float64 leaves take more registers
LANES = 128

POINTERS = {"tree": "*u8", "work": "*u8", "index": "*i64", "u": "*fp64"}
SCALARS = dict.fromkeys(("leaves", "n", "most", "step", "rows", "eps", "alpha", "beta", "capacity", "padded"), "i64")
SCALARS |= dict.fromkeys(("height", "first", "levels"), "i32")

CASES = {
    "elect": [{"FROM_ERRORS": False}, {"FROM_ERRORS": True}],
    "write": [
        {"FROM_ERRORS": False, "RAW": False, "LARGEST": False},
        {"FROM_ERRORS": True, "RAW": True, "LARGEST": True},
    ],
    "check_leaves": [{}],
    "level": [{"BOTTOM": True, "FULL": True}, {"BOTTOM": True, "FULL": False}, {"BOTTOM": False, "FULL": False}],
    "above": [{"BOTTOM": True}, {"BOTTOM": False}],
    "sample": [
        {"STRATIFIED": False, "WEIGHTED": True},
        {"STRATIFIED": True, "WEIGHTED": False},
    ],
    "get": [{}],
}


def _cases():
    for name, variants in CASES.items():
        for variant in variants:
            said = "-".join(f"{key.lower()}={value}" for key, value in variant.items())
            yield pytest.param(name, variant, id=f"{name}-{said}".rstrip("-"))


@pytest.mark.parametrize(
    ("arch", "wide"),
    [
        pytest.param(
            arch, wide, id=f"{arch}-float{64 if wide else 32}", marks=[] if (arch, wide) == SHORT else pytest.mark.slow
        )
        for arch in SHARED
        for wide in (False, True)
    ],
)
@pytest.mark.parametrize(("name", "variant"), list(_cases()))
def test_kernels_compile_without_a_stack(arch, name, variant, wide, tmp_path):
    function, real = getattr(kernels, name), "*fp64" if wide else "*fp32"
    alone = name == "above"
    constants = {**variant, "WIDE": wide, "Q": _ALONE if alone else LANES}
    signature = {
        argument: "constexpr" if argument in constants else (POINTERS | SCALARS).get(argument, real)
        for argument in function.arg_names
    }
    if name == "get":
        signature["out"] = real
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    options = _ALONE_OPTIONS if alone else _OPTIONS
    compiled = triton.compile(
        ASTSource(function, signature, constants, aligned), target=GPUTarget("cuda", arch, 32), options=options
    )
    assert compiled.metadata.shared <= SHARED[arch]
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", said).groups())
    assert stack == 0, f"{name} spills: {stack} bytes of stack, {registers} registers"
    assert registers * 32 * options["num_warps"] <= 65536


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("_follow", {"ring": "*i64", "at": "*i64", "steps": "i32"}),
        ("_draw", {"tree": "*u8", "at": "*i64", "u": "*fp64", "index": "*i64", "levels": "i32", "leaves": "i64"}),
    ],
)
def test_the_kernels_of_the_benchmark_compile(monkeypatch, name, signature):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import prio_kernels

    function = getattr(prio_kernels, name)
    assert function.arg_names == list(signature)
    made = triton.compile(
        ASTSource(function, signature, {}), target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}
    )
    assert name != "_follow" or "ld.global.cg" in made.asm["ptx"]
