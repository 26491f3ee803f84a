"""Settings of a run: what every algorithm has, and the rules that values keep. Imports no torch, so --help is fast.

A rule stands at the field::

    policy_noise: float = at_least(0, 0.2)
    buffer_size: int = checked(50_000, where(lambda n, config: n >= config.batch_size, "at least batch_size"))

A subclass that gives a field another default keeps the rules of its bases, and its own ones are added to them.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from rl.core.errors import ArgumentError, issue_warning
from rl.trainers._named import is_argument, named_env
from rl.trainers._schedules import SHAPES, Annealing

__all__ = [
    "ConfigField",
    "OldNameWarning",
    "Rule",
    "RunConfig",
    "above",
    "at_least",
    "checked",
    "config_fields",
    "in_range",
    "old_names",
    "one_of",
    "where",
    "with_new_names",
]

POLICIES = ("mlp", "lstm", "gru")
"""Networks that a policy can be made of; all but the first are recurrent."""

DISCOUNTS = "0.9,0.95,0.98,0.99,0.995,0.999"
"""Range of `gamma` that ``rl tune`` searches."""

LAYOUTS = ("auto", "channels-first", "channels-last", "flat")
"""How observations with two or more dimensions may be read."""


@dataclass(frozen=True)
class Rule:
    """What a value of a field has to be.

    Args:
        accepts: Function that returns whether a value is good; called with the value, and with the config if `related`.
        wanted: Words after "must be"; of a related rule with fields of the config in braces, or made from the config.
        related: Whether the rule is about other fields, too; these have been checked by themselves before.
        names: Values that are good, where these are a few names.
    """

    accepts: Callable[..., Any]
    wanted: str | Callable[[Any], str]
    related: bool = False
    names: tuple[str, ...] = ()

    def broken(self, config: Any, value: Any) -> str:
        """Return the words for what was wanted if `value` breaks the rule, else an empty string."""
        if self.accepts(value, config) if self.related else self.accepts(value):
            return ""
        if not isinstance(self.wanted, str):
            return self.wanted(config)
        return self.wanted.format_map(_Values(config)) if self.related else self.wanted


class _Values(dict[str, Any]):
    """The fields of a config by name."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._config = config

    def __missing__(self, name: str) -> Any:
        return getattr(self._config, name)


def checked(default: Any, *rules: Rule, repeated: bool = False, search: str = "") -> Any:
    """Define a field with rules.

    Args:
        default: Value of the field where none is given; a function of no arguments creates it.
        rules: Rules of the values.
        repeated: Whether the option may be given several times, once for each entry.
        search: Range that ``rl tune`` searches: ``"low..high"``, ``"low..high:log"`` for a logarithmic scale, or values
            ``"a,b,c"``; empty for none. A subclass that gives the field another default keeps it.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class MyConfig(RunConfig):
        ...     width: int = checked(64, where(lambda n, config: n % config.num_envs == 0, "a multiple of {num_envs}"))
        >>> MyConfig(num_envs=10)
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: MyConfig: width must be a multiple of 10, got 64
    """
    metadata = {"rules": rules, "repeated": repeated, "search": search}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def where(accepts: Callable[[Any, Any], Any], wanted: str | Callable[[Any], str]) -> Rule:
    """Define a rule about a value and the other fields: ``accepts(value, config)``."""
    return Rule(accepts, wanted, related=True)


def above(low: float, default: Any, *rules: Rule, search: str = "") -> Any:
    """Define a field whose values are above `low`; the other arguments are those of `checked`.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class MyConfig(RunConfig):
        ...     learning_rate: float = above(0, 1e-3)
        >>> MyConfig(learning_rate=0)
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: MyConfig: learning_rate must be above 0, got 0
    """
    return checked(default, Rule(lambda value: value > low, f"above {low:g}"), *rules, search=search)


def at_least(low: float, default: Any, *rules: Rule, search: str = "") -> Any:
    """Define a field whose values are `low` or more; the other arguments are those of `checked`."""
    return checked(default, Rule(lambda value: value >= low, f"{low:g} or more"), *rules, search=search)


