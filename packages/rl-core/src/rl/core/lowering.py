"""Old names of `rl.core.tensor_functions`; they are removed with the next series."""

from rl.core import tensor_functions as _new

Lowered = _new.TensorFunction
LoweredDistribution = _new.DistributionFunction
chain = _new.chain
compile_with_warmup = _new.compile_with_warmup
lower = _new.as_function
lower_distribution = _new.as_distribution_function
lower_env = _new.as_tensor_env
run_layers = _new.run_layers
unhooked = _new.unhooked

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
