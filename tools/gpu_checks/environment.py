"""Checks of the section "environment": the device, its compilers, and the libraries of the packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from gpu_checks.harness import Check, Context, Figures, Skipped

PACKAGES = Path(__file__).resolve().parents[2] / "packages"


def checks(context: Context) -> list[Check]:
    """Return the checks of this section."""

    def device() -> Figures:
        if context.dry:
            raise Skipped("no CUDA device")
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "processors": properties.multi_processor_count,
            "GiB": properties.total_memory / 2**30,
            "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "CUDA of torch": torch.version.cuda or "none",
        }

    def bandwidth() -> Figures:
        if context.dry:
            raise Skipped("no CUDA device")
        data = torch.empty(2**31, dtype=torch.uint8, device=context.device)
        copy = torch.empty_like(data)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        copy.copy_(data)
        start.record()
        for _ in range(10):
            copy.copy_(data)
        end.record()
        torch.cuda.synchronize()
        return {"TB/s, read and written": 10 * 2 * data.numel() / start.elapsed_time(end) / 1e9}

    return [
        Check("device", device),
        Check("versions", _versions),
        Check("copy within the device", bandwidth),
        Check("rl doctor", _doctor),
        Check("nvcc builds rl-prio-cuda, and it loads", _build, seconds=120.0),
    ]


def _versions() -> Figures:
    found: Figures = {"python": sys.version.split()[0], "torch": torch.__version__}
    names = ("triton", "tensordict", "gymnasium", *sorted(p.name for p in PACKAGES.iterdir() if p.is_dir()))
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    found["nvcc"] = _said("nvcc", "--version").splitlines()[-1]
    return found


def _said(program: str, *words: str) -> str:
    if shutil.which(program) is None:
        return "absent"
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() or f"failed with status {done.returncode}"


def _doctor() -> Figures:
    done = subprocess.run(
        [sys.executable, "-m", "rl.core", "doctor"], capture_output=True, text=True, check=False, timeout=120
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split()[0]: " ".join(line.split()[1:])[:80] for line in done.stdout.splitlines() if " on cuda" in line}


def _build() -> Figures:
    """Build the library in a folder of its own from the sources of this checkout, and call it in another process."""
    if shutil.which("nvcc") is None:
        raise Skipped("no nvcc")
    source = PACKAGES / "rl-prio-cuda" / "src" / "rl" / "prio_cuda"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "prio_cuda")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("_lib", "__pycache__"))
        code = (
            "import runpy, ctypes, glob, sys;"
            f"said = runpy.run_path({str(copy / '_build.py')!r})['build']();"
            f"found = glob.glob({str(copy / '_lib')!r} + '/*.so');"
            "assert said == 'ok' and found, said;"
            "ctypes.CDLL(found[0]); print(len(open(found[0], 'rb').read()))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return {"MB": int(done.stdout.split()[-1]) / 1e6}