def in_range(low: float, high: float, default: Any, *rules: Rule, search: str = "") -> Any:
    """Define a field whose values are in ``[low, high]``; the other arguments are those of `checked`."""
    rule = Rule(lambda value: low <= value <= high, f"in [{low:g}, {high:g}]")
    return checked(default, rule, *rules, search=search)


def one_of(names: Iterable[str], default: str, *rules: Rule) -> Any:
    """Define a field whose values are among `names`."""
    names = tuple(names)
    return checked(default, Rule(lambda value: value in names, f"one of {', '.join(names)}", names=names), *rules)


DIVIDED = ("num_envs", "workers", "frames_per_batch", "batch_size", "minibatch_size")
"""Numbers of which each learner has an equal share."""


def _not_divided(config: Any) -> dict[str, int]:
    """Return the numbers of `DIVIDED` that cannot be shared equally."""
    names = [one.name for one in dataclasses.fields(config) if one.name in DIVIDED]
    return {name: getattr(config, name) for name in names if getattr(config, name) % config.learners}


_NO_ACTORS = where(
    lambda given, config: not (given and config.ray and config.workers),
    "left out with ray: actors share no statistics",
)


def annealed(*rules: Rule, default: Annealing) -> Any:
    """Define a field of how a setting falls over a run: not at all, linearly, or as a cosine."""
    return checked(default, Rule(lambda shape: shape in SHAPES, "true, false, linear or cosine"), *rules)


def widths(default: tuple[int, ...], *rules: Rule, search: str = "") -> Any:
    """Define a field of widths of layers."""
    return checked(default, Rule(lambda sizes: all(n > 0 for n in sizes), "widths above 0"), *rules, search=search)


@cache
def _rules_of(config: type) -> dict[str, list[Rule]]:
    """Return the rules of each field, those of base classes first."""
    found: dict[str, list[Rule]] = {}
    for cls in reversed(config.__mro__):
        for name, one in getattr(cls, "__dataclass_fields__", {}).items():
            known = found.setdefault(name, [])
            known += [rule for rule in one.metadata.get("rules", ()) if rule not in known]
    return found


def check_fields(config: RunConfig) -> None:
    """Raise about every field whose value breaks a rule, in one message.

    Raises:
        ArgumentError: If a value breaks a rule; the message names class, field, value and what was expected.
    """
    for related in (False, True):  # a rule about other fields may divide by them
        wrong: list[str] = []
        for name, rules in _rules_of(type(config)).items():
            value = getattr(config, name)
            broken = (rule.broken(config, value) for rule in rules if rule.related is related)
            if wanted := next(filter(None, broken), ""):
                wrong.append(f"{name} must be {wanted}, got {value!r}")
        if wrong:
            raise ArgumentError(f"{type(config).__name__}: {'; '.join(wrong)}")


@dataclass(frozen=True)
class ConfigField:
    """One field of a config.

    Args:
        name: Name of the field.
        type: Type of its values.
        default: Value without a setting.
        doc: Sentence of the class's docstring.
        repeated: Whether its option may be repeated.
        search: Range that `rl tune` searches; none if empty.
        choices: Values, where these are a few names.
    """

    name: str
    type: Any
    default: Any
    doc: str
    repeated: bool = False
    search: str = ""
    choices: tuple[str, ...] = ()


