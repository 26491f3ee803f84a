"""Environments of PettingZoo and MPE2, with several agents."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, MissingExtraError, RLError, SpecError, UnknownComponentError
from rl.core.interfaces import Leaves
from rl.core.specs import Bounded, Composite, Unbounded
from rl.envs._groups import AgentGroup, MarlGroupMapType, agent_groups, groups_by_name
from rl.envs._libraries import Ids, import_library, unknown_id
from rl.envs.base._base import EnvBase
from rl.envs.base._checks import check_private
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import FLAGS, flag_spec

__all__ = ["PettingZooEnv", "PettingZooWrapper"]


class ParallelGame:
    """A ``pettingzoo.ParallelEnv`` and what it last returned.

    Attributes:
        observations: Observations of the agents that took part in the last step, by name; `infos` and `rewards` too.
        terminated: Agents that have terminated in this episode.
        truncated: Agents that have been truncated in this episode.
        acting: Agents that act in the next step.
        alive: Agents that are still in the episode.

    Args:
        env: The environment.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observations: Mapping[str, Any] = {}
        self.infos: Mapping[str, Any] = {}
        self.rewards: Mapping[str, float] = {}
        self.terminated: set[str] = set()
        self.truncated: set[str] = set()
        self.acting: list[str] = []
        self.alive: list[str] = []

    def reset(self, seed: int | None) -> None:
        """Begin an episode."""
        self.terminated, self.truncated, self.rewards = set(), set(), {}
        self._reset(seed)

    def _reset(self, seed: int | None) -> None:
        self.observations, self.infos = self.env.reset(seed=seed)
        self.acting = self.alive = list(self.env.agents)

    def step(self, actions: Mapping[str, Any]) -> None:
        """Take a step with the actions of the agents in `acting`."""
        self.observations, self.rewards, terminated, truncated, self.infos = self.env.step(actions)
        self._record(terminated, truncated)
        self.acting = self.alive = list(self.env.agents)

    def _record(self, terminated: Mapping[str, bool], truncated: Mapping[str, bool]) -> None:
        self.terminated.update(agent for agent, over in terminated.items() if over)
        self.truncated.update(agent for agent, over in truncated.items() if over)


class TurnGame(ParallelGame):
    """A ``pettingzoo.AECEnv``, whose agents take turns, with the members of `ParallelGame`.

    Agents that are done leave at once, without a step of their own.
    """

    def _reset(self, seed: int | None) -> None:
        self.env.reset(seed=seed)
        self._look()

    def step(self, actions: Mapping[str, Any]) -> None:
        """Take the turn of the agent in `acting`."""
        env = self.env  # wrappers of PettingZoo make its attributes slow: each is read once
        env.step(actions[self.acting[0]])
        self.rewards = dict(env.rewards)
        terminated, truncated = env.terminations, env.truncations
        self._record(terminated, truncated)
        self._look()
        if self.acting and (terminated[self.acting[0]] or truncated[self.acting[0]]):
            before, infos = self.observations, self.infos
            while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
                env.step(None)  # removes an agent that is done
            self._look()
            self.observations, self.infos = {**before, **self.observations}, {**infos, **self.infos}

    def _look(self) -> None:
        env = self.env
        self.alive = list(env.agents)
        self.observations = {agent: env.observe(agent) for agent in self.alive}
        self.infos = dict(env.infos)
        self.acting = [env.agent_selection] if self.alive else []


_VERSION = re.compile(r"[-_]v(\d+)$")


def library() -> Any:
    """Return the module ``pettingzoo``, of a supported version."""
    return import_library("pettingzoo", needed_by="PettingZooEnv", extra="pettingzoo", at_least="1.27")


