"""Conformance checks: plain functions that show whether a component keeps to the interfaces of rl-core.

Call them from a test. A broken promise raises `rl.core.errors.CheckError`, an `AssertionError` whose message puts the
reason first and names the component last. What a check could not exercise is in the `Report` that it returns, one
sentence each, and is issued as a `rl.core.errors.NotExercisedWarning`. They need nothing but rl-core.
"""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.env_specs import check_env_specs, group_faults
    from rl.testing.__about__ import __version__
    from rl.testing._collector import check_collector
    from rl.testing._component import check_contract, check_module
    from rl.testing._env import check_env
    from rl.testing._env_judge import EnvRow, examine_env
    from rl.testing._kernels import check_linear_recurrence, check_policy_step, check_row_gather
    from rl.testing._loss import check_estimator, check_loss
    from rl.testing._plugin import check_component, check_plugin, examine_plugin
    from rl.testing._priority_tree import check_priority_tree
    from rl.testing._recurrent_backend import check_recurrent_backend, recurrent_reference
    from rl.testing._replay import check_sampler, check_storage, check_writer
    from rl.testing._report import Report
    from rl.testing._run import check_logger, check_recipe
    from rl.testing._spec import check_spec
    from rl.testing._toys import (
        CountingEnv,
        ToyPriorityTree,
        ToyRecurrentBackend,
        ToyRowGather,
        interrupt_at,
        toy_linear_recurrence,
    )
    from rl.testing._transform import check_transform

__all__ = [
    "CountingEnv",
    "EnvRow",
    "Report",
    "ToyPriorityTree",
    "ToyRecurrentBackend",
    "ToyRowGather",
    "__version__",
    "check_collector",
    "check_component",
    "check_contract",
    "check_env",
    "check_env_specs",
    "check_estimator",
    "check_linear_recurrence",
    "check_logger",
    "check_loss",
    "check_module",
    "check_plugin",
    "check_policy_step",
    "check_priority_tree",
    "check_recipe",
    "check_recurrent_backend",
    "check_row_gather",
    "check_sampler",
    "check_spec",
    "check_storage",
    "check_transform",
    "check_writer",
    "examine_env",
    "examine_plugin",
    "group_faults",
    "interrupt_at",
    "recurrent_reference",
    "toy_linear_recurrence",
]

__getattr__, __dir__ = lazy_exports(__name__)
