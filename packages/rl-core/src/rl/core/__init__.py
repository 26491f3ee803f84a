"""Shared base of all packages: keys, contracts, specs, hooks, the plugin registry, errors.

Importing this package imports neither torch nor tensordict; a name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from rl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from rl.core.__about__ import __version__
    from rl.core.component import CONTRACTS, Command, Component
    from rl.core.contract import Contract, Explanation, Key, check_pipeline, explain
    from rl.core.errors import (
        ArgumentError,
        BackendError,
        BrokenPluginWarning,
        CheckError,
        CheckpointError,
        ContractError,
        DuplicateComponentError,
        MissingExtraError,
        NotExercisedWarning,
        PluginError,
        RLError,
        ShapeError,
        SlowBackendWarning,
        SpecError,
        UnknownArgumentError,
        UnknownComponentError,
    )
    from rl.core.hookspecs import hookimpl
    from rl.core.lowering import Lowered, lower, lower_distribution, lower_env
    from rl.core.mdp import ExplorationType, exploration_type, set_exploration_type, step_mdp
    from rl.core.profiling import profiled, profiling_enabled, set_profiling_enabled, timeit
    from rl.core.recurrent import RecurrentOptions, State, recurrent_mode, set_recurrent_mode, states_of
    from rl.core.registry import PluginRecord, Registry, components, default, load, make
    from rl.core.specs import (
        Binary,
        Bounded,
        Categorical,
        CategoricalBox,
        Composite,
        ContinuousBox,
        MultiCategorical,
        MultiOneHot,
        NonTensor,
        OneHot,
        Stacked,
        TensorSpec,
        Unbounded,
    )
    from rl.core.tensor_functions import (
        DistributionFunction,
        TensorFunction,
        as_distribution_function,
        as_function,
        as_tensor_env,
        compile_with_warmup,
    )

__all__ = [
    "CONTRACTS",
    "ArgumentError",
    "BackendError",
    "Binary",
    "Bounded",
    "BrokenPluginWarning",
    "Categorical",
    "CategoricalBox",
    "CheckError",
    "CheckpointError",
    "Command",
    "Component",
    "Composite",
    "ContinuousBox",
    "Contract",
    "ContractError",
    "DistributionFunction",
    "DuplicateComponentError",
    "Explanation",
    "ExplorationType",
    "Key",
    "Lowered",
    "MissingExtraError",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "NotExercisedWarning",
    "OneHot",
    "PluginError",
    "PluginRecord",
    "RLError",
    "RecurrentOptions",
    "Registry",
    "ShapeError",
    "SlowBackendWarning",
    "SpecError",
    "Stacked",
    "State",
    "TensorFunction",
    "TensorSpec",
    "Unbounded",
    "UnknownArgumentError",
    "UnknownComponentError",
    "__version__",
    "as_distribution_function",
    "as_function",
    "as_tensor_env",
    "check_pipeline",
    "compile_with_warmup",
    "components",
    "default",
    "explain",
    "exploration_type",
    "hookimpl",
    "load",
    "lower",
    "lower_distribution",
    "lower_env",
    "make",
    "profiled",
    "profiling_enabled",
    "recurrent_mode",
    "set_exploration_type",
    "set_profiling_enabled",
    "set_recurrent_mode",
    "states_of",
    "step_mdp",
    "timeit",
]

__getattr__, __dir__ = lazy_exports(__name__)
