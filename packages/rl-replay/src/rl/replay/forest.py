"""Search trees of stored rollouts, for Monte-Carlo tree search in models with discrete states and actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_number
from rl.core.errors import ArgumentError, ContractError, ShapeError
from rl.core.keys import ACTION, DONE, NEXT, OBSERVATION, REWARD, NestedKey, as_tuple, key_str, unwrap

__all__ = ["MCTSForest", "Tree"]


@dataclass(frozen=True, eq=False)
class Tree:
    """State of a search tree, with the states after it.

    States that a single action was taken in are no trees of their own: they are in the `rollout` of the next one.

    Args:
        node_data: Observations of the state.
        rollout: Steps ``[T]`` from the state of the tree above to this one; None in the root.
        visits: Number of stored rollouts that took the first of these steps; in the root, that began or passed here.
        win_count: Sum of the returns from that step on.
        subtree: Trees of the actions that were taken here, in the order of their first visit.

    Example:
        >>> forest = MCTSForest()
        >>> for last in (2, 3):  # 0 -> 1, then 2 or 3
        ...     seen = torch.tensor([[0], [1], [last]])
        ...     after = TensorDict(observation=seen[1:], reward=torch.ones(2, 1), done=seen[1:] > 1, batch_size=[2])
        ...     forest.extend(TensorDict(observation=seen[:2], action=seen[1:], next=after, batch_size=[2]))
        >>> tree = forest.get_tree(TensorDict(observation=torch.tensor([0])))
        >>> list(tree.valid_paths()), tree.num_vertices, tree.max_length
        ([(0, 0), (0, 1)], 4, 2)
        >>> tree.rollout_from_path((0, 1))["next", "observation"].flatten()
        tensor([1, 3])
    """

    node_data: TensorDictBase
    rollout: TensorDictBase | None = None
    visits: int = 0
    win_count: float = 0.0
    subtree: tuple[Tree, ...] = ()

    @property
    def num_children(self) -> int:
        """Number of actions that were taken in the state."""
        return len(self.subtree)

    @property
    def num_vertices(self) -> int:
        """Number of trees, this one included."""
        return 1 + sum(tree.num_vertices for tree in self.subtree)

    @property
    def max_length(self) -> int:
        """Number of trees below this one, on the longest path."""
        return max((1 + tree.max_length for tree in self.subtree), default=0)

    def valid_paths(self) -> Iterator[tuple[int, ...]]:
        """Iterate over the paths to the last states, each the numbers of the trees on its way."""
        if not self.subtree:
            yield ()
        for number, tree in enumerate(self.subtree):
            for path in tree.valid_paths():
                yield (number, *path)

    def rollout_from_path(self, path: Sequence[int]) -> TensorDictBase:
        """Return the steps ``[T]`` on a path.

        Raises:
            ArgumentError: If the path is empty, or leads to no tree.
        """
        parts: list[TensorDictBase] = []
        tree = self
        for number in path:
            if not 0 <= number < len(tree.subtree):
                raise ArgumentError(
                    f"Tree.rollout_from_path: {tuple(path)} has number {number} where there are {len(tree.subtree)}"
                    " trees; see valid_paths()"
                )
            tree = tree.subtree[number]
            parts.append(tree.rollout)  # pyright: ignore[reportArgumentType] - only the root has none
        if not parts:
            raise ArgumentError("Tree.rollout_from_path: an empty path has no steps")
        return TensorDict.cat(parts, 0)


@dataclass(eq=False)
class _Branch:
    """An action that was taken in a state."""

    step: TensorDictBase
    after: bytes | None  # the state that follows; None at the end of an episode
    visits: int = 0
    win_count: float = 0.0


@final
class MCTSForest:
    """Search trees of stored rollouts: which actions were taken in each state, how often, and what they returned.

    Two states are the same if their observations are, to the bit, so that rollouts share what they have in common. The
    model has to be deterministic: of several outcomes of an action the last one is kept. Steps are kept in memory, each
    pair of state and action once. The names are those of TorchRL.

    Args:
        observation_keys: Observations that identify a state.
        action_keys: Entries that identify an action; the first one is listed by `branches`.
        reward_key: Reward below ``next``, ``[T, 1]``.
        done_key: End of an episode below ``next``, ``[T, 1]``.
        gamma: Discount of the returns.

    Raises:
        ArgumentError: If `gamma` is not in [0, 1].

    Example:
        >>> forest = MCTSForest()
        >>> seen = torch.tensor([[0], [1], [2]])
        >>> after = TensorDict(observation=seen[1:], reward=torch.ones(2, 1), done=seen[1:] > 1, batch_size=[2])
        >>> forest.extend(TensorDict(observation=seen[:2], action=torch.tensor([1, 1]), next=after, batch_size=[2]))
        >>> node = forest.branches(TensorDict(observation=torch.tensor([0])), actions=torch.tensor([0, 1]))
        >>> node["visits"].tolist(), node["win_count"].tolist(), node["total_visits"].item()
        ([0.0, 1.0], [0.0, 2.0], 1.0)
    """

    def __init__(
        self,
        *,
        observation_keys: Sequence[NestedKey] = (OBSERVATION,),
        action_keys: Sequence[NestedKey] = (ACTION,),
        reward_key: NestedKey = REWARD,
        done_key: NestedKey = DONE,
        gamma: float = 1.0,
    ) -> None:
        self.observation_keys: Final = [unwrap(key) for key in observation_keys]
        self.action_keys: Final = [unwrap(key) for key in action_keys]
        self._reward, self._done = ((NEXT, *as_tuple(key)) for key in (reward_key, done_key))
        self.gamma: Final = as_number(gamma, "MCTSForest", "gamma", least=0, most=1)
        self._states: dict[bytes, dict[bytes, _Branch]] = {}

    def __len__(self) -> int:
        """Return the number of pairs of state and action."""
        return sum(map(len, self._states.values()))

    def extend(self, rollout: TensorDictBase) -> None:
        """Add rollouts, each of which counts as one visit of each of its steps.

        Args:
            rollout: Steps ``[*B, T]``. Where an episode ends, the next step begins another one.

        Raises:
            ContractError: If a key is absent.
            ShapeError: If it is a single step without a batch.
        """
        after: list[NestedKey] = [(NEXT, *as_tuple(key)) for key in self.observation_keys]
        wanted = [*self.observation_keys, *self.action_keys, *after, self._reward, self._done]
        missing = [key_str(key) for key in wanted if rollout.get(key, None) is None]
        if missing:
            raise ContractError(f"MCTSForest.extend: the rollout has no {', '.join(missing)}")
        if not rollout.ndim:
            raise ShapeError("MCTSForest.extend: expected steps [*B, T], got a single step: unsqueeze(0) it")
        rollout = rollout.detach().to("cpu")
        for steps in rollout.reshape(-1, rollout.shape[-1]).unbind(0):
            names = (_names(steps, keys) for keys in (self.observation_keys, self.action_keys, after))
            ends = steps.get(self._done).flatten().tolist()
            returns = self._returns(steps.get(self._reward).flatten().tolist(), ends)
            for step, state, action, follows, end, gain in zip(steps.unbind(0), *names, ends, returns, strict=True):
                branch = self._states.setdefault(state, {}).setdefault(action, _Branch(step, None))
                branch.step, branch.after = step.clone(), None if end else follows
                branch.visits += 1
                branch.win_count += gain

    def branches(self, root: TensorDictBase, actions: Tensor | None = None) -> TensorDict:
        """Return the statistics of the actions of a state, as scores such as `UCBScore` of rl-modules read them.

        Args:
            root: Observations of the state.
            actions: Actions to list, ``[n, *a]``; those that were taken if None.

        Returns:
            ``action`` ``[n, *a]``, ``visits`` and ``win_count`` float ``[n]``, and ``total_visits`` float, without
            dimensions.

        Raises:
            ArgumentError: If there are no actions to list.
        """
        known = self._states.get(self._name(root), {})
        key = self.action_keys[0]
        if actions is None:
            if not known:
                raise ArgumentError("MCTSForest.branches: no action was taken in the state; pass actions=")
            actions = torch.stack([branch.step.get(key) for branch in known.values()])
            found: list[_Branch | None] = [*known.values()]
        else:
            listed = TensorDict({key: actions}, batch_size=actions.shape[:1])
            found = [known.get(name) for name in _names(listed, [key])]
        counts = torch.tensor([[one.visits, one.win_count] if one else [0, 0] for one in found], dtype=torch.float32)
        visits, win_count = counts.unbind(-1)
        total = torch.tensor(float(sum(branch.visits for branch in known.values())))
        return TensorDict({ACTION: actions, "visits": visits, "win_count": win_count, "total_visits": total})

    def get_tree(self, root: TensorDictBase) -> Tree:
        """Return the tree of a state: what was stored after it.

        A state to which several ways lead is repeated, one that leads to itself is not continued.

        Args:
            root: Observations of the state.

        Raises:
            ArgumentError: If no stored step begins in the state.
        """
        name = self._name(root)
        if name not in self._states:
            raise ArgumentError("MCTSForest.get_tree: no stored step begins in this state")
        data = root.select(*self.observation_keys)
        known = self._states[name].values()
        visits, win_count = sum(one.visits for one in known), sum(one.win_count for one in known)
        return Tree(data, None, visits, win_count, self._below(name, frozenset()))

    def _below(self, name: bytes | None, above: frozenset[bytes]) -> tuple[Tree, ...]:
        if name is None or name in above:
            return ()
        return tuple(self._along(branch, above | {name}) for branch in self._states.get(name, {}).values())

    def _along(self, first: _Branch, above: frozenset[bytes]) -> Tree:
        """Return the tree after a branch: at the next state with several branches, or at the last one."""
        steps, name, passed = [first.step], first.after, set(above)
        while name is not None and name not in passed and len(self._states.get(name, ())) == 1:
            passed.add(name)
            (branch,) = self._states[name].values()
            steps.append(branch.step)
            name = branch.after
        rollout = TensorDict.stack(steps, 0)
        data = rollout[-1].get(NEXT).select(*self.observation_keys)
        return Tree(data, rollout, first.visits, first.win_count, self._below(name, frozenset(passed)))

    def _name(self, root: TensorDictBase) -> bytes:
        missing = [key_str(key) for key in self.observation_keys if root.get(key, None) is None]
        if missing:
            raise ContractError(f"MCTSForest: the state has no {', '.join(missing)}")
        return _names(root.select(*self.observation_keys).unsqueeze(0), self.observation_keys)[0]

    def _returns(self, rewards: list[float], ends: list[bool]) -> list[float]:
        """Return the sums of discounted rewards from each step to the end of its episode."""
        out, gain = [0.0] * len(rewards), 0.0
        for step in reversed(range(len(rewards))):
            gain = out[step] = rewards[step] + (0.0 if ends[step] else self.gamma * gain)
        return out


def _names(steps: TensorDictBase, keys: Sequence[NestedKey]) -> list[bytes]:
    """Return the bytes of the entries of each step ``[T]``."""
    parts = [steps.get(key).detach().cpu().reshape(len(steps), -1).contiguous().view(torch.uint8) for key in keys]
    return [row.tobytes() for row in torch.cat(parts, -1).numpy()]