def env_ids(*, parallel: bool) -> dict[str, Callable[..., Any]]:
    """Functions that create an environment by id, such as ``"classic/chess_v6"``: PettingZoo's registry and MPE2."""
    zoo = library()
    kind = "parallel" if parallel else "aec"
    registry = zoo.parallel_registry if parallel else zoo.aec_registry
    found: dict[str, Callable[..., Any]] = {
        _VERSION.sub(r"_v\1", name): partial(zoo.make, kind, name) for name in registry
    }
    if find_spec("mpe2") is not None:
        for module in pkgutil.iter_modules(import_module("mpe2").__path__):
            if _VERSION.search(module.name):
                found[f"mpe2/{module.name}"] = partial(_make_mpe, module.name, "parallel_env" if parallel else "env")
    return dict(sorted(found.items()))


def _make_mpe(module: str, function: str, **kwargs: Any) -> Any:
    return getattr(import_module(f"mpe2.{module}"), function)(**kwargs)


def make_env(task: str, *, parallel: bool, **kwargs: Any) -> tuple[str, Any]:
    """Return the full id of `task` and its environment.

    Args:
        task: Id; the family in front and the version at the end may be left out.
        parallel: Whether agents act at the same time; if false, they take turns.
        kwargs: Arguments of the environment.

    Raises:
        UnknownComponentError: If there is no such id, or `task` fits several.
        RLError: If the environment exists only with turns, or only without.
        MissingExtraError: If a library that it needs is not installed.
    """
    ids = env_ids(parallel=parallel)
    found = _matching(task, ids)
    if not found:
        if _matching(task, env_ids(parallel=not parallel)):
            form = "with turns" if parallel else "without turns"
            raise RLError(f"PettingZoo has {task!r} only {form}: pass parallel={not parallel}")
        raise UnknownComponentError(unknown_id("PettingZoo", task, ids))
    if len({name.rpartition("_v")[0] for name in found}) > 1:
        raise UnknownComponentError(f"PettingZoo has several environments {task!r}: pass one of {', '.join(found)}")
    name = max(found, key=lambda one: int(one.rpartition("_v")[2]))
    try:
        return name, ids[name](**kwargs)
    except (ImportError, import_module("pettingzoo.env_registry.exceptions").FailedToImport) as error:
        family = name.partition("/")[0]
        remedy = 'pip install "rl-envs[pettingzoo]"' if family == "mpe2" else f'pip install "pettingzoo[{family}]"'
        raise MissingExtraError(f"{name} needs a library that is not installed ({error}): {remedy}") from error


def _matching(task: str, ids: dict[str, Callable[..., Any]]) -> list[str]:
    """Return the ids that `task` abbreviates."""
    wanted = _VERSION.sub(r"_v\1", task)
    return [
        name
        for name in ids
        if wanted in {full for one in (name, _VERSION.sub("", name)) for full in (one, one.partition("/")[2])}
    ]


