"""Lowered forms: functions of tensors in place of calls on TensorDicts, where they give the same numbers.

A `TensorDictModule` costs some 50 microseconds per call on top of its network. A component that calls a module many
times (a collector, a loss) calls its *lowered* form: a function from the tensors under its ``in_keys`` to those under
its ``out_keys``. A class offers its own with a method ``lowered()``; the classes of `tensordict.nn` are known here. A
module without a lowered form gives None and is called as it is: lowering changes speed, never results.
"""

from rl.core.lowering._compile import compile_with_warmup
from rl.core.lowering._lower import (
    Lowered,
    LoweredDistribution,
    chain,
    lower,
    lower_distribution,
    lower_env,
    run_layers,
    unhooked,
)

__all__ = [
    "Lowered",
    "LoweredDistribution",
    "chain",
    "compile_with_warmup",
    "lower",
    "lower_distribution",
    "lower_env",
    "run_layers",
    "unhooked",
]
