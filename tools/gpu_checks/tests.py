"""Checks of the section "tests": what is marked `gpu`, and ordinary tests with `--device cuda`."""

from __future__ import annotations

from importlib.util import find_spec

from gpu_checks.harness import Check, Context
from gpu_checks.suites import Suite, suite_checks

ORDINARY = {
    "specs": ["rl-core/tests/specs"],
    "native environments": ["rl-envs/tests/native"],
    "transforms": ["rl-envs/tests/transforms"],
    "estimators": ["rl-objectives/tests/estimators", "rl-objectives/tests/functional"],
    "losses": ["rl-objectives/tests/losses", "rl-objectives/tests/offline", "rl-objectives/tests/multi_agent"],
    "modules": ["rl-modules/tests"],
    "storages": ["rl-replay/tests/storages", "rl-replay/tests/writers"],
    "samplers": ["rl-replay/tests/samplers", "rl-replay/tests/slices"],
}
"""Tests that take `--device`, quick ones first."""
MARKED = [
    "../tests/test_recorded_steps.py",
    "../tests/test_states_and_devices.py",
    "rl-collectors/tests/test_settings.py",
    "rl-testing/tests/test_check_transform.py",
    "rl-envs/tests/base/test_options.py",
]
"""Tests with the mark `gpu` outside of the packages for CUDA, whose tests are in the section "kernels"."""


PAGES = [
    "../docs/howto/devices.md",
    "../docs/howto/native-environments.md",
    "../docs/howto/recurrent.md",
    "../docs/howto/replay.md",
    "../docs/internals/prio-cuda.md",
    "../docs/internals/recurrent-triton.md",
    "rl-prio-cuda/README.md",
    "rl-recurrent-triton/README.md",
]
"""Pages whose examples run on a GPU where there is one."""


def checks(context: Context) -> list[Check]:
    """Return the checks of this section."""
    place = ["--device", context.device.type]
    marked = Suite(["-m", "not gpu" if context.dry else "gpu"], {"marked gpu": MARKED[:1] if context.dry else MARKED})
    rooms = {"specs": ["rl-core/tests/specs/test_leaves.py"]} if context.dry else ORDINARY
    ordinary = Suite([*place, "-m", "not gpu and not cpu"], rooms)
    found = suite_checks(context, marked)
    if find_spec("sybil") and not context.dry:  # `./x test` runs them on a CPU
        found += suite_checks(context, Suite([], {"pages": PAGES}))
    return [*found, *suite_checks(context, ordinary)]
