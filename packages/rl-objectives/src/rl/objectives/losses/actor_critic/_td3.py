"""Twin delayed deep deterministic policy gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl.core.contract import Key
from rl.core.errors import ShapeError, SpecError
from rl.core.keys import NestedKey
from rl.objectives import _foreign
from rl.objectives._batch.mask import scalar
from rl.objectives._networks.calls import NetworkCall
from rl.objectives._networks.ensemble import Ensemble, FrozenCall
from rl.objectives.functional import smoothed_action
from rl.objectives.functional._regression import is_number, reduce
from rl.objectives.losses.actor_critic._base import Batch, OffPolicyLoss

__all__ = ["TD3Loss"]


@_foreign.off_policy_loss
class TD3Loss(OffPolicyLoss):
    """Twin delayed deep deterministic policy gradient: two critics, and noise on the target policy.

    Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018, algorithm 1. The actor is
    delayed by the training loop: call `critic_loss` at each update and `actor_loss` at every second one.

    Reads and writes what `DDPGLoss` does; the critics' loss, summed over the critics, is called ``loss_qvalue``.

    Args:
        actor_network: writes ``action``.
        qvalue_network: reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics are copies
            with new initial parameters. Or a list of critics.
        action_spec: bounds of the action: a `Bounded` spec of one element.
        bounds: lower and upper bound, numbers or tensors; instead of `action_spec`.
        num_qvalue_nets: number of critics.
        policy_noise: Standard deviation of the noise on target actions, units of the action: a number, or a tensor
            with one for each of its dimensions.
        noise_clip: Largest absolute value of the noise: a number, or such a tensor.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_actor: whether target actions are those of a copy, ``target_actor_network``.
        delay_qvalue: whether they are valued by a copy, ``target_qvalue_network``.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        ShapeError: in a call, if bounds or noise have another width than the action.
        SpecError: if an argument is out of its range, or there are no bounds.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule, TensorDictSequential
        >>> actor = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
        >>> critic = TensorDictSequential(both, TensorDictModule(nn.Linear(5, 1), ["both"], ["state_action_value"]))
        >>> loss = TD3Loss(actor, critic, bounds=(-1.0, 1.0))
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=after, batch_size=[8])
        >>> loss.critic_loss(batch)["loss_qvalue"].backward()
    """

    qvalue_network: Ensemble
    target_qvalue_network: nn.Module | None

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        action_spec: Any = None,
        bounds: tuple[Tensor | float, Tensor | float] | None = None,
        num_qvalue_nets: int = 2,
        policy_noise: float | Tensor = 0.2,
        noise_clip: float | Tensor = 0.5,
        loss_function: str = "smooth_l1",
        delay_actor: bool = True,
        delay_qvalue: bool = True,
        gamma: float = 0.99,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function=loss_function,
            delay_critic=delay_qvalue,
            delay_actor=delay_actor,
            gamma=gamma,
            reduction=reduction,
        )
        low, high = _bounds(action_spec, bounds, self._keys["action"])
        self.policy_noise, self.noise_clip = policy_noise, noise_clip
        for name, value in (("policy_noise", policy_noise), ("noise_clip", noise_clip)):
            if not isinstance(value, Tensor):
                if not (is_number(value) and value >= 0):
                    raise SpecError(f"TD3Loss got {name}={value!r}; it is a number of at least 0")
                continue
            if bool((~(value >= 0)).any()) or (low.ndim and value.ndim and value.shape[-1:] != low.shape[-1:]):
                raise SpecError(
                    f"TD3Loss got {name}={value.tolist()} for bounds of shape {list(low.shape)}; expected numbers of at"
                    " least 0, one for each dimension of the action"
                )
            delattr(self, name)
            self.register_buffer(name, self._to_networks(value.to(low.dtype)), persistent=False)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", self._to_networks(low))
        self.register_buffer("high", self._to_networks(high))

    def _derive_actor(self) -> list[NestedKey]:
        action = {"action": self._keys["action"]}
        self._policy = NetworkCall(self.actor_network, action)
        self._target_policy = NetworkCall(self.target_actor_network or self.actor_network, action)
        value = {"state_action_value": self._keys["state_action_value"]}
        self._first_critic = FrozenCall(NetworkCall(self.qvalue_network.members[0], value))
        return self._policy.in_keys

    def _writes(self) -> tuple[Key, ...]:
        return (scalar("loss_actor", "negative value of the actor's actions by the first critic"),)

    def _next_value(self, batch: Batch) -> Tensor:
        (action,) = self._target_policy(batch.after, batch.size)
        for name in ("policy_noise", "noise_clip", "low", "high"):
            one = getattr(self, name)
            if isinstance(one, Tensor) and one.ndim and one.shape[-1] not in (1, action.shape[-1]):
                raise ShapeError(
                    f"TD3Loss got {name} of shape {list(one.shape)} for actions of shape {list(action.shape)}; expected"
                    " a number, or one for each dimension of the action"
                )
        width, clip = (
            one.to(action.dtype) if isinstance(one, Tensor) else one for one in (self.policy_noise, self.noise_clip)
        )
        action = smoothed_action(action, torch.randn_like(action) * width, clip, self.low, self.high)
        return self._values(self._target_critic, batch.after, action, batch.size).amin(0)

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        (action,) = self._policy(batch.entries, batch.size)
        (value,) = self._first_critic({**batch.entries, **self._acted(action)}, batch.size)
        return {"loss_actor": reduce(-value.squeeze(-1), self.reduction, batch.mask)}


def _bounds(spec: Any, bounds: Any, key: Any) -> tuple[Tensor, Tensor]:
    """Bounds of the action."""
    if (spec is None) == (bounds is None):
        raise SpecError("TD3Loss needs the bounds of the action: give action_spec, or bounds=(low, high)")
    if bounds is None:
        from rl.core.specs import Bounded, Composite

        leaf = spec[key] if isinstance(spec, Composite) else spec
        if not isinstance(leaf, Bounded):
            raise SpecError(
                f"TD3Loss got action_spec {type(leaf).__name__}; it needs a Bounded one, or bounds=(low, high)"
            )
        bounds = (leaf.low, leaf.high)
    low, high = (torch.as_tensor(one, dtype=torch.get_default_dtype()).clone() for one in bounds)
    if bool((low > high).any()):
        raise SpecError(f"TD3Loss got bounds {low.tolist()} and {high.tolist()}; no lower one is above its upper one")
    return low, high
