"""`OpenSpielEnv` and `OpenSpielWrapper`: games of OpenSpiel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import CheckpointError, RLError, SpecError, UnknownComponentError
from rl.core.interfaces import LeafEnv, Leaves
from rl.core.specs import Categorical, Composite, NonTensor, OneHot, Unbounded
from rl.envs import _foreign
from rl.envs._groups import MarlGroupMapType, agent_groups
from rl.envs._libraries import import_library
from rl.envs._unknown import unknown_id
from rl.envs.base._base import EnvBase
from rl.envs.base._leaf import LeafEnvBase
from rl.envs.base._specs import flag_spec

__all__ = ["OpenSpielEnv", "OpenSpielWrapper"]

_SIMULTANEOUS = -2  # pyspiel.PlayerId.SIMULTANEOUS


def _library() -> Any:
    return import_library(
        "pyspiel", needed_by="OpenSpielEnv", extra="open-spiel", distribution="open_spiel", at_least="2"
    )


@_foreign.open_spiel
class OpenSpielWrapper(LeafEnvBase):
    """Wrapper of a game of OpenSpiel, whose players take turns or act at once.

    Players are in groups, all of them in ``"agents"`` by default. For a group ``g`` of ``n`` players it reads
    ``("g", "action")``, of which only those of the players that act count, and writes:

    - ``("g", "observation")`` (float32 ``[n, ...]``): the tensor that the player sees.
    - ``("g", "action_mask")`` (bool ``[n, actions]``): the legal actions; all for a player that does not act. See
      `ActionMask`.
    - ``("g", "mask")`` (bool ``[n]``): the players that act in the next step.
    - ``("g", "reward")`` (float32 ``[n, 1]``): what the return grew by.
    - ``done``, ``terminated`` (bool ``[1]``), and ``current_player`` (int64 ``[1]``): who acts, -2 if all do, -4 after
      the end.
    - ``state`` with `return_state`: the serialized game, text.

    Chance nodes are played within the step that leads to them, with the seed of the environment. With
    `MarlGroupMapType.ONE_GROUP_PER_AGENT` the groups are ``"player_0"``, ``"player_1"``, ..., without dimension ``n``.

    Args:
        env: a ``pyspiel.Game``, or a ``pyspiel.State`` in which every episode begins.
        group_map: names of the players by group, or a `MarlGroupMapType`.
        categorical_actions: integers instead of one-hot vectors.
        return_state: write ``state``. The entry is text: no shared memory, no leaf form.
        chance_sampler: function from a state at a chance node to an action; drawn by probability if None.
        information_state: observe the information state, the memory of all that the player saw, instead of the
            observation; None for what the game has.
        device: device of the tensors; the CPU if None.

    Raises:
        SpecError: if the players see no tensors, or the groups do not fit them.
        MissingExtraError: if OpenSpiel is not installed.

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
            raise SpecError(
                f"{owner} wraps a pyspiel.Game or pyspiel.State, got {env!r:.100}: make it with pyspiel.load_game, or"
                " use OpenSpielEnv(name)"
            )
        super().__init__(device=device)
        self._game = env if isinstance(env, spiel.Game) else env.get_game()
        self._start = None if isinstance(env, spiel.Game) else env.clone()
        self._spiel, self._categorical, self._returns_state = spiel, categorical_actions, return_state
        self._chance = chance_sampler
        self._generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        kind = self._game.get_type()
        remembers = not kind.provides_observation_tensor if information_state is None else information_state
        if not (kind.provides_information_state_tensor if remembers else kind.provides_observation_tensor):
            what = "information state" if remembers else "observation"
            raise SpecError(f"{owner}: the players of {kind.short_name} see no {what} tensor")
        self._look = "information_state_tensor" if remembers else "observation_tensor"
        size: Sequence[int] = getattr(self._game, f"{self._look}_shape")()
        self._players = [f"player_{number}" for number in range(self._game.num_players())]
        self._groups = agent_groups(
            group_map, self._players, {"agents": self._players}, ["state", "current_player", "pixels"]
        )
        self.group_map = {group.name: list(group.agents) for group in self._groups}
        self._rows = {name: [self._players.index(one) for one in group] for name, group in self.group_map.items()}
        self._shape = tuple(size)
        self._set_specs(self._game.num_distinct_actions())
        self._state: Any = None

    def _set_specs(self, actions: int) -> None:
        seen, acts, rewards = Composite({}), Composite({}), Composite({})
        choice = Categorical(actions) if self._categorical else OneHot(actions, dtype=torch.int64)
        for group in self._groups:
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
        return {**self._seen(), **self._over(over=False)}

    def _step_leaves(self, root: Leaves) -> Leaves:
        state, held = self._state, root.get("_step", None)
        before = state.returns()
        if held is None or bool(held.any()):
            if state.is_terminal():
                raise RLError(f"{self!r}: the game is over; reset the environment before the next step")
            actions = self._actions(root)
            self._check_legal(actions)
            if state.current_player() == _SIMULTANEOUS:
                state.apply_actions([actions.get(player, 0) for player in range(len(self._players))])
            else:
                state.apply_action(actions[state.current_player()])
            self._play_chance()
        gain = np.subtract(state.returns(), before).astype(np.float32)
        leaves = self._seen()
        for group in self._groups:
            rows = gain[self._rows[group.name]]
            leaves[group.name, "reward"] = self._tensor(rows.reshape(group.shape(1)))
        return {**leaves, **self._over(over=state.is_terminal())}

    def _actions(self, root: Leaves) -> dict[int, int]:
        """The actions of the players that act, by player."""
        acting, found = self._acting(), {}
        for group in self._groups:
            action = root[group.name, "action"]
            action = action if self._categorical else action.argmax(-1)
            numbers = zip(self._rows[group.name], action.reshape(-1).tolist(), strict=True)
            found.update({player: number for player, number in numbers if player in acting})
        return found

    def _check_legal(self, actions: Mapping[int, int]) -> None:
        for player, action in actions.items():
            legal = self._state.legal_actions(player)
            if action not in legal and legal:
                raise SpecError(
                    f"{self!r}: action {action} of player {player} is illegal; legal are {legal}. Choose by the entry"
                    " 'action_mask', for example with the transform ActionMask"
                )

    def _acting(self) -> list[int]:
        player = self._state.current_player()
        if player == _SIMULTANEOUS:
            return [one for one in range(len(self._players)) if self._state.legal_actions(one)]
        return [player] if player >= 0 else []

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
        state, leaves, acting = self._state, {}, self._acting()
        look = getattr(state, self._look)
        for group in self._groups:
            rows = self._rows[group.name]
            seen = np.array([look(player) for player in rows], np.float32)
            leaves[group.name, "observation"] = self._tensor(seen.reshape(group.shape(*self._shape)))
            legal = np.ones((len(rows), self._game.num_distinct_actions()), np.bool_)
            for row, player in zip(legal, rows, strict=True):
                if player in acting:
                    row[:] = False
                    row[state.legal_actions(player)] = True
            leaves[group.name, "action_mask"] = self._tensor(legal.reshape(group.shape(legal.shape[1])))
            mask = np.array([player in acting for player in rows])
            leaves[group.name, "mask"] = self._tensor(mask.reshape(group.shape()))
        leaves["current_player"] = self._tensor(np.array([int(state.current_player())]))
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
            CheckpointError: if it is that of another game.
        """
        loaded = None
        if state.get("game") is not None:
            game, loaded = self._spiel.deserialize_game_and_state(state["game"])
            if str(game) != str(self._game):
                raise CheckpointError(f"{self!r} cannot load a state of the game {game}")
        self._state = loaded
        self._generator.set_state(state["generator"])
        return True

    def compile(self, **kwargs: Any) -> Any:
        """Refuse: a game is not written in torch."""
        return EnvBase.compile(self, **kwargs)

    @property
    def game(self) -> Any:
        """The ``pyspiel.Game``."""
        return self._game

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be copied or pickled: send a function that makes it")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(game={self._game}, groups={self.group_map}, device={self.device})"


class _Names:
    """The names of the games of OpenSpiel."""

    def __get__(self, instance: object, owner: type | None = None) -> list[str]:
        return list(_library().registered_names())


class OpenSpielEnv(OpenSpielWrapper):
    """A game of OpenSpiel by its name; see `OpenSpielWrapper` for what it reads and writes.

    Args:
        game_string: name, such as ``"chess"``, with parameters if there are any: ``"goofspiel(num_cards=4)"``.
        kwargs: arguments of `OpenSpielWrapper`.

    Raises:
        UnknownComponentError: if there is no such game.

    Example:
        >>> env = OpenSpielEnv("leduc_poker", categorical_actions=True)
        >>> env.action_spec.shape
        torch.Size([2])
    """

    available_envs: ClassVar[_Names] = _Names()
    """Names of all games."""

    def __init__(self, game_string: str, **kwargs: Any) -> None:
        spiel = _library()
        name = game_string.partition("(")[0]
        if name not in spiel.registered_names():
            raise UnknownComponentError(unknown_id("OpenSpiel", name, spiel.registered_names()))
        super().__init__(spiel.load_game(game_string), **kwargs)
