"""What ``rl migrate --from sb3`` makes of code for Stable-Baselines3: settings of a recipe, and a call that trains.

Defaults of Stable-Baselines3 that differ from ours are written out, so that the settings stay the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

import libcst as cst
from libcst.metadata import QualifiedName, QualifiedNameProvider

from rl.core.errors import RLError
from rl.torchrl._migrate import MigrateTransformer, code, literal
from rl.torchrl._migrate_sources import Answer

PAGE = "docs/coming-from-sb3.md"

ALGORITHMS = {"A2C": "A2C", "DDPG": "DDPG", "DQN": "DQN", "PPO": "PPO", "SAC": "SAC", "TD3": "TD3"}
"""Classes of Stable-Baselines3, with the stem of ours: ``PPO`` stands for ``PPOConfig`` and ``train_ppo``."""

_COMMON = {"gamma": "gamma", "learning_rate": "learning_rate", "max_grad_norm": "max_grad_norm", "seed": "seed"}
_ON_POLICY = {"gae_lambda": "lmbda", "ent_coef": "entropy_coeff", "vf_coef": "critic_coeff"}
_OFF_POLICY = {"buffer_size": "buffer_size", "learning_starts": "learning_starts", "batch_size": "batch_size"}
_DETERMINISTIC = {
    "policy_delay": "policy_delay",
    "target_policy_noise": "policy_noise",
    "target_noise_clip": "noise_clip",
}

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "A2C": {**_COMMON, **_ON_POLICY},
    "DDPG": {**_COMMON, **_OFF_POLICY, "tau": "tau"},
    "DQN": {
        **_COMMON,
        **_OFF_POLICY,
        "exploration_initial_eps": "eps_init",
        "exploration_final_eps": "eps_end",
        "target_update_interval": "target_every",
    },
    "PPO": {
        **_COMMON,
        **_ON_POLICY,
        "batch_size": "minibatch_size",
        "n_epochs": "epochs",
        "clip_range": "clip_epsilon",
        "clip_range_vf": "clip_value",
        "normalize_advantage": "normalize_advantage",
    },
    "SAC": {**_COMMON, **_OFF_POLICY, "tau": "tau", "target_entropy": "target_entropy"},
    "TD3": {**_COMMON, **_OFF_POLICY, "tau": "tau", **_DETERMINISTIC},
}
"""Arguments by algorithm, with the setting that means the same and takes the same values."""

_ON = {"gamma": 0.99, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5}
_OFF = {"gamma": 0.99, "buffer_size": 1_000_000, "learning_starts": 100, "train_freq": 1, "gradient_steps": 1}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "A2C": {**_ON, "learning_rate": 7e-4, "n_steps": 5, "gae_lambda": 1.0},
    "DDPG": {**_OFF, "learning_rate": 1e-3, "batch_size": 256, "tau": 0.005},
    "DQN": {
        **_OFF,
        "learning_rate": 1e-4,
        "batch_size": 32,
        "tau": 1.0,
        "train_freq": 4,
        "target_update_interval": 10_000,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.05,
        "max_grad_norm": 10.0,
    },
    "PPO": {**_ON, "learning_rate": 3e-4, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "gae_lambda": 0.95},
    "SAC": {**_OFF, "learning_rate": 3e-4, "batch_size": 256, "tau": 0.005},
    "TD3": {**_OFF, "learning_rate": 1e-3, "batch_size": 256, "tau": 0.005},
}
"""Defaults of Stable-Baselines3 2, of arguments that have a counterpart."""

FIXED: Mapping[str, Mapping[str, Any]] = {
    "A2C": {"anneal_lr": False},
    "DQN": {"double_dqn": False, "num_cells": (64, 64)},
    "DDPG": {"num_cells": (400, 300), "exploration_noise": 0.0},
    "PPO": {"anneal_lr": False},
    "TD3": {"num_cells": (400, 300), "exploration_noise": 0.0},
}
"""What these algorithms do there unless their arguments say otherwise, as our settings."""

NEEDLESS = frozenset(
    ["verbose", "stats_window_size", "log_interval", "progress_bar", "tb_log_name", "_init_setup_model"]
)
"""Arguments about what is printed, which are left out."""

REMEDIES = {
    "action_noise": "use exploration_noise= and noise=, in half widths of the bounds",
    "callback": "use eval_every= and checkpoint_every= of the settings, or callbacks= of train",
    "exploration_fraction": "use annealing_num_steps=, a number of frames",
    "gradient_steps": "use utd_ratio=, gradient steps for each frame",
    "optimize_memory_usage": "use a storage of rl.replay in a recipe of your own",
    "replay_buffer_class": "use sampler=, or a recipe of your own",
    "reset_num_timesteps": "use resume= of train, with the folder of the run",
    "rms_prop_eps": "the optimizer is a setting of a2c; see `rl train a2c --help`",
    "target_kl": "target_kl= ends an update at another multiple of it; see `rl train ppo --help`",
    "tensorboard_log": "TensorBoard events are in the run folder; use out= of train to name it",
    "train_freq": "use frames_per_batch=, frames between two rounds of updates",
    "use_sde": "use a recipe of your own with rl.modules.gSDEModule",
}
"""What to use in place of other arguments."""

METHODS = {
    "load": "use rl.trainers.load_run, with the folder of the run",
    "predict": "use rl.trainers.load_policy, whose predict() is called in the same way, or `rl eval RUN`",
    "save": "the checkpoints are in the run folder, RESULT.folder",
}
"""What to use in place of methods of an algorithm."""

NAMES = {
    "evaluate_policy": "use rl.trainers.evaluate(load_run(RESULT.folder)), or `rl eval RUN`",
    "make_vec_env": "use num_envs= of the settings, or rl.envs.GymEnv(id, num_envs=)",
    "DummyVecEnv": "use num_envs= of the settings",
    "SubprocVecEnv": "use num_envs= and workers= of the settings",
    "VecNormalize": "use normalize_observation= and normalize_reward= of the settings",
    "VecFrameStack": "use frame_stack= of the settings",
    "EvalCallback": "use eval_every= of the settings",
    "CheckpointCallback": "use checkpoint_every= and keep_checkpoints= of the settings",
    "check_env": "use rl.envs.check_env(GymWrapper(env))",
    "Monitor": "unused: returns are recorded by the recipes",
    "HerReplayBuffer": "use rl.replay.HERReplayBuffer; see docs/howto/her.md",
}
"""What to use in place of other names."""


class StableBaselines3:
    """Rules for Stable-Baselines3."""

    roots = ("stable_baselines3",)

    def __init__(self) -> None:
        if find_spec("rl.trainers") is None:
            raise RLError("rl migrate --from sb3 needs the settings of rl-trainers: pip install rl-trainers")

    def transformer(self) -> MigrateTransformer:
        """Return the transformer of a module."""
        return _Transformer(self)

    def name(self, old: str) -> Answer | None:
        """See `rl.torchrl._migrate_sources.Source`."""
        module, _, name = old.rpartition(".")
        if name in ALGORITHMS:
            return Answer(f"rl.trainers.{ALGORITHMS[name]}Config")
        if name in NAMES:
            return Answer(note=f"{name}: {NAMES[name]}")
        if not module or name.islower():  # a module
            return None
        return Answer(note=f"{name} has no counterpart; see {PAGE}")

    def imports(self, new: str) -> list[str]:
        """Return what is imported for a name."""
        return [new, f"rl.trainers.{_train(new)}"]

    def argument(self, new: str, argument: str, value: object) -> Answer:
        """Arguments are settled by `_Transformer`."""
        del new, argument, value
        return Answer()

    def subclass(self, new: str) -> str:
        """Return a note for every class that inherits from an algorithm."""
        del new
        return f"a recipe is a page of functions; see {PAGE} and `rl new recipe`"


def _train(config: str) -> str:
    return f"train_{config.rpartition('.')[2].removesuffix('Config').lower()}"


class _Transformer(MigrateTransformer):
    """Turns ``PPO("MlpPolicy", env, ...)`` into ``PPOConfig(env=env, ...)``, and ``learn`` into ``train_ppo``."""

    def __init__(self, source: StableBaselines3) -> None:
        super().__init__(source)
        self._made: dict[str, list[tuple[str, cst.Call]]] = {}
        """By the text of a target: dotted names and calls that were assigned to it."""

    def visit_Assign(self, node: cst.Assign) -> None:
        """Note what environments and algorithms are called."""
        if isinstance(node.value, cst.Call):
            call, dotted = node.value, self._qualified_name(node.value.func)
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "learn":  # PPO(...).learn(...)
                inner = call.func.value
                call, dotted = (inner, self._qualified_name(inner.func)) if isinstance(inner, cst.Call) else (call, "")
            for target in node.targets:
                self._made.setdefault(code(target.target), []).append((dotted, call))

    def _qualified_name(self, node: cst.CSTNode) -> str:
        found: Any = self.get_metadata(QualifiedNameProvider, node, ())
        names: list[QualifiedName] = list(found)
        return names[0].name if len(names) == 1 else ""

    def _algorithm(self, node: cst.BaseExpression) -> str:
        """Return the algorithm that an expression is; an empty string for another or an ambiguous one."""
        if isinstance(node, cst.Call):
            return self._name_of(self._qualified_name(node.func))
        made = self._made.get(code(node), [])
        names = {self._name_of(dotted) for dotted, _ in made}
        return names.pop() if len(names) == 1 else ""

    def _name_of(self, dotted: str) -> str:
        root, _, name = dotted.partition(".")
        name = name.rpartition(".")[2]
        return name if root in self.source.roots and name in ALGORITHMS else ""

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Turn an algorithm into settings, and `learn` into training."""
        if name := self._name_of(self._qualified_name(original_node.func)):
            return self._settings(name, original_node, updated_node)
        func = original_node.func
        if not isinstance(func, cst.Attribute):
            return updated_node
        method = func.attr.value
        if name := self._algorithm(func.value):
            if method == "learn":
                return self._training(name, original_node, updated_node)
            self.note(f"{method}: {METHODS.get(method, f'a run has no such method; see {PAGE}')}")
        elif self._name_of(self._qualified_name(func).rpartition(".")[0]):  # PPO.load
            self.note(f"{method}: {METHODS.get(method, f'it has no counterpart; see {PAGE}')}")
        return updated_node

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> Any:
        """Keep the result of training under the name of the algorithm."""
        call = original_node.value
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and call.func.attr.value == "learn":
            target = call.func.value
            if isinstance(target, (cst.Name, cst.Attribute)) and self._algorithm(target):
                return cst.Assign([cst.AssignTarget(target)], updated_node.value)
        return updated_node

    def _training(self, name: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        config: Any = updated.func
        config = config.value
        frames: cst.BaseExpression | None = None
        for position, arg in enumerate(original.args):
            keyword = (
                arg.keyword.value if arg.keyword is not None else "total_timesteps" if position == 0 else "callback"
            )
            if keyword == "total_timesteps":
                frames = _whole(arg.value)
            elif keyword not in NEEDLESS:
                self.note(f"learn({keyword}=): {REMEDIES.get(keyword, f'no counterpart; see {PAGE}')}")
        if frames is not None and isinstance(config, cst.Call):
            config = config.with_changes(args=[*_with_comma(config.args), _keyword("total_frames", frames)])
        elif frames is not None:
            self.modules.add("dataclasses")
            config = cst.Call(
                cst.Attribute(cst.Name("dataclasses"), cst.Name("replace")),
                [cst.Arg(config), _keyword("total_frames", frames)],
            )
        return cst.Call(cst.Name(_train(f"{ALGORITHMS[name]}Config")), [cst.Arg(config)])

    def _settings(self, name: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        given = {
            arg.keyword.value
            if arg.keyword is not None
            else ("policy", "env", "learning_rate")[min(position, 2)]: arg.value
            for position, arg in enumerate(original.args)
        }
        settings: dict[str, cst.BaseExpression] = {}
        num_envs = self._environment(given.pop("env", None), settings)
        self._policy(given.pop("policy", None), given.pop("policy_kwargs", None), settings)
        config = resolve_name(f"rl.trainers:{ALGORITHMS[name]}Config")
        values = {argument: _expression(value) for argument, value in DEFAULTS[name].items()} | given
        self._schedule(name, values, given, num_envs, settings)
        for argument, value in values.items():
            if argument in SETTINGS[name]:
                self._setting(name, argument, value, settings)
            elif argument not in NEEDLESS:
                self._rest(argument, value, settings)
        fixed = {setting: _expression(value) for setting, value in FIXED.get(name, {}).items()}
        if "action_noise" in given:
            fixed.pop("exploration_noise", None)  # as `action_noise` says
        ours = {one.name: one.default for one in dataclasses.fields(config)}
        explicit = {"env", *(SETTINGS[name].get(argument) for argument in given)}
        explicit |= {"frames_per_batch"} if {"n_steps", "train_freq"} & given.keys() else set()
        kept = {
            setting: value
            for setting, value in {**settings, **{one: fixed[one] for one in fixed if one not in settings}}.items()
            if setting in explicit or not _is(ours.get(setting, ...), literal(value))
        }
        func = cst.Name(f"{ALGORITHMS[name]}Config")
        return updated.with_changes(func=func, args=[_keyword(setting, value) for setting, value in kept.items()])

    def _environment(self, env: cst.BaseExpression | None, settings: dict[str, cst.BaseExpression]) -> int:
        """Set `env` and `num_envs`, and return the latter; 0 if it is unknown."""
        if env is None:
            self.note("the environment is not given here: set env=")
            return 0
        made = self._made.get(code(env), [])
        dotted, call = made[0] if len(made) == 1 else ("", None)
        if isinstance(literal(env), str) or dotted in ("gym.make", "gymnasium.make"):
            first = call.args[0].value if call is not None and len(call.args) == 1 else env
            settings |= {"env": first, "num_envs": _expression(1)}
            return 1
        if call is not None and dotted.endswith(".make_vec_env"):
            given = {
                arg.keyword.value if arg.keyword else ("env_id", "n_envs")[min(i, 1)]: arg.value
                for i, arg in enumerate(call.args)
            }
            count = literal(given.get("n_envs", _expression(1)))
            if isinstance(count, int) and given.keys() <= {"env_id", "n_envs", "seed"}:
                settings |= {"env": given["env_id"], "num_envs": _expression(count)}
                return count
        settings["env"] = env
        self.note("env= is an id, or an environment of Gymnasium; set num_envs= for several")
        return 0

    def _policy(
        self,
        policy: cst.BaseExpression | None,
        kwargs: cst.BaseExpression | None,
        settings: dict[str, cst.BaseExpression],
    ) -> None:
        if policy is not None and literal(policy) not in ("MlpPolicy", "CnnPolicy", "MultiInputPolicy"):
            self.note(f"{code(policy)}: networks are those of the recipe; see {PAGE}")
        if kwargs is None:
            return
        if isinstance(kwargs, cst.Call) and code(kwargs.func) == "dict":
            named = {arg.keyword.value: arg.value for arg in kwargs.args if arg.keyword is not None}
        else:
            named = {"policy_kwargs": kwargs}
        for argument, value in named.items():
            cells, text = literal(value), code(value).rpartition(".")[2].lower()
            if (
                argument == "net_arch"
                and isinstance(cells, (list, tuple))
                and all(isinstance(one, int) for one in cells)
            ):
                settings["num_cells"] = _expression(tuple(cells))
            elif argument == "activation_fn" and text in ("relu", "tanh"):
                settings["activation"] = _expression(text)
            else:
                self.note(f"{argument}: use num_cells= and activation=, or a recipe of your own")

    def _schedule(
        self,
        name: str,
        values: dict[str, cst.BaseExpression],
        given: Mapping[str, cst.BaseExpression],
        num_envs: int,
        settings: dict[str, cst.BaseExpression],
    ) -> None:
        """Set how many frames are between two updates, and how many updates follow."""
        if "n_steps" in values:
            steps = values.pop("n_steps")
            if num_envs:
                settings["frames_per_batch"] = _times(steps, num_envs)
            else:
                self.note(f"n_steps: set frames_per_batch to num_envs * {code(steps)}")
        if name == "DQN":
            if literal(values.pop("tau")) == 1.0:
                settings["tau"] = _expression(0.0)  # the target network is copied every target_every frames
            else:
                self.note("tau: with tau above 0 the target network moves after each gradient step")
        frequency, updates = (literal(values.pop(one, _expression(None))) for one in ("train_freq", "gradient_steps"))
        if isinstance(frequency, int) and isinstance(updates, int) and num_envs == 1:
            settings["frames_per_batch"] = _expression(frequency)
            settings["utd_ratio"] = _expression(1.0 if updates == -1 else updates / frequency)
        elif frequency is not None:
            for argument in [one for one in ("train_freq", "gradient_steps") if one in given] or ["train_freq"]:
                self.note(f"{argument}: {REMEDIES[argument]}")

    def _setting(
        self, name: str, argument: str, value: cst.BaseExpression, settings: dict[str, cst.BaseExpression]
    ) -> None:
        known = literal(value)
        if known is None:
            return  # the default
        if isinstance(known, str) and argument != "target_entropy":
            self.note(f"{argument}: no counterpart of {known!r}; see {PAGE}")
        elif known is ... and isinstance(value, (cst.Call, cst.Lambda)):
            self.note(f"{argument}: use anneal_lr= or anneal_clip_epsilon= in place of a schedule")
        else:
            settings[SETTINGS[name][argument]] = value

    def _rest(self, argument: str, value: cst.BaseExpression, settings: dict[str, cst.BaseExpression]) -> None:
        known = literal(value)
        if argument == "device" and isinstance(known, str) and known != "auto":
            settings["device"] = value
        elif argument == "ent_coef" and isinstance(known, float):
            settings |= {"alpha_init": value, "fixed_alpha": _expression(True)}  # noqa: FBT003
        elif known is not None and known is not False and (argument, known) != ("ent_coef", "auto"):
            self.note(f"{argument}: {REMEDIES.get(argument, f'no counterpart; see {PAGE}')}")


def _expression(value: object) -> cst.BaseExpression:
    return cst.parse_expression(repr(value))


def _is(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(name), equal=tight)


def _with_comma(args: Any) -> list[cst.Arg]:
    return [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in args]


def _times(steps: cst.BaseExpression, count: int) -> cst.BaseExpression:
    known = literal(steps)
    if isinstance(known, int):
        return _expression(known * count)
    return steps if count == 1 else cst.parse_expression(f"{count} * ({code(steps)})")


def _whole(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return a number of frames; ``1e5`` as an integer."""
    known = literal(value)
    return _expression(int(known)) if isinstance(known, float) else value
