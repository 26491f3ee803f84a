"""Checks of the section "kernels": rl-prio-cuda against its twin on the host, rl-recurrent-triton against float64.

Both packages test themselves; on a device their tests marked `gpu` are run, on a CPU the same with kernels compiled for
the host and in Triton's interpreter.
"""

from __future__ import annotations

import torch
from gpu_checks.harness import Check, Context, Figures, Skipped
from gpu_checks.suites import Suite, suite_checks


def checks(context: Context) -> list[Check]:
    """Return the checks of this section."""
    mark = "not gpu" if context.dry else "gpu"
    trees = Suite(
        ["-m", mark],
        {"rl-prio-cuda": ["rl-prio-cuda/tests/test_tree.py"] if context.dry else ["rl-prio-cuda/tests"]},
    )
    recurrent = "rl-recurrent-triton/tests"
    rooms = {"rl-recurrent-triton": [f"{recurrent}/test_plan.py"] if context.dry else [recurrent]}
    return [
        Check("the tree of the device and the tree of the host have the same bytes", lambda: _same_bytes(context)),
        *suite_checks(context, trees),
        *suite_checks(context, Suite(["-m", mark], rooms)),
    ]


def _same_bytes(context: Context) -> Figures:
    """Compare updates and draws on the device, and the same with rl-native's tree, whose bytes mean the same."""
    if context.dry:
        raise Skipped("no CUDA device")
    from rl.native import NativePriorityTree
    from rl.prio_cuda import CudaPriorityTree

    rows, device = 100_000, context.device
    ours, twin = CudaPriorityTree(rows, device=device), NativePriorityTree(rows)
    generator = torch.Generator().manual_seed(0)
    for batch in (rows, 1, 256, 4096, 65_536):
        index = torch.randint(rows, (batch,), generator=generator)
        priority = torch.rand(batch, generator=generator) ** 4
        ours.update(index.to(device), priority.to(device))
        twin.update(index, priority)
        assert torch.equal(ours.buffer.cpu(), twin.buffer), f"after an update of {batch} rows the trees differ"
        u = torch.rand(4096, generator=generator, dtype=torch.float64)
        found, wanted = ours.sample(4096, u=u.to(device)), twin.sample(4096, u=u)
        assert torch.equal(found[0].cpu(), wanted[0]), "the same numbers draw other rows"
    before = ours.buffer.clone()
    ours.update(torch.tensor([5], device=device), torch.tensor([float("nan")], device=device))
    assert torch.equal(ours.buffer, before), "a priority that is NaN was written"
    try:
        ours.check()
    except ValueError:
        return {"rows": rows}
    raise AssertionError("check() does not report a priority that is NaN")