def config_fields(config: type) -> list[ConfigField]:
    """Return the fields of a config dataclass, in order, documented by the ``Args`` of its docstrings.

    Example:
        >>> from rl.trainers import PPOConfig
        >>> config_fields(PPOConfig)[0].name
        'env'
    """
    docs: dict[str, str] = {}
    ranges: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        docs.update(_args_section(cls.__doc__ or ""))
        own = getattr(cls, "__dataclass_fields__", {})
        ranges |= {name: one.metadata["search"] for name, one in own.items() if one.metadata.get("search")}
    hints, rules = get_type_hints(config), _rules_of(config)
    return [
        ConfigField(
            f.name,
            hints[f.name],
            _default_of(f),
            docs.get(f.name, ""),
            f.metadata.get("repeated", False),
            ranges.get(f.name, ""),
            next((rule.names for rule in rules[f.name] if rule.names), ()),
        )
        for f in dataclasses.fields(config)
    ]


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _args_section(docstring: str) -> dict[str, str]:
    """Name to sentence, from a Google-style ``Args`` section."""
    section = re.search(r"^[ \t]*Args:\n(.*?)(?=\n[ \t]*\w+:\n|\n[ \t]*\n|\Z)", docstring, re.MULTILINE | re.DOTALL)
    if section is None:
        return {}
    lines = section.group(1).splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    docs: dict[str, str] = {}
    name = ""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if indent == margin and ":" in line:
            name, text = line.strip().split(":", 1)
            docs[name] = text.strip()
        elif name:
            docs[name] += " " + line.strip()
    return docs


class OldNameWarning(DeprecationWarning):
    """A setting is given by a name that it had in an older version."""


@cache
def old_names(config: type) -> Mapping[str, str]:
    """Return the further names of settings of a config, with today's: those of older versions, and aliases.

    A class lists those of its family in `renamed` and `aliases`.

    Raises:
        ArgumentError: If the config has a field with an older name, which nothing would read.

    Example:
        >>> from rl.trainers import PPOConfig
        >>> old_names(PPOConfig)["clip"]
        'clip_epsilon'
    """
    listed: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        listed |= {**vars(cls).get("renamed", {}), **vars(cls).get("aliases", {})}
    fields = {one.name for one in dataclasses.fields(config)}
    names = {old: new for old, new in listed.items() if new in fields}
    if fields & names.keys():
        clash = "; ".join(f"{old} is now {new}" for old, new in names.items() if old in fields)
        raise ArgumentError(f"{config.__name__}: {clash}; rename the field")
    return names


