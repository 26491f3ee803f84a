"""Advantages of groups of responses to one prompt, from their rewards."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, as_number, one_of
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError
from rl.core.keys import ADVANTAGE, NEXT, REWARD, NestedKey, key_str, unwrap
from rl.llm.functional import Sequences

__all__ = ["MCAdvantage", "group_advantage"]

_BASELINES = ("group", "leave_one_out", "batch", None)
_SCALES = ("group", "batch", None)


def group_advantage(
    reward: Tensor,
    group: Tensor,
    *,
    baseline: str | None = "group",
    scale: str | None = "group",
    eps: float = 1e-4,
    owner: str = "group_advantage",
) -> Tensor:
    """Compute the advantage of each response, ``[N]``: its reward without a baseline, divided by a scale.

    Shao et al., "DeepSeekMath", 2024, section 4.1.2 (group mean and unbiased standard deviation); Ahmadian et al.,
    "Back to basics", 2024, eq. 5 (mean of the other responses); Hu, "REINFORCE++", 2025, eq. 6 (batch).

    Args:
        reward: Reward of each response, ``[N]``; NaN if it was not scored: it counts in no mean, its advantage is 0.
        group: Number of the prompt of each response, int64 ``[N]``.
        baseline: "group" mean, mean of the others ("leave_one_out"), "batch" mean, or None.
        scale: Standard deviation of the "group" or of the "batch", or None.
        eps: Number that is added to the standard deviation.
        owner: Component that messages name.

    Raises:
        ArgumentError: If a name is unknown.
        ShapeError: If the shapes differ, or a group has a single response while it has to have several.

    Example:
        >>> group_advantage(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([0, 0, 1, 1]), scale=None)
        tensor([ 0.5000, -0.5000, -0.5000,  0.5000])
    """
    one_of(baseline, owner, "baseline", _BASELINES)
    one_of(scale, owner, "scale", _SCALES)
    if reward.ndim != 1 or reward.shape != group.shape:
        raise ShapeError(f"{owner}: reward and group must be [N], got {list(reward.shape)} and {list(group.shape)}")
    _, member, size = group.unique(return_inverse=True, return_counts=True)
    if "group" in (baseline, scale) or baseline == "leave_one_out":
        single = group[(size == 1)[member]]
        if single.numel():
            raise ShapeError(
                f"{owner}: prompt {int(single[0])} has a single response: its advantage would be its reward, or 0."
                " Sample several responses to each prompt, or use baseline='batch' and scale='batch' or None"
            )
    scored = ~reward.isnan()
    value = reward.where(scored, 0)
    # Double precision: the sums of large rewards would lose the differences of a group.
    value = value.double() if reward.device.type != "mps" else value

    levels = {"group": Sequences(scored, member), "batch": Sequences(scored, torch.zeros_like(member))}

    def mean(level: str) -> Tensor:
        return levels[level].expand(levels[level].mean(value))

    def deviation(level: str) -> Tensor:
        squares = levels[level].sum((value - mean(level)).square())
        return levels[level].expand((squares / (levels[level].lengths - 1).clamp(min=1)).sqrt())

    if baseline == "leave_one_out":
        groups = levels["group"]
        others, total = groups.expand(groups.lengths) - 1, groups.expand(groups.sum(value))
        # The only scored response of its group has nothing to be compared with: its advantage is 0.
        found = torch.where(others > 0, value - (total - value) / others.clamp(min=1), 0)
    else:
        found = value if baseline is None else value - mean(baseline)
    if scale is not None:
        found = found / (deviation(scale) + eps)
    return found.where(scored, 0).to(reward.dtype)


@final
class MCAdvantage:
    """Monte-Carlo advantage of responses relative to others to the same prompt.

    Reads ``("next", "reward")`` ``[B, R]``, one column for each reward, NaN where one was not given, and with
    `prompt_key` the number of the prompt, int64 ``[B, 1]``. Writes ``advantage`` ``[B, 1]`` and returns the batch.

    | objective | arguments |
    |---|---|
    | GRPO, DAPO, GSPO, CISPO | ``MCAdvantage(8)`` |
    | Dr. GRPO | ``MCAdvantage(8, scale=None)`` |
    | RLOO | ``MCAdvantage(8, baseline="leave_one_out", scale=None)`` |
    | REINFORCE++ | ``MCAdvantage(8, baseline="batch", scale="batch")`` |
    | REINFORCE++ with group baseline | ``MCAdvantage(8, scale="batch")`` |
    | GDPO (each reward on its own) | ``MCAdvantage(8, per_reward=True)`` |

    Args:
        grpo_size: Number of responses to each prompt: consecutive rows are a group; None with `prompt_key`.
        prompt_key: Key of the number of the prompt, for groups of any size and order.
        baseline: "group" mean, mean of the others ("leave_one_out"), "batch" mean, or None.
        scale: Standard deviation of the "group" or of the "batch", or None.
        eps: Number that is added to the standard deviation: 1e-4 in TRL, 1e-6 in verl.
        reward_weights: Weight of each reward; 1 if None.
        per_reward: Whether each reward is normalized in its groups before the weighted sum, which is then normalized
            over the batch (Liu et al., "GDPO", 2026, eq. 4 to 6).
        rewards_key: Key of the rewards.
        advantage_key: Key of the advantage.

    Example:
        >>> from tensordict import TensorDict
        >>> reward = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
        >>> batch = TensorDict(next=TensorDict(reward=reward, batch_size=[4]), batch_size=[4])
        >>> MCAdvantage(4, scale=None)(batch)["advantage"].squeeze(-1)
        tensor([ 0.7500, -0.2500, -0.2500, -0.2500])
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {"reward": (NEXT, REWARD), "advantage": ADVANTAGE}

    def __init__(
        self,
        grpo_size: int | None,
        *,
        prompt_key: NestedKey | None = None,
        baseline: str | None = "group",
        scale: str | None = "group",
        eps: float = 1e-4,
        reward_weights: tuple[float, ...] | None = None,
        per_reward: bool = False,
        rewards_key: NestedKey = (NEXT, REWARD),
        advantage_key: NestedKey = ADVANTAGE,
    ) -> None:
        if (grpo_size is None) == (prompt_key is None):
            raise ArgumentError("MCAdvantage: exactly one of grpo_size and prompt_key must be set")
        self.grpo_size = None if grpo_size is None else as_integer(grpo_size, "MCAdvantage", "grpo_size", least=2)
        self.prompt_key = None if prompt_key is None else unwrap(prompt_key)
        self.baseline = one_of(baseline, "MCAdvantage", "baseline", _BASELINES)
        self.scale = one_of(scale, "MCAdvantage", "scale", _SCALES)
        self.eps = as_number(eps, "MCAdvantage", "eps", least=0)
        self.reward_weights = None if reward_weights is None else tuple(map(float, reward_weights))
        self.per_reward = per_reward
        self.rewards_key, self.advantage_key = unwrap(rewards_key), unwrap(advantage_key)

    @property
    def contract(self) -> Contract:
        reads = [Key(self.rewards_key, ("R",), "rewards of the response", remedy="Score the responses before.")]
        if self.prompt_key is not None:
            reads.append(Key(self.prompt_key, (1,), "number of the prompt", dtype=torch.int64))
        return Contract(tuple(reads), (Key(self.advantage_key, (1,), "advantage of the response"),))

    def _groups(self, td: TensorDictBase, size: int) -> Tensor:
        if self.prompt_key is not None:
            return td.get(self.prompt_key).reshape(-1)
        group = self.grpo_size or 1
        if size % group:
            raise ShapeError(f"MCAdvantage: the batch must consist of groups of {group} rows, got {size} rows")
        device = td.get(self.rewards_key).device
        return torch.arange(size, device=device) // group

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the advantage into a batch of complete groups, ``[B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If the batch does not consist of groups, or the rewards are not ``[B, R]``.
        """
        rewards = self.contract.read(tensordict, self)[0]
        size = tensordict.batch_size.numel()
        if rewards.shape[:-1] != tensordict.batch_size or rewards.ndim != len(tensordict.batch_size) + 1:
            wanted = [*tensordict.batch_size, "R"]
            raise ShapeError(f"MCAdvantage: {key_str(self.rewards_key)} must be {wanted}, got {list(rewards.shape)}")
        rewards = rewards.detach().reshape(size, rewards.shape[-1])
        rewards = rewards if rewards.is_floating_point() else rewards.float()
        weights = (
            torch.ones_like(rewards[0]) if self.reward_weights is None else rewards.new_tensor(self.reward_weights)
        )
        if weights.numel() != rewards.shape[1]:
            raise ShapeError(f"MCAdvantage: {weights.numel()} reward_weights for {rewards.shape[1]} rewards")
        groups = self._groups(tensordict, size)
        if self.per_reward:
            parts = [self._advantage(column, groups) for column in rewards.unbind(-1)]
            total = (torch.stack(parts, -1) * weights).sum(-1)
            total = total.masked_fill(rewards.isnan().all(-1), float("nan"))
            found = group_advantage(total, groups, baseline="batch", scale="batch", eps=self.eps, owner="MCAdvantage")
        else:
            scored = ~rewards.isnan()
            total = (rewards.where(scored, 0) * weights).sum(-1).masked_fill(~scored.any(-1), float("nan"))
            found = self._advantage(total, groups)
        return tensordict.set(self.advantage_key, found.reshape(*tensordict.batch_size, 1))

    def _advantage(self, reward: Tensor, groups: Tensor) -> Tensor:
        return group_advantage(
            reward, groups, baseline=self.baseline, scale=self.scale, eps=self.eps, owner="MCAdvantage"
        )