@foreign_arguments()
class PettingZooWrapper(LeafEnvBase):
    """Wrapper of a PettingZoo environment, whose agents act at once (``ParallelEnv``) or take turns (``AECEnv``).

    Agents are in groups. The entries of a group are under its name, with the agents as first dimension; with
    `MarlGroupMapType.ONE_GROUP_PER_AGENT` there is no agent dimension. For a group ``g`` of ``n`` agents it reads
    ``("g", "action")`` and writes:

    - ``("g", "observation")`` ``[n, ...]``, or the keys of a `Dict` space: zeros for agents that have left.
    - ``("g", "action_mask")`` (bool ``[n, actions]``), where the simulator has one: the legal actions. All are true
      for an agent that does not act. See `ActionMask`.
    - ``("g", "mask")`` (bool ``[n]``), with `use_mask`: the agents that act in the next step.
    - ``("g", "reward")`` (float32 ``[n, 1]``): 0 for agents that have left.
    - ``("g", "done")``, ``("g", "terminated")``, ``("g", "truncated")`` (bool ``[n, 1]``). Agents that are not done
      when the episode ends are truncated.
    - ``done``, ``terminated``, ``truncated`` (bool ``[1]``): the end of the episode for all agents.
    - ``state`` at the root, with `return_state`.

    An episode that ends because every agent is done is terminated if all of them terminated, and truncated otherwise.

    Args:
        env: The environment.
        return_state: Whether to write the global state of the simulator, ``state``.
        group_map: Names of the agents by group, or a `MarlGroupMapType`; if None, agents are grouped by their names
            without the number at the end (``"wolf_0"`` and ``"wolf_1"`` in ``"wolf"``).
        use_mask: Whether to write ``mask``. Needed where agents take turns, or leave before the episode ends.
        categorical_actions: Whether to use integers instead of one-hot vectors, in actions and observations.
        seed: Seed for `set_seed`; not called if None.
        done_on_any: Whether to end the episode when an agent is done; if false, when all are. If None, true where
            agents act at once, false where they take turns.
        device: Device of the tensors; the CPU if None.
        from_pixels: Whether to render after every step, into ``pixels`` uint8 ``[H, W, 3]`` at the root.

    Raises:
        ArgumentError: If the groups do not fit the agents, or agents take turns and `use_mask` is false.
        SpecError: If the agents of a group have different spaces.
        MissingExtraError: If PettingZoo is not installed.

    Example:
        >>> from mpe2 import simple_spread_v3
        >>> env = PettingZooWrapper(simple_spread_v3.parallel_env())
        >>> env.rollout(5)["agent", "observation"].shape
        torch.Size([5, 3, 18])
    """

    def __init__(
        self,
        env: Any,
        *,
        return_state: bool = False,
        group_map: MarlGroupMapType | Mapping[str, Sequence[str]] | None = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        device: torch.device | str | int | None = None,
        from_pixels: bool = False,
    ) -> None:
        super().__init__(device=device)
        self._use_mask, self._pixels, self._returns_state = use_mask, from_pixels, return_state
        self._env, self._game = self._open(env)
        turns = isinstance(self._game, TurnGame)
        self._any = not turns if done_on_any is None else done_on_any
        self._seed: int | None = None
        self._game.reset(None)
        agents = list(self._env.possible_agents)
        groups = agent_groups(group_map, agents, groups_by_name(agents), ["state", "pixels"])
        self.group_map = {group.name: list(group.agents) for group in groups}
        self._groups = [
            _Group(group, self._env, self._game.infos, categorical=categorical_actions, owner=type(self).__name__)
            for group in groups
        ]
        self._set_specs()
        if seed is not None:
            self.set_seed(seed)

    @property
    def n_agents(self) -> int:
        """Number of agents, of all groups."""
        return sum(map(len, self.group_map.values()))

    @property
    def from_pixels(self) -> bool:
        """Whether a rendered frame is written under ``pixels``."""
        return self._pixels

    def _open(self, env: Any) -> tuple[Any, ParallelGame]:
        """Return the environment, for its spaces, and its game."""
        zoo, owner = library(), type(self).__name__
        turns = isinstance(env, zoo.AECEnv)
        if not turns and not isinstance(env, zoo.ParallelEnv):
            raise ArgumentError(
                f"{owner} wraps a PettingZoo environment, got {env!r:.100}: create it with pettingzoo.make, or use"
                " PettingZooEnv(task)"
            )
        if turns and not self._use_mask:
            raise ArgumentError(
                f"{owner}: the agents of {env} take turns: pass use_mask=True, which writes the agents that act next"
            )
        return env, TurnGame(env) if turns else ParallelGame(env)

    def _set_specs(self) -> None:
        seen, acts, rewards = Composite({}), Composite({}), Composite({})
        done = Composite({name: flag_spec(torch.Size([1]), None) for name in FLAGS})
        for one in self._groups:
            group = one.group
            for place in (*one.observations, *one.actions):
                spec = place.spec.expand(*group.shape(*place.spec.shape))
                (seen if place in one.observations else acts)[place.key] = spec
            if one.choices:
                seen[group.name, "action_mask"] = flag_spec(torch.Size(group.shape(one.choices)), None)
            if self._use_mask:
                seen[group.name, "mask"] = flag_spec(torch.Size(group.shape()), None)
            rewards[group.name, "reward"] = Unbounded(group.shape(1))
            for name in FLAGS:
                done[group.name, name] = flag_spec(torch.Size(group.shape(1)), None)
        if self._returns_state:
            try:
                state = np.asarray(self._env.state())
            except (NotImplementedError, AttributeError) as error:
                raise ArgumentError(
                    f"{type(self).__name__}: {self._env} has no state: leave return_state out"
                ) from error
            seen["state"] = Unbounded(state.shape, dtype=torch.from_numpy(np.empty(0, state.dtype)).dtype)
        if self._pixels:
            mode = getattr(self._env, "render_mode", None)
            if mode != "rgb_array":
                raise ArgumentError(
                    f"{type(self).__name__}: from_pixels needs frames, and {self._env} renders in mode {mode!r}: create"
                    " it with render_mode='rgb_array'"
                )
            seen["pixels"] = Bounded(0, 255, shape=np.shape(self._env.render()), dtype=torch.uint8)
        self.observation_spec, self.action_spec, self.reward_spec, self.done_spec = seen, acts, rewards, done

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        if mask is None or bool(mask.any()):
            seed, self._seed = self._seed, None
            self._game.reset(seed)
        leaves = self._seen()
        for level, shape in [((), (1,)), *[((one.group.name,), one.group.shape(1)) for one in self._groups]]:
            self._flag(leaves, level, np.zeros(shape, np.bool_), np.zeros(shape, np.bool_))
        return leaves

    def _step_leaves(self, root: Leaves) -> Leaves:
        game, held = self._game, root.get("_step", None)
        if held is None or bool(held.any()):
            actions: dict[str, Any] = {}
            for one in self._groups:
                one.read_actions(root, game.acting, actions)
            if not game.acting:
                raise RLError(f"{self!r}: the episode is over; reset the environment before the next step")
            game.step(actions)
        leaves = self._seen()
        terminated, truncated, over = self._ends()
        self._flag(leaves, (), np.array([terminated]), np.array([truncated]))
        for one in self._groups:
            group, shape = one.group, one.group.shape(1)
            reward = np.array([game.rewards.get(agent, 0.0) for agent in group.agents], np.float32)
            leaves[group.name, "reward"] = self._tensor(reward.reshape(shape))
            ends = np.array([agent in game.terminated for agent in group.agents]).reshape(shape)
            cuts = np.array([agent in game.truncated for agent in group.agents]).reshape(shape)
            self._flag(leaves, (group.name,), ends, cuts | ~ends if over else cuts)
        return leaves

    def _ends(self) -> tuple[bool, bool, bool]:
        """Whether the episode is terminated, truncated, and either."""
        game = self._game
        if self._any:
            terminated, truncated = bool(game.terminated), bool(game.truncated)
            return terminated, truncated, terminated or truncated
        if game.alive:
            if not self._use_mask and len(game.alive) < len(self._env.possible_agents):
                raise RLError(
                    f"{self!r}: an agent has left before the end of the episode: pass use_mask=True, which"
                    " writes the agents that act, or done_on_any=True, which ends the episode then"
                )
            return False, False, False
        return not game.truncated, bool(game.truncated), True

    def _seen(self) -> Leaves:
        """Entries that resets and steps write."""
        game, leaves = self._game, {}
        acting = set(game.acting)
        for one in self._groups:
            one.write_observations(game.observations, leaves)
            if one.choices:
                leaves[one.group.name, "action_mask"] = one.legal(game.observations, game.infos, acting)
            if self._use_mask:
                there = [agent in acting for agent in one.group.agents]
                leaves[one.group.name, "mask"] = np.array(there).reshape(one.group.shape())
        if self._returns_state:
            leaves["state"] = np.array(self._env.state())
        if self._pixels:
            leaves["pixels"] = np.array(self._env.render())
        return {key: self._tensor(value) for key, value in leaves.items()}

    def _tensor(self, array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device is None else tensor.to(self.device)

    def _flag(self, leaves: Leaves, level: tuple[str, ...], terminated: Any, truncated: Any) -> None:
        for name, value in zip(FLAGS, (terminated | truncated, terminated, truncated), strict=True):
            leaves[(*level, name) if level else name] = self._tensor(value)

    def _set_seed(self, seed: int) -> None:
        self._seed = as_integer(seed, f"{type(self).__name__}.set_seed", "seed", 0)

    def compile(self, **kwargs: Any) -> Any:
        """Raise an error: a simulator is not written in torch."""
        return EnvBase.compile(self, **kwargs)

    def render(self) -> Any:
        """Render the simulator."""
        return self._env.render()

    @property
    def pettingzoo_env(self) -> Any:
        """The wrapped environment."""
        return self._env

    def _close(self) -> None:
        self._env.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._env}, groups={self.group_map}, device={self.device})"