def with_new_names(config: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by today's names, and warn about older ones.

    Args:
        config: Class of the settings.
        given: Settings by name.

    Raises:
        ArgumentError: If a setting is given by both names.

    Example:
        >>> from rl.trainers import PPOConfig
        >>> with_new_names(PPOConfig, {"gamma": 0.9, "clip_epsilon": 0.1})
        {'gamma': 0.9, 'clip_epsilon': 0.1}
    """
    names = {old: new for old, new in old_names(config).items() if old in given}
    both = [f"{new} and its older name {old}" for old, new in names.items() if new in given]
    if both:
        raise ArgumentError(f"{config.__name__}: got {'; '.join(both)}; leave the older name out")
    warn_old_names(config, names)
    return {names.get(name, name): value for name, value in given.items()}


def warn_old_names(config: Any, names: Mapping[str, str], *, option: Callable[[str], str] = str) -> None:
    """Warn about older names, which `names` maps to today's; nothing if there are none besides aliases.

    Args:
        config: Class of the settings.
        names: Older names with today's.
        option: Function that returns a name as the warning shows it.
    """
    older = {old: new for old, new in names.items() if old not in config.aliases}
    if older:
        listed = ", ".join(f"{option(old)} is now {option(new)}" for old, new in older.items())
        issue_warning(f"{listed}; older names are accepted until rl-trainers 0.6", OldNameWarning)


class _ConfigType(type):
    """Class of configs, whose constructors accept settings by the names of older versions."""

    if not TYPE_CHECKING:  # type checkers read the signature of the dataclass

        def __call__(cls, *args: Any, **given: Any) -> Any:
            if old_names(cls).keys() & given:
                # `dataclasses.replace` gives all fields, also the one whose older name it was called with
                replaced = given.keys() >= {one.name for one in dataclasses.fields(cls)}
                changed = {old_names(cls)[name] for name in given if name in old_names(cls)} if replaced else set()
                given = with_new_names(cls, {name: one for name, one in given.items() if name not in changed})
            return super().__call__(*args, **given)

        @property
        def __signature__(cls) -> inspect.Signature:
            found = inspect.signature(cls.__init__)
            return found.replace(parameters=[*found.parameters.values()][1:])


@dataclass(frozen=True, kw_only=True)
class RunConfig(metaclass=_ConfigType):
    """Settings that all recipes share: environment, length of the run, evaluations, checkpoints.

    Args:
        env: Environment: the name of an installed env component (see `rl plugins --all`), COMPONENT/ID for one
            that takes an id (gym/CartPole-v1), module:Class for an environment class or function of your own, else a
            Gymnasium id, or module:ID for one that a module registers (ale_py:ALE/Pong-v5). Modules are also
            searched in the current folder. In Python also a class, a function, or what gymnasium.make returns;
            arguments of the latter, and of a functools.partial, become env_kwargs.
        env_kwargs: Arguments for the environment, as in frame_skip=4,size=5 or '{frame_skip: 4, size: 5}'.
        wrapper: A Gymnasium wrapper for each environment, as module:callable, also with arguments, as in
            my_envs:Wrapper:size=5 or 'my_envs:Wrapper:{size: 5}'; may be repeated, the first one is innermost.
        transform: A transform of the environment, as NAME or module:callable, also with arguments, as in
            step-counter:max_steps=200 or 'step-counter:{max_steps: 200}'; may be repeated, in order.
        normalize_observation: Whether to normalize the vectors of floats that the policy reads with their running mean
            and standard deviation, and clip them to [-10, 10]. Evaluations use the statistics of training and do not
            change them; checkpoints contain them.
        normalize_reward: Whether to divide the rewards of training by the running standard deviation of their
            discounted return. Metrics and evaluations show the rewards of the environment.
        clip_actions: Whether actions of the policy are normal without bounds, and clipped to those of the environment;
            else they are tanh-normal, within the bounds. For vectors of bounded floats.
        frame_stack: Number of the last observations of an episode that the policy sees as one: vectors are joined in
            their last dimension, images in their channels.
        frame_skip: Number of times that each action is repeated; rewards are added up, and the repetitions are one
            frame in all other settings.
        atari: Whether to apply the standard preprocessing of Atari games: no-op starts, 4 frames for each action, the
            maximum of the last two, gray, 84 x 84, 4 of them stacked; in training an episode for each life and the sign
            of the reward, in evaluations complete games and their score.
        gamma: Discount of the return, per step.
        observation_layout: Reading of observations with two or more dimensions. auto takes uint8 with three
            dimensions as an image, whose channels are the smaller of the first and last dimension, and rejects
            others; channels-first and channels-last take all with three dimensions as images; flat takes all as
            vectors.
        total_frames: Number of environment steps to train for, counted over all parallel environments.
        seed: Seed of networks, environments and exploration.
        device: Device of networks and gradient steps, for example cpu or cuda:0.
        num_envs: Number of environments that are stepped together.
        workers: Number of processes that step them, for simulators that need a millisecond a step or more; 0 for this
            process.
        ray: Address of a Ray cluster, auto for the one of this machine, or local to start one; as many actors as
            workers collect then, each with its share of the environments, and learners are on its nodes. Needs
            rl-trainers[ray].
        learners: Number of processes that train one policy together: each collects with its share of num_envs, and
            learns from its share of each batch; their gradients are averaged. Settings are those of all of them
            together.
        eval_every: Number of frames between two evaluations of the policy on environments of its own; the policy with
            the best mean return becomes the best checkpoint.
        eval_episodes: Number of episodes of each of these evaluations.
        final_eval_episodes: Number of fresh episodes on which the best policy is evaluated at the end; this is the
            result in summary.json.
        max_episode_steps: Number of steps after which episodes are truncated; 0 for the environment's own
            limit, if it has one.
        observation_indices: Entries of a vector observation that the policy may see, as in [0,2], which hides the
            velocities of CartPole-v1; an empty list for all.
        stop_at_return: Mean return of an evaluation that ends the run before all frames are done; inf for never.
        stop_after: Seconds of training after which the run ends; 0 for never. Both ends have a final evaluation.
        keep_checkpoints: Number of the newest last checkpoints that are kept beside it, as frames-N.safetensors.
        log_every: Number of frames between two rows of metrics.
        checkpoint_every: Number of frames between two saves of the last checkpoint; it is also saved at the end and on
            Ctrl-C.
        video_every: Number of frames between two videos of an episode of the policy, videos/policy-FRAMES.mp4 in the
            run folder, which trackers such as wandb also get; 0 for none. Needs rl-trainers[video].
        threads: Number of torch threads while training, at most as many as the machine has processors; small networks
            are fastest with 1. 0 leaves torch's setting.
        compile: Whether to compile the loss with torch.compile after its first call; worth its time in long runs with
            larger networks. Results are those without it up to rounding.
        policy_backend: Back end that computes the policy while collecting and evaluating: torch, or native for
            rl-native, several times faster for small networks on the CPU. Seeded results then differ from those of
            torch: other random numbers, and values up to rounding. A policy that it cannot compute runs in torch.
        precision: Precision: fp32, or bf16 for losses whose matrix products are of bfloat16 (torch.autocast); weights,
            optimizers and the actions that are collected stay float32. Worth it for large networks on a GPU.
        loggers: Loggers that get every row of metrics, as in csv,wandb:project=maze or 'csv,wandb:{project: maze}';
            names of components or module:NAME.
        metric_names: Names that metrics have in loggers other than csv: rl, or those of sb3 or cleanrl, for
            dashboards that were created for these.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> RunConfig(num_envs=0)
        Traceback (most recent call last):
        ...
        rl.core.errors.ArgumentError: RunConfig: num_envs must be above 0, got 0
    """

    recipe: ClassVar[str] = ""
    """Name of the recipe, which the config of a recipe sets."""
    multi_agent: ClassVar[bool] = False
    """Whether the environment has groups of agents; `GroupFields` sets it."""
    report_group: ClassVar[str] = ""
    absent: ClassVar[tuple[str, ...]] = ()
    """Settings of base classes that the recipe does not have: they keep their defaults, and --help leaves them out."""
    own_transforms: ClassVar[tuple[str, ...]] = ()
    """Transforms whose entries the policy of the recipe reads, after those of the user."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """Names that settings of the family had in older versions, with today's."""
    aliases: ClassVar[Mapping[str, str]] = {}
    """Further names of settings that fit the recipe better, with those that all recipes share; both are accepted."""

    env: str = checked(
        "CartPole-v1",
        Rule(
            lambda env: isinstance(env, str) and bool(env),
            "the name of an environment; in Python also a class, a function, or what gymnasium.make returns",
        ),
    )
    env_kwargs: Mapping[str, Any] = checked(
        dict,
        Rule(
            lambda value: isinstance(value, Mapping) and all(map(is_argument, value.items())),
            "a mapping with names as keys and a space after each colon, as in {frame_skip: 4}",
        ),
    )
    wrapper: tuple[str, ...] = checked((), repeated=True)
    transform: tuple[str, ...] = checked((), repeated=True)
    normalize_observation: bool = checked(
        False,  # noqa: FBT003
        where(
            lambda given, config: not (given and config.atari),
            "left out with atari, whose images of bytes are divided by 255",
        ),
        _NO_ACTORS,
    )
    normalize_reward: bool = checked(
        False,  # noqa: FBT003
        _NO_ACTORS,
    )
    clip_actions: bool = False
    frame_stack: int = checked(
        1,
        Rule(lambda n: n > 0, "above 0, where 1 stacks nothing"),
        where(lambda n, config: n == 1 or not config.atari, "left out with atari, which stacks 4 frames"),
    )
    frame_skip: int = checked(
        1,
        Rule(lambda n: n > 0, "above 0, where 1 repeats nothing"),
        where(lambda n, config: n == 1 or not config.atari, "left out with atari, which repeats each action 4 times"),
    )
    atari: bool = False
    gamma: float = in_range(0, 1, 0.99)
    observation_layout: str = one_of(LAYOUTS, "auto")
    total_frames: int = above(0, 100_000)
    seed: int = in_range(0, 2**31 - 1, 0)
    device: str = "cpu"
    num_envs: int = above(0, 1)
    workers: int = checked(
        0,
        where(lambda n, config: 0 <= n <= config.num_envs, "0 or more, and at most num_envs ({num_envs})"),
        where(
            lambda n, config: (
                not config.ray or (n >= 1 and config.num_envs % n == 0) or (n == 0 and config.learners > 1)
            ),
            "the number of actors, a divisor of num_envs ({num_envs}), with ray",
        ),
    )
    ray: str = ""
    learners: int = at_least(
        1,
        1,
        where(
            lambda _, config: not _not_divided(config),
            lambda config: " and ".join(
                f"a divisor of {name} ({value})" for name, value in _not_divided(config).items()
            ),
        ),
    )
    eval_every: int = above(0, 5_000)
    eval_episodes: int = above(0, 10)
    final_eval_episodes: int = above(0, 20)
    max_episode_steps: int = at_least(0, 0)
    observation_indices: tuple[int, ...] = checked(
        (),
        Rule(
            lambda indices: all(i >= 0 for i in indices) and len(set(indices)) == len(indices),
            "different numbers of 0 or more",
        ),
    )
    stop_at_return: float = math.inf
    stop_after: float = at_least(0, 0.0)
    keep_checkpoints: int = at_least(0, 0)
    log_every: int = above(0, 1_000)
    checkpoint_every: int = above(0, 50_000)
    video_every: int = at_least(0, 0)
    threads: int = at_least(0, 1)
    compile: bool = False
    policy_backend: str = one_of(
        ("torch", "native"),
        "torch",
        where(lambda name, config: name == "torch" or not config.ray, "torch with ray"),
    )
    precision: str = one_of(("fp32", "bf16"), "fp32")
    loggers: tuple[str, ...] = ("csv", "tensorboard")
    metric_names: str = one_of(("rl", "sb3", "cleanrl"), "rl")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the setting of an older name."""
            if name not in old_names(type(self)):
                raise AttributeError(f"{type(self).__name__} has no setting {name!r}")
            warn_old_names(type(self), {name: old_names(type(self))[name]})
            return getattr(self, old_names(type(self))[name])

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ArgumentError: If one breaks a rule of its field.
        """
        for name, value in zip(("env", "env_kwargs"), named_env(self.env, self.env_kwargs), strict=True):
            object.__setattr__(self, name, value)
        kept = {one.name: _default_of(one) for one in dataclasses.fields(self) if one.name in self.absent}
        wrong = [name for name, default in kept.items() if getattr(self, name) != default]
        if wrong:
            listed = "; ".join(
                f"{name} must be left out with {self.recipe}, which does not have it, got {getattr(self, name)!r}"
                for name in wrong
            )
            raise ArgumentError(f"{type(self).__name__}: {listed}")
        check_fields(self)


def config_of_learner(config: Any) -> Any:
    """Return the settings of one of the learners of a run; those of the run if there is one.

    Frames that count progress, such as `total_frames` and `learning_starts`, are still those of all learners.

    Raises:
        ArgumentError: If a learner's share of a number breaks a rule.

    Example:
        >>> from rl.trainers import PPOConfig
        >>> share = config_of_learner(PPOConfig(num_envs=8, minibatch_size=256, learners=2))
        >>> share.num_envs, share.minibatch_size, share.total_frames
        (4, 128, 80000)
    """
    count, names = config.learners, {one.name for one in dataclasses.fields(config)}
    if count == 1:
        return config
    shares: dict[str, Any] = {
        name: getattr(config, name) // count for name in (*DIVIDED, "buffer_size") if name in names
    }
    if not config.workers:
        shares["ray"] = ""  # learners alone are on its nodes
    if "utd_ratio" in names:
        shares["utd_ratio"] = config.utd_ratio * count  # as many gradient steps, each on a share of the batch
    try:
        return dataclasses.replace(config, learners=1, **shares)
    except ArgumentError as error:
        raise ArgumentError(f"the share of each of {count} learners does not fit: {error}") from error
