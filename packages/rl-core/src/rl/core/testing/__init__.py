"""Conformance checks: plain functions that show whether a component keeps to the interfaces of rl-core.

Call them from a test. A broken promise raises `rl.core.errors.CheckError`, an `AssertionError` whose message puts the
reason first and names the component last. What a check could not exercise is in the `Report` that it returns, one
sentence each, and is issued as a `rl.core.errors.NotExercisedWarning`. They need nothing but rl-core.
"""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.testing._check_contract import check_contract
    from rl.core.testing._check_module import check_module
    from rl.core.testing._check_spec import check_spec
    from rl.core.testing._interrupt import interrupt_at
    from rl.core.testing._report import Report
    from rl.core.testing.backends._check_linear_recurrence import check_linear_recurrence
    from rl.core.testing.backends._check_priority_tree import check_priority_tree
    from rl.core.testing.backends._check_recurrent_backend import check_recurrent_backend, recurrent_reference
    from rl.core.testing.backends._check_row_gather import check_row_gather
    from rl.core.testing.env._check_collector import check_collector
    from rl.core.testing.env._check_env import check_env
    from rl.core.testing.env._check_env_specs import check_env_specs
    from rl.core.testing.env._check_transform import check_transform
    from rl.core.testing.env._entries import group_faults
    from rl.core.testing.loss._check_estimator import check_estimator
    from rl.core.testing.loss._check_loss import check_loss
    from rl.core.testing.plugin._check_component import check_component
    from rl.core.testing.plugin._check_plugin import check_plugin
    from rl.core.testing.replay._check_sampler import check_sampler
    from rl.core.testing.replay._check_storage import check_storage
    from rl.core.testing.replay._check_writer import check_writer
    from rl.core.testing.run._check_logger import check_logger
    from rl.core.testing.run._check_recipe import check_recipe
    from rl.core.testing.toys._backends import ToyPriorityTree, ToyRecurrentBackend, ToyRowGather, toy_linear_recurrence
    from rl.core.testing.toys._counting_env import CountingEnv

__all__ = [
    "CountingEnv",
    "Report",
    "ToyPriorityTree",
    "ToyRecurrentBackend",
    "ToyRowGather",
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
    "check_priority_tree",
    "check_recipe",
    "check_recurrent_backend",
    "check_row_gather",
    "check_sampler",
    "check_spec",
    "check_storage",
    "check_transform",
    "check_writer",
    "group_faults",
    "interrupt_at",
    "recurrent_reference",
    "toy_linear_recurrence",
]

__getattr__, __dir__ = lazy_exports(__name__)