class _Group:
    """The entries of a group: between values by agent and arrays by key.

    Args:
        group: The group.
        env: The environment, for its spaces.
        infos: Infos of a reset, by agent; an ``action_mask`` there is used if the observations have none.
        categorical: Whether to use integers instead of one-hot vectors.
        owner: Name of the environment, for messages.
    """

    def __init__(self, group: AgentGroup, env: Any, infos: Mapping[str, Any], *, categorical: bool, owner: str) -> None:
        from gymnasium import spaces

        from rl.envs.gym._leaves import nest, part_of
        from rl.envs.gym._spaces import places, space_leaf

        self.group, self._nest, self._part_of, self._owner = group, nest, part_of, owner
        first = group.agents[0]
        for kind in ("observation", "action"):
            of = getattr(env, f"{kind}_space")
            other = next((agent for agent in group.agents if of(agent) != of(first)), None)
            if other is not None:
                raise SpecError(
                    f"{owner}: {first!r} and {other!r} of the group {group.name!r} have different {kind} spaces,"
                    f" {of(first)} and {of(other)}: pass group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT, or a mapping"
                    " with groups of equal agents"
                )
        seen, acts = env.observation_space(first), env.action_space(first)
        self._in_observation = isinstance(seen, spaces.Dict) and "action_mask" in seen.spaces
        if self._in_observation:
            seen = spaces.Dict({name: part for name, part in seen.spaces.items() if name != "action_mask"})
        masked = self._in_observation or "action_mask" in infos.get(first, {})
        classes = getattr(acts, "n", 0) if isinstance(acts, spaces.Discrete) else getattr(acts, "nvec", 0)
        self.choices = int(np.sum(classes)) if masked else 0

        def moved(space: Any, name: str, *, under_name: bool) -> list[Any]:
            found = places(space, name, categorical=categorical, under_name=under_name)
            return [
                space_leaf(one.path, (group.name, *_path(one.key)), _leaf(space, one.path), categorical)
                for one in found
            ]

        self.observations = moved(seen, "observation", under_name=False)
        self.actions = moved(acts, "action", under_name=True)
        for one in (*self.observations, *self.actions):
            check_private(one.key, owner, "rename it in the simulator, and groups with group_map=")

    def read_actions(self, root: Leaves, acting: Sequence[str], actions: dict[str, Any]) -> None:
        """Add the actions of those agents of the group that act."""
        indices = [index for index, agent in enumerate(self.group.agents) if agent in acting]
        if not indices:
            return
        columns = []
        for place in self.actions:
            action = root[place.key]
            if not self.group.stacked:
                action = action.unsqueeze(0)
            elif len(indices) == 1:
                action = action[indices[0] : indices[0] + 1]  # a view costs less than a gather
            elif len(indices) < len(self.group.agents):
                action = action[indices]
            columns.append(place.decode(action))
        paths = [place.path for place in self.actions]
        for index, *row in zip(indices, *columns, strict=True):
            actions[self.group.agents[index]] = self._nest(paths, row)

    def write_observations(self, observations: Mapping[str, Any], leaves: dict[Any, Any]) -> None:
        """Add arrays of what the agents observe, zeros for those that observe nothing."""
        agents, paths = self.group.agents, [place.path for place in self.observations]
        there = [index for index, agent in enumerate(agents) if observations.get(agent) is not None]
        for place in self.observations:
            rows = None
            if there:
                values = [
                    self._part_of(observations[agents[index]], place.path, paths, f"{agents[index]} in {self._owner}")
                    for index in there
                ]
                rows = place.encode(values)
            if rows is None or len(there) < len(agents):
                zero = place.spec.zero().numpy()
                all_rows = np.zeros((len(agents), *zero.shape), zero.dtype)
                if rows is not None:
                    all_rows[there] = rows
                rows = all_rows
            leaves[place.key] = rows if self.group.stacked else rows[0]

    def legal(self, observations: Mapping[str, Any], infos: Mapping[str, Any], acting: set[str]) -> Any:
        """Return the mask of legal actions; all for agents that do not act."""
        masks = np.ones((len(self.group.agents), self.choices), np.bool_)
        for row, agent in zip(masks, self.group.agents, strict=True):
            if agent in acting:
                mask = ("action_mask",)
                if not self._in_observation and "action_mask" not in infos.get(agent, {}):
                    raise SpecError(
                        f"the info of {agent} in {self._owner} lacks 'action_mask', which its reset had: the simulator"
                        " has to report it for every agent that acts"
                    )
                row[:] = (
                    self._part_of(observations[agent], mask, [mask], f"{agent} in {self._owner}")
                    if self._in_observation
                    else infos[agent]["action_mask"]
                )
        return masks if self.group.stacked else masks[0]


