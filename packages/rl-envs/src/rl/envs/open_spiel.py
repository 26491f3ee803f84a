"""Games of OpenSpiel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl.core.arguments import foreign_arguments
from rl.core.errors import ArgumentError, CheckpointError, RLError, SpecError
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.specs import Categorical, Composite, NonTensor, OneHot, Unbounded
from rl.envs._groups import AgentGroup, MarlGroupMapType, agent_groups
from rl.envs._libraries import Ids, check_id, import_library
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import flag_spec

__all__ = ["OpenSpielEnv", "OpenSpielWrapper"]


_SIMULTANEOUS = -2  # pyspiel.PlayerId.SIMULTANEOUS


def _library() -> Any:
    return import_library(
        "pyspiel", needed_by="OpenSpielEnv", extra="open-spiel", distribution="open_spiel", at_least="2"
    )


@foreign_arguments()
class OpenSpielWrapper(LeafEnvBase):
    """Wrapper of a game of OpenSpiel, whose players take turns or act at once.

    Players are in groups, all of them in ``"agents"`` by default. For a group ``g`` of ``n`` players it reads
    ``("g", "action")``, of which only those of the players that act count, and writes:

    - ``("g", "observation")`` (float32 ``[n, ...]``): the tensor that the player sees.
    - ``("g", "action_mask")`` (bool ``[n, actions]``): the legal actions; all for a player that does not act. See
      `ActionMask`.
    - ``("g", "mask")`` (bool ``[n]``): the players that act in the next step.
    - ``("g", "reward")`` (float32 ``[n, 1]``): what the return grew by.
    - ``done``, ``terminated`` (bool ``[1]``), and ``current_player`` (int64 ``[1]``): the player that acts, -2 if all
      do, -4 after the end.
    - ``state`` with `return_state`: the serialized game, text.

    Chance nodes are played within the step that leads to them, with the seed of the environment. With
    `MarlGroupMapType.ONE_GROUP_PER_AGENT` the groups are ``"player_0"``, ``"player_1"``, ..., without dimension ``n``.

    Args:
        env: A ``pyspiel.Game``, or a ``pyspiel.State`` in which every episode begins.
        group_map: Names of the players by group, or a `MarlGroupMapType`.
        categorical_actions: Whether to use integers instead of one-hot vectors.
        return_state: Whether to write ``state``. The entry is text: no shared memory, no leaf form.
        chance_sampler: Function from a state at a chance node to an action; drawn by probability if None.
        information_state: Whether to observe the information state, the memory of all that the player saw, instead of
            the observation; None for what the game has.
        device: Device of the tensors; the CPU if None.

    Raises:
        ArgumentError: If the players see no tensors, or the groups do not fit them.
        MissingExtraError: If OpenSpiel is not installed.

    Example:
        >>> import pyspiel
        >>> env = OpenSpielWrapper(pyspiel.load_game("tic_tac_toe"), categorical_actions=True)
        >>> root = env.reset()
        >>> root["agents", "mask"].tolist(), root["agents", "observation"].shape
        ([True, False], torch.Size([2, 3, 3, 3]))
    """

    def __init__(
        self,
        env: Any,
        *,
        group_map: MarlGroupMapType | Mapping[str, Sequence[str]] | None = None,
        categorical_actions: bool = False,
        return_state: bool = False,
        chance_sampler: Callable[[Any], int] | None = None,
        information_state: bool | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        spiel, owner = _library(), type(self).__name__
        if not isinstance(env, spiel.Game | spiel.State):
            raise ArgumentError(
                f"{owner} wraps a pyspiel.Game or pyspiel.State, got {env!r:.100}: create it with pyspiel.load_game, or"
                " use OpenSpielEnv(name)"
            )
        super().__init__(device=device)
        self._game = env if isinstance(env, spiel.Game) else env.get_game()
        self._start = None if isinstance(env, spiel.Game) else env.clone()
        self._spiel, self._categorical, self._returns_state = spiel, categorical_actions, return_state
        self._chance = chance_sampler
        self._generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        kind = self._game.get_type()
        use_information = not kind.provides_observation_tensor if information_state is None else information_state
        if not (kind.provides_information_state_tensor if use_information else kind.provides_observation_tensor):
            what = "information state" if use_information else "observation"
            raise ArgumentError(f"{owner}: the players of {kind.short_name} see no {what} tensor")
        observation = import_module("open_spiel.python.observation")
        recall = observation.INFO_STATE_OBS_TYPE if use_information else None
        self._observer = observation.make_observation(self._game, recall)  # writes into one array, without lists
        size: Sequence[int] = getattr(
            self._game, f"{'information_state' if use_information else 'observation'}_tensor_shape"
        )()
        self._players = [f"player_{number}" for number in range(self._game.num_players())]
        groups = agent_groups(
            group_map, self._players, {"agents": self._players}, ["state", "current_player", "pixels"]
        )
        self.group_map = {group.name: list(group.agents) for group in groups}
        self._shape, count = tuple(size), self._game.num_distinct_actions()
        # name, players, and the shapes of observations, legal actions, and one number for each agent
        self._parts = [
            (
                group.name,
                [self._players.index(one) for one in group.agents],
                group.shape(*self._shape),
                group.shape(count),
                group.shape(),
            )
            for group in groups
        ]
        self._set_specs(groups, count)
        self._state: Any = None

    @property
    def n_agents(self) -> int:
        """Number of agents, of all groups."""
        return sum(map(len, self.group_map.values()))

    def _set_specs(self, groups: Sequence[AgentGroup], actions: int) -> None:
        seen, acts, rewards = Composite({}), Composite({}), Composite({})
        choice = Categorical(actions) if self._categorical else OneHot(actions, dtype=torch.int64)
        for group in groups:
            seen[group.name, "observation"] = Unbounded(group.shape(*self._shape))
            seen[group.name, "action_mask"] = flag_spec(torch.Size(group.shape(actions)), None)
            seen[group.name, "mask"] = flag_spec(torch.Size(group.shape()), None)
            acts[group.name, "action"] = choice.expand(*group.shape(*choice.shape))
            rewards[group.name, "reward"] = Unbounded(group.shape(1))
        seen["current_player"] = Unbounded(1, dtype=torch.int64)
        if self._returns_state:
            seen["state"] = NonTensor()
        self.observation_spec, self.action_spec, self.reward_spec = seen, acts, rewards
        self.done_spec = Composite({name: flag_spec(torch.Size([1]), None) for name in ("done", "terminated")})

    # ---- playing

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        if mask is None or bool(mask.any()):
            self._state = self._game.new_initial_state() if self._start is None else self._start.clone()
            self._play_chance()
            self._read()
        return {**self._seen(), **self._over(over=False)}

    def _step_leaves(self, root: Leaves) -> Leaves:
        state, held, before = self._state, root.get("_step", None), self._returns
        if held is None or bool(held.any()):
            if state.is_terminal():
                raise RLError(f"{self!r}: the game is over; reset the environment before the next step")
            actions = self._actions(root)
            if self._player == _SIMULTANEOUS:
                state.apply_actions([actions.get(player, 0) for player in range(len(self._players))])
            else:
                state.apply_action(actions[self._player])
            self._play_chance()
            self._read()
        gain = [after - old for after, old in zip(self._returns, before, strict=True)]
        leaves = self._seen()
        for name, players, _, _, agents in self._parts:
            rows = np.array([gain[player] for player in players], np.float32)
            leaves[name, "reward"] = self._tensor(rows.reshape((*agents, 1)))
        leaves.update(self._over(over=state.is_terminal()))
        return leaves

    def _read(self) -> None:
        """Keep what several entries need of the present state."""
        state, self._returns = self._state, self._state.returns()
        self._player = player = int(state.current_player())
        some = range(len(self._players)) if player == _SIMULTANEOUS else [player] if player >= 0 else []
        legal = {one: state.legal_actions(one) for one in some}
        self._legal: dict[int, list[int]] = {one: actions for one, actions in legal.items() if actions}

    def _actions(self, root: Leaves) -> dict[int, int]:
        """Return the actions of the players that act, by player."""
        found: dict[int, int] = {}
        for name, players, *_ in self._parts:
            action = root[name, "action"]
            action = action if self._categorical else action.argmax(-1)
            for player, number in zip(players, action.reshape(-1).tolist(), strict=True):
                legal = self._legal.get(player)
                if legal is not None:
                    if number not in legal:
                        raise SpecError(
                            f"{self!r}: action {number} of player {player} is illegal; legal are {legal}. Choose by"
                            " the entry 'action_mask', for example with the transform ActionMask"
                        )
                    found[player] = number
        return found

    def _play_chance(self) -> None:
        while self._state.is_chance_node():
            if self._chance is not None:
                action = self._chance(self._state)
            else:
                outcomes = self._state.chance_outcomes()
                weights = torch.tensor([weight for _, weight in outcomes], dtype=torch.float64)
                action = outcomes[int(torch.multinomial(weights, 1, generator=self._generator))][0]
            self._state.apply_action(action)

    def _seen(self) -> Leaves:
        """Entries that resets and steps write."""
        state, observer, acting, tensor, leaves = self._state, self._observer, self._legal, self._tensor, {}
        for name, players, shape, choices, agents in self._parts:
            seen, legal = np.empty((len(players), observer.tensor.size), np.float32), np.ones(choices, np.bool_)
            for row, player in enumerate(players):
                observer.set_from(state, player)
                seen[row] = observer.tensor
                if player in acting:
                    its = legal[row] if agents else legal
                    its[:] = False
                    its[acting[player]] = True
            mask = np.array([player in acting for player in players])
            leaves[name, "observation"] = tensor(seen.reshape(shape))
            leaves[name, "action_mask"] = tensor(legal)
            leaves[name, "mask"] = tensor(mask.reshape(agents))
        leaves["current_player"] = tensor(np.array([self._player]))
        if self._returns_state:
            leaves["state"] = state.serialize()
        return leaves

    def _over(self, *, over: bool) -> Leaves:
        return {name: self._tensor(np.array([over])) for name in ("done", "terminated")}

    def _tensor(self, array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device is None else tensor.to(self.device)

    # ---- control

    def lowered(self) -> LeafEnv | None:
        """Return the leaf form; None with `return_state`, which is text."""
        return None if self._returns_state else super().lowered()

    def _set_seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the serialized game and the generator of chance."""
        text = None if self._state is None else self._spiel.serialize_game_and_state(self._game, self._state)
        return {"restorable": True, "game": text, "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from `state`.

        Raises:
            CheckpointError: If it is that of another game.
        """
        loaded = None
        if state.get("game") is not None:
            game, loaded = self._spiel.deserialize_game_and_state(state["game"])
            if str(game) != str(self._game):
                raise CheckpointError(f"{self!r} cannot load a state of the game {game}")
        self._state = loaded
        if loaded is not None:
            self._read()
        self._generator.set_state(state["generator"].cpu())
        return True

    def compile(self, **kwargs: Any) -> Any:
        """Raise an error: a game is not written in torch."""
        return EnvBase.compile(self, **kwargs)

    @property
    def game(self) -> Any:
        """The ``pyspiel.Game``."""
        return self._game

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be copied or pickled: send a function that creates it")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(game={self._game}, groups={self.group_map}, device={self.device})"


class OpenSpielEnv(OpenSpielWrapper):
    """A game of OpenSpiel by its name; see `OpenSpielWrapper` for what it reads and writes.

    Args:
        game_string: Name, such as ``"chess"``, with parameters if there are any: ``"goofspiel(num_cards=4)"``.
        kwargs: Arguments of `OpenSpielWrapper`.

    Raises:
        UnknownComponentError: If there is no such game.

    Example:
        >>> env = OpenSpielEnv("leduc_poker", categorical_actions=True)
        >>> env.action_spec.shape
        torch.Size([2])
    """

    available_envs: ClassVar[Ids] = Ids(lambda: _library().registered_names())
    """Names of all games."""

    def __init__(self, game_string: str, **kwargs: Any) -> None:
        spiel = _library()
        name = game_string.partition("(")[0]
        check_id("OpenSpiel", name, spiel.registered_names())
        super().__init__(spiel.load_game(game_string), **kwargs)
