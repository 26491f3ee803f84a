"""Environments of VMAS: batches of several agents, in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl.core.arguments import as_integer, foreign_arguments
from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.interfaces import Leaves
from rl.core.keys import unwrap
from rl.core.specs import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec, Unbounded
from rl.envs._groups import AgentGroup, MarlGroupMapType, agent_groups, groups_by_name
from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import FLAGS, flag_spec

__all__ = ["VmasEnv", "VmasWrapper"]


class OwnRandomness:
    """Random state for the calls of one environment.

    VMAS keeps one random state for all environments of a process, in a list of its class; each call swaps it with
    the global states of torch, NumPy and Python. Here that list holds the state of one environment during a call.

    Args:
        holder: The class that has the list.
    """

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        self._own = holder.vmas_random_state[:]

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of VMAS, which continues the own state."""
        shared = self._holder.vmas_random_state
        others = shared[:]
        shared[:] = self._own
        try:
            return function(*args, **kwargs)
        finally:
            self._own = shared[:]
            shared[:] = others


def _library() -> Any:
    return import_library("vmas", needed_by="VmasEnv", extra="vmas", at_least="1.5.2")


@foreign_arguments()
class VmasWrapper(LeafEnvBase):
    """Wrapper of a VMAS environment: a batch ``[num_envs]`` of several agents, in torch.

    Agents are in groups. The entries of a group are under its name, with the agents as first dimension after the
    batch; with `MarlGroupMapType.ONE_GROUP_PER_AGENT` there is no agent dimension. For a group ``g`` of ``n`` agents
    it reads ``("g", "action")`` and writes:

    - ``("g", "observation")`` (float32 ``[B, n, ...]``), or the keys of a dictionary.
    - ``("g", "reward")`` (float32 ``[B, n, 1]``).
    - ``("g", "info", name)`` for each name in `info_keys`.
    - ``done``, ``terminated``, ``truncated`` (bool ``[B, 1]``) at the root. An episode is truncated after
      ``max_steps``.

    With ``grad_enabled=True`` in VMAS, rewards and observations are differentiable with respect to actions. The random
    numbers are those of this environment alone.

    Args:
        env: The environment. Its option ``terminated_truncated`` is switched on.
        categorical_actions: Whether to use integers instead of one-hot vectors, for discrete actions.
        group_map: Names of the agents by group, or a `MarlGroupMapType`; if None, agents are grouped by their names
            without the number at the end, and a single group is called ``"agents"``.
        info_keys: Entries of the agents' ``info`` to write.
        device: Device of the simulation and of the tensors; that of `env` if None.

    Raises:
        ArgumentError: If `env` is no VMAS environment, or the groups do not fit the agents.
        SpecError: If the agents of a group have different entries.

    Example:
        >>> import vmas
        >>> env = VmasWrapper(vmas.make_env("balance", num_envs=8))
        >>> env.rollout(5)["agents", "observation"].shape
        torch.Size([8, 5, 3, 16])
    """

    def __init__(
        self,
        env: Any,
        *,
        categorical_actions: bool = True,
        group_map: MarlGroupMapType | Mapping[str, Sequence[str]] | None = None,
        info_keys: Iterable[str] = (),
        device: torch.device | str | int | None = None,
    ) -> None:
        owner = type(self).__name__
        if not hasattr(env, "vmas_random_state"):
            raise ArgumentError(
                f"{owner} wraps a VMAS environment, got {env!r:.100}: create it with vmas.make_env(scenario, num_envs),"
                " or use VmasEnv(scenario, num_envs)"
            )
        if device is not None:
            env.to(torch.device(device))
        elif env.device.type != "cpu":
            device = env.device
        super().__init__(batch_size=(env.num_envs,), device=device)
        env.terminated_truncated, env.dict_spaces = True, False
        self._env, self._call = env, OwnRandomness(type(env))
        self._categorical, self._info_keys = categorical_actions, tuple(info_keys)
        names = [agent.name for agent in env.agents]
        default = groups_by_name(names)
        if len(default) == 1:
            default = {"agents": names}
        self._groups = agent_groups(group_map, names, default, [])
        self.group_map = {group.name: list(group.agents) for group in self._groups}
        self._indices = {group.name: [names.index(agent) for agent in group.agents] for group in self._groups}
        self._choices: dict[str, list[int]] = {}  # of multi-discrete actions, by group
        self._set_specs()

    @property
    def n_agents(self) -> int:
        """Number of agents, of all groups."""
        return sum(map(len, self.group_map.values()))

    def _set_specs(self) -> None:
        seen, acts, rewards = Composite({}), Composite({}), Composite({})
        values = self._look()
        for group in self._groups:
            acts[group.name, "action"] = self._action_spec(group)
            rewards[group.name, "reward"] = Unbounded(group.shape(1))
        for key, value in values.items():
            seen[key] = Unbounded(value.shape[1:], dtype=value.dtype)
        self.observation_spec, self.action_spec, self.reward_spec = seen, acts, rewards
        self.done_spec = Composite({name: flag_spec(torch.Size([1]), None) for name in FLAGS})

    def _action_spec(self, group: AgentGroup) -> TensorSpec:
        env = self._env
        found = [env.get_agent_action_space(env.agents[index]) for index in self._indices[group.name]]
        first = found[0]
        kind = "shape" if env.continuous_actions else "nvec" if env.multidiscrete_actions else "n"
        for agent, space in zip(group.agents, found, strict=True):
            if str(getattr(space, kind)) != str(getattr(first, kind)):
                self._refuse(group, agent, "actions", first, space)
        if env.continuous_actions:
            shape = group.shape(*first.shape)
            ends = [[torch.as_tensor(getattr(space, end)) for space in found] for end in ("low", "high")]
            low, high = (torch.stack(end).reshape(shape) for end in ends)
            return Bounded(low, high, shape=shape)
        if env.multidiscrete_actions:
            nvec = self._choices[group.name] = [int(n) for n in first.nvec]
            spec = MultiCategorical(torch.tensor(nvec)) if self._categorical else MultiOneHot(nvec, dtype=torch.int64)
        else:
            n = int(first.n)
            spec = Categorical(n) if self._categorical else OneHot(n, dtype=torch.int64)
        return spec.expand(*group.shape(*spec.shape))

    def _refuse(self, group: AgentGroup, agent: str, what: str, one: Any, two: Any) -> None:
        raise SpecError(
            f"{type(self).__name__}: {group.agents[0]!r} and {agent!r} of the group {group.name!r} have different"
            f" {what}, {one} and {two}: pass group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT, or a mapping with groups"
            " of equal agents"
        )

    def _look(self) -> Leaves:
        """Observations and infos as they are now."""
        found = self._call(
            self._env.get_from_scenario,
            get_observations=True,
            get_rewards=False,
            get_infos=bool(self._info_keys),
            get_dones=False,
        )
        return self._entries(found[0], found[1] if self._info_keys else None)

    def _entries(self, observations: Sequence[Any], infos: Sequence[Any] | None) -> Leaves:
        """Observations and infos of all agents, by key."""
        leaves: Leaves = {}
        for group in self._groups:
            indices = self._indices[group.name]
            flat = [_flat(observations[index]) for index in indices]
            for path in flat[0]:
                leaves[(group.name, *path)] = self._joined(group, [one.get(path) for one in flat], path)
            for name in self._info_keys if infos is not None else ():
                rows = [infos[index].get(name) for index in indices]  # pyright: ignore[reportOptionalSubscript]
                rows = [row.unsqueeze(-1) if row is not None and row.ndim == 1 else row for row in rows]
                leaves[group.name, "info", name] = self._joined(group, rows, ("info", name))
        return leaves

    def _joined(self, group: AgentGroup, rows: list[Tensor | None], path: tuple[str, ...]) -> Tensor:
        """Return the entries of the agents of a group as one."""
        if not group.stacked and rows[0] is not None:
            return rows[0]
        try:
            return torch.stack(rows, 1)  # pyright: ignore[reportArgumentType]  # None is rejected below
        except (RuntimeError, TypeError):
            shapes = [None if row is None else list(row.shape[1:]) for row in rows]
            other = next((index for index, shape in enumerate(shapes) if shape is None or shape != shapes[0]), 0)
            self._refuse(group, group.agents[other], f"entries {unwrap(path)!r}", shapes[0], shapes[other])
            raise

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        env = self._env
        if mask is None or bool(mask.all()):
            self._call(env.reset, return_observations=False)
        else:
            for index in mask.flatten().nonzero().flatten().tolist():
                self._call(env.reset_at, index, return_observations=False)
        leaves = self._look()
        for name in FLAGS:
            leaves[name] = torch.zeros((env.num_envs, 1), dtype=torch.bool, device=env.device)
        return leaves

    def _step_leaves(self, root: Leaves) -> Leaves:
        env, held = self._env, root.get("_step", None)
        if held is not None and not bool((held.flatten() | root["done"].flatten()).all()):
            raise RLError(
                f"{type(self).__name__} steps all elements at once, and '_step' excludes some whose episodes have not"
                " ended: leave it out"
            )
        actions: list[Any] = [None] * env.n_agents
        for group in self._groups:
            action = root[group.name, "action"]
            for place, index in enumerate(self._indices[group.name]):
                one = action[:, place] if group.stacked else action
                actions[index] = self._decoded(one, self._choices.get(group.name))
        observations, rewards, terminated, truncated, infos = self._call(env.step, actions)
        leaves = self._entries(observations, infos)
        for group in self._groups:
            parts = [rewards[index] for index in self._indices[group.name]]
            leaves[group.name, "reward"] = torch.stack(parts, 1).reshape(-1, *group.shape(1))
        leaves["done"] = (terminated | truncated).unsqueeze(-1)
        leaves["terminated"], leaves["truncated"] = terminated.unsqueeze(-1), truncated.unsqueeze(-1)
        return leaves

    def _decoded(self, action: Tensor, choices: list[int] | None) -> Tensor:
        """Return the action of one agent as VMAS takes it, ``[B, size]``."""
        if self._env.continuous_actions:
            return action
        if self._categorical:
            return action if choices else action.unsqueeze(-1)
        parts = action.split(choices, -1) if choices else [action]
        return torch.stack([part.argmax(-1) for part in parts], -1)

    def _set_seed(self, seed: int) -> None:
        self._call(self._env.seed, as_integer(seed, f"{type(self).__name__}.set_seed", "seed", 0))

    def to(self, target: torch.device | str | int | torch.dtype) -> EnvBase:
        """Move the simulation and its tensors to a device. See `EnvBase.to`."""
        moved = super().to(target)
        if moved is self:
            self._env.to(self.device)
        return moved

    def compile(self, **kwargs: Any) -> Any:
        """Raise an error: the step of VMAS swaps random states, which cannot be compiled."""
        return EnvBase.compile(self, **kwargs)

    def render(self, **kwargs: Any) -> Any:
        """Render an element, by default the first one: uint8 ``[H, W, 3]``; `kwargs` are for VMAS."""
        return self._env.render(**{"mode": "rgb_array", "env_index": 0, **kwargs})

    @property
    def vmas_env(self) -> Any:
        """The wrapped environment."""
        return self._env

    def _label(self) -> str:
        return type(self._env.scenario).__module__.rpartition(".")[2] or type(self._env.scenario).__name__

    def __repr__(self) -> str:
        groups = {name: len(agents) for name, agents in self.group_map.items()}
        return (
            f"{type(self).__name__}(scenario={self._label()}, groups={groups}, batch_size={self.batch_size},"
            f" device={self.device})"
        )