def _path(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)


def _leaf(space: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        space = space[part]
    return space


@foreign_arguments()
class PettingZooEnv(PettingZooWrapper):
    """An environment of PettingZoo or MPE2 by its id; see `PettingZooWrapper` for what it reads and writes.

    Args:
        task: Id, such as ``"mpe2/simple_spread_v3"``. Without the version, ``"mpe2/simple_spread"``, the newest is
            created; the family may be left out too.
        parallel: Whether agents act at once; otherwise they take turns.
        return_state: See `PettingZooWrapper`, as for the following ones.
        group_map: Names of the agents by group, or a `MarlGroupMapType`.
        use_mask: Whether to write ``mask``.
        categorical_actions: Whether to use integers instead of one-hot vectors.
        seed: Seed for `set_seed`.
        done_on_any: Whether to end the episode when an agent is done.
        device: Device of the tensors.
        from_pixels: Whether to render after every step.
        env_kwargs: Arguments of the environment.

    Raises:
        UnknownComponentError: If there is no such id.
        RLError: If the environment exists only with turns, or only without.
        MissingExtraError: If PettingZoo, or a library that the environment needs, is not installed.

    Example:
        >>> env = PettingZooEnv("mpe2/simple_tag", parallel=True)
        >>> env.action_keys
        [('adversary', 'action'), ('agent', 'action')]
        >>> env.rollout(3)["next", "adversary", "reward"].shape
        torch.Size([3, 3, 1])
    """

    available_envs: ClassVar[Ids] = Ids(lambda: {*env_ids(parallel=True), *env_ids(parallel=False)})
    """Ids of all environments that are installed."""

    def __init__(
        self,
        task: str,
        parallel: bool = True,  # noqa: FBT001, FBT002  # TorchRL's signature
        *,
        return_state: bool = False,
        group_map: MarlGroupMapType | Mapping[str, Sequence[str]] | None = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        device: torch.device | str | int | None = None,
        from_pixels: bool = False,
        **env_kwargs: Any,
    ) -> None:
        if from_pixels:
            env_kwargs.setdefault("render_mode", "rgb_array")
        self.task, env = make_env(task, parallel=parallel, **env_kwargs)
        super().__init__(
            env,
            return_state=return_state,
            group_map=group_map,
            use_mask=use_mask,
            categorical_actions=categorical_actions,
            seed=seed,
            done_on_any=done_on_any,
            device=device,
            from_pixels=from_pixels,
        )
