"""Protocols that the packages expect of each other; inheriting from them is not required.

Everything that can be expressed without a TensorDict also has a *leaf* form, a plain call on tensors by flat key
(`Leaves`). A component offers it through ``lowered()``; collectors and losses ask `rl.core.lowering` for it and fall
back to the TensorDict form. Both forms give the same numbers.
"""

from rl.core.interfaces._backends import LinearRecurrence, PriorityTree, RecurrentBackend, RowGather
from rl.core.interfaces._collector import Collector
from rl.core.interfaces._env import Env, LeafEnv, Leaves, Transform, missing_env_members
from rl.core.interfaces._logger import Logger
from rl.core.interfaces._loss import Estimator, Loss
from rl.core.interfaces._policy import LoweredModule, Policy
from rl.core.interfaces._replay import Sampler, Storage, Writer

__all__ = [
    "Collector",
    "Env",
    "Estimator",
    "LeafEnv",
    "Leaves",
    "LinearRecurrence",
    "Logger",
    "Loss",
    "LoweredModule",
    "Policy",
    "PriorityTree",
    "RecurrentBackend",
    "RowGather",
    "Sampler",
    "Storage",
    "Transform",
    "Writer",
    "missing_env_members",
]
