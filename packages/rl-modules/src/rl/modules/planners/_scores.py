"""Scores of the actions of a node in tree search."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl.core.arguments import as_number
from rl.core.keys import NestedKey, unwrap


class MCTSScore(TensorDictModuleBase):
    """Base of the scores of actions in tree search: mean return, and a bonus for actions that were seldom visited.

    Reads the sums of returns and visits of each action, ``[*B, n]``, and the visits of the node, ``[*B]`` or
    ``[*B, 1]``. Writes the scores ``[*B, n]``. The mean return of an action without visits is 0.

    Args:
        c: Weight of the bonus.
        win_count_key: Key of the sums of returns.
        visits_key: Key of the visits of the actions.
        total_visits_key: Key of the visits of the node.
        score_key: Key of the scores.

    Raises:
        ArgumentError: If `c` is negative.
    """

    def __init__(
        self,
        *,
        c: float,
        win_count_key: NestedKey = "win_count",
        visits_key: NestedKey = "visits",
        total_visits_key: NestedKey = "total_visits",
        score_key: NestedKey = "score",
    ) -> None:
        super().__init__()
        self.c = as_number(c, str(type(self).__name__), "c", least=0)
        self.in_keys: list[Any] = [unwrap(key) for key in (win_count_key, visits_key, total_visits_key)]
        self.out_keys: list[Any] = [unwrap(score_key)]

    def weight(self, node: TensorDictBase) -> Tensor | float:
        """Return the weight of the bonus of each action, ``[*B, n]``, or of all."""
        del node
        return self.c

    def forward(self, node: TensorDictBase) -> TensorDictBase:
        """Write the scores of the actions of nodes ``[*B]``."""
        returns, visits, total = (node.get(key) for key in self.in_keys[:3])
        total = total if total.ndim == visits.ndim else total.unsqueeze(-1)
        mean = returns / visits.clamp_min(1)
        return node.set(self.out_keys[0], mean + self.weight(node) * total.sqrt() / (1 + visits))


class UCBScore(MCTSScore):
    """Score ``win_count / visits + c sqrt(total_visits) / (1 + visits)``: that of `PUCTScore` with equal priors.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> counts = {"win_count": torch.tensor([2.0, 0]), "visits": torch.tensor([3.0, 0])}
        >>> node = TensorDict(**counts, total_visits=torch.tensor(4.0))
        >>> UCBScore(c=1.0)(node)["score"]
        tensor([1.1667, 2.0000])
    """


class PUCTScore(MCTSScore):
    """Score of AlphaZero: ``win_count / visits + c prior_prob sqrt(total_visits) / (1 + visits)``.

    Silver et al., "Mastering the game of Go without human knowledge", 2017, section "Search algorithm". Reads the prior
    probabilities of the actions ``[*B, n]`` too.

    Args:
        c: Weight of the bonus.
        prior_prob_key: Key of the prior probabilities.
        keys: Other keys, see `MCTSScore`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> counts = {"win_count": torch.tensor([2.0, 0]), "visits": torch.tensor([3.0, 0])}
        >>> node = TensorDict(**counts, total_visits=torch.tensor(4.0))
        >>> PUCTScore(c=1.0)(node.set("prior_prob", torch.tensor([0.8, 0.2])))["score"]
        tensor([1.0667, 0.4000])
    """

    def __init__(self, *, c: float, prior_prob_key: NestedKey = "prior_prob", **keys: NestedKey) -> None:
        super().__init__(c=c, **keys)
        self.in_keys.append(unwrap(prior_prob_key))

    def weight(self, node: TensorDictBase) -> Tensor:
        """Return the weight of the bonus of each action, ``[*B, n]``."""
        return self.c * node.get(self.in_keys[3])