def _flat(observation: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Tensor]:
    """Return the tensors of an agent's observation, by path."""
    if isinstance(observation, Tensor):
        return {path or ("observation",): observation}
    return {key: value for name, part in observation.items() for key, value in _flat(part, (*path, name)).items()}


def _ids() -> set[str]:
    vmas = _library()
    return {*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios}


@foreign_arguments()
class VmasEnv(VmasWrapper):
    """A VMAS environment by its scenario; see `VmasWrapper` for what it reads and writes.

    Args:
        scenario: Name, such as ``"balance"``, or a ``vmas.simulator.scenario.BaseScenario``.
        num_envs: Number of elements of the batch.
        continuous_actions: Whether actions are forces, as numbers; otherwise they are discrete.
        max_steps: Steps after which an episode is truncated; never if None.
        categorical_actions: Whether to use integers instead of one-hot vectors, for discrete actions.
        seed: Seed for `set_seed`; nondeterministic if None.
        group_map: Names of the agents by group, or a `MarlGroupMapType`.
        info_keys: Entries of the agents' ``info`` to write.
        device: Device of the simulation; the CPU if None.
        render_mode: Render mode: ``"rgb_array"`` for what `render` returns, or None.
        vmas_kwargs: Arguments of ``vmas.make_env``, such as ``grad_enabled=True``, and for the scenario, such as
            ``n_agents=4``.

    Raises:
        UnknownComponentError: If there is no such scenario.
        MissingExtraError: If VMAS is not installed.

    Example:
        >>> env = VmasEnv("simple_tag", num_envs=4, max_steps=20)
        >>> env
        VmasEnv(scenario=simple_tag, groups={'adversary': 3, 'agent': 1}, batch_size=torch.Size([4]), device=None)
        >>> env.rollout(5)["next", "adversary", "reward"].shape
        torch.Size([4, 5, 3, 1])
    """

    available_envs: ClassVar[Ids] = Ids(_ids)
    """Names of all scenarios of VMAS."""

    def __init__(
        self,
        scenario: str | Any,
        num_envs: int,
        *,
        continuous_actions: bool = True,
        max_steps: int | None = None,
        categorical_actions: bool = True,
        seed: int | None = None,
        group_map: MarlGroupMapType | Mapping[str, Sequence[str]] | None = None,
        info_keys: Iterable[str] = (),
        device: torch.device | str | int | None = None,
        render_mode: str | None = None,
        **vmas_kwargs: Any,
    ) -> None:
        vmas = _library()
        if render_mode not in (None, "rgb_array"):
            raise ArgumentError(
                f"VmasEnv renders to arrays only, got render_mode={render_mode!r}: pass 'rgb_array' or None"
            )
        if isinstance(scenario, str) and not scenario.endswith(".py"):
            check_id("VMAS", scenario, self.available_envs)
        self.scenario_name = scenario if isinstance(scenario, str) else type(scenario).__name__
        made = OwnRandomness(vmas.simulator.environment.Environment)(
            vmas.make_env,
            scenario,
            num_envs=as_integer(num_envs, "VmasEnv", "num_envs", 1),
            device="cpu" if device is None else device,
            continuous_actions=continuous_actions,
            max_steps=max_steps,
            terminated_truncated=True,
            **vmas_kwargs,
        )
        super().__init__(
            made, categorical_actions=categorical_actions, group_map=group_map, info_keys=info_keys, device=device
        )
        self.set_seed(torch.Generator().seed() % 2**32 if seed is None else seed)

    def _label(self) -> str:
        return self.scenario_name
