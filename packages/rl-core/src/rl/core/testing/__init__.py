"""Conformance checks: plain functions that show whether a component keeps to the interfaces of rl-core.

Call them from a test; they raise AssertionError with a sentence that says what is wrong. They are what the
packages of this project are tested with, and they need nothing but rl-core.
"""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.testing._contract import check_contract
    from rl.core.testing._env import check_env, check_env_specs
    from rl.core.testing._loss import check_loss
    from rl.core.testing._priority_tree import check_priority_tree
    from rl.core.testing._recurrence import check_linear_recurrence
    from rl.core.testing._recurrent import check_recurrent_backend, recurrent_reference
    from rl.core.testing._replay import check_sampler, check_storage, check_writer
    from rl.core.testing._row_gather import check_row_gather
    from rl.core.testing._spec import check_spec
    from rl.core.testing._toy import ToyPriorityTree, ToyRecurrentBackend, ToyRowGather, toy_linear_recurrence
    from rl.core.testing._toy_env import CountingEnv
    from rl.core.testing._transform import check_transform

__all__ = [
    "CountingEnv",
    "ToyPriorityTree",
    "ToyRecurrentBackend",
    "ToyRowGather",
    "check_contract",
    "check_env",
    "check_env_specs",
    "check_linear_recurrence",
    "check_loss",
    "check_priority_tree",
    "check_recurrent_backend",
    "check_row_gather",
    "check_sampler",
    "check_spec",
    "check_storage",
    "check_transform",
    "check_writer",
    "recurrent_reference",
    "toy_linear_recurrence",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "rl.core.testing._contract": ["check_contract"],
        "rl.core.testing._env": ["check_env", "check_env_specs"],
        "rl.core.testing._loss": ["check_loss"],
        "rl.core.testing._priority_tree": ["check_priority_tree"],
        "rl.core.testing._recurrence": ["check_linear_recurrence"],
        "rl.core.testing._recurrent": ["check_recurrent_backend", "recurrent_reference"],
        "rl.core.testing._replay": ["check_sampler", "check_storage", "check_writer"],
        "rl.core.testing._row_gather": ["check_row_gather"],
        "rl.core.testing._spec": ["check_spec"],
        "rl.core.testing._toy": ["ToyPriorityTree", "ToyRecurrentBackend", "ToyRowGather", "toy_linear_recurrence"],
        "rl.core.testing._toy_env": ["CountingEnv"],
        "rl.core.testing._transform": ["check_transform"],
    },
)
