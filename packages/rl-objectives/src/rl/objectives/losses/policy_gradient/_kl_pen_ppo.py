"""Proximal policy optimization with a penalty on the distance of the policies."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence

from rl.core.arguments import as_integer
from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError, SpecError
from rl.objectives._batch.mask import mean_of, scalar
from rl.objectives._networks.calls import HeadCall
from rl.objectives._networks.composite import joint
from rl.objectives.functional._policy_gradient import adapted_penalty, penalized_surrogate
from rl.objectives.functional._regression import is_number
from rl.objectives.losses._base import Entries
from rl.objectives.losses.policy_gradient._ppo import PPOLoss

__all__ = ["KLPENPPOLoss"]


@final
class KLPENPPOLoss(PPOLoss):
    """Proximal policy optimization with an adaptive penalty on the Kullback-Leibler divergence of the policies.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 8 and section 4.

    Keys and behaviour are those of `PPOLoss`. Reads also the parameters of the distribution at collection, such as
    ``logits`` or ``loc`` and ``scale``: what the actor's network writes for its distribution. Returns two more detached
    scalars: ``kl``, the mean of KL(old || new) in nats, and ``beta``, its weight in this batch. In training mode each
    call adapts the weight, the buffer ``beta``, for the next one; `torch.nn.Module.eval` keeps it.

    Args:
        actor_network: policy with a distribution, a `ProbabilisticTensorDictSequential`.
        critic_network: writes ``state_value`` ``[*B, 1]``.
        dtarg: wanted mean of the divergence, above 0, nats.
        beta: first weight of the penalty, at least 0.
        increment: factor of the weight where the divergence is above 1.5 times `dtarg`, at least 1.
        decrement: factor of the weight where it is below `dtarg` / 1.5, in (0, 1].
        samples_mc_kl: number of actions that estimate a divergence without a formula for it.
        others: those of `PPOLoss`.

    Raises:
        ContractError: if the actor does not write the parameters of its distribution, or as for `PPOLoss`.
        SpecError: if an argument is out of its range.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> actor = ProbabilisticTensorDictSequential(body, head)
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> loss = KLPENPPOLoss(actor, critic, dtarg=0.01)
        >>> batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
        >>> batch = batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
        >>> out = loss(batch)  # the policy is still the old one
        >>> out["beta"], loss.beta
        (tensor(1.), tensor(0.5000))
    """

    beta: Tensor

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        dtarg: float = 0.01,
        beta: float = 1.0,
        increment: float = 2.0,
        decrement: float = 0.5,
        samples_mc_kl: int = 1,
        **others: Any,
    ) -> None:
        ranges = {
            "dtarg": (dtarg, "above 0", lambda x: x > 0),
            "beta": (beta, "at least 0", lambda x: x >= 0),
            "increment": (increment, "at least 1", lambda x: x >= 1),
            "decrement": (decrement, "in (0, 1]", lambda x: 0 < x <= 1),
        }
        for name, (value, wanted, fits) in ranges.items():
            if not (is_number(value) and fits(value)):
                raise SpecError(f"{type(self).__name__} got {name}={value!r}; it is a number {wanted}")
        self._previous: HeadCall
        self.samples_mc_kl = as_integer(samples_mc_kl, type(self).__name__, "samples_mc_kl", least=1)
        self.dtarg, self.increment, self.decrement = dtarg, increment, decrement
        super().__init__(actor_network, critic_network, **others)
        self.register_buffer("beta", self._to_networks(torch.as_tensor(float(beta))))

    def _derive(self) -> Contract:
        self._previous = HeadCall(self.actor_network)
        return super()._derive()

    def _more_reads(self) -> tuple[Key, ...]:
        doc = "parameter of the distribution at collection"
        remedy = "The actor writes it: keep it in select, exclude, transforms and storages."
        return tuple(Key(key, doc=doc, remedy=remedy) for key in self._previous.in_keys)

    def _more_writes(self) -> tuple[Key, ...]:
        return (
            scalar("kl", "mean divergence KL(old || new), nats, no gradient"),
            scalar("beta", "weight of the divergence, no gradient"),
        )

    def _objective(
        self, log_ratio: Tensor, advantage: Tensor, dist: Distribution, entries: Entries, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        kl = self._divergence(self._previous(entries, advantage.shape), dist)
        if kl.shape != advantage.shape:
            raise ShapeError(
                f"{type(self).__name__} got divergences of shape {tuple(kl.shape)} for a batch of shape"
                f" {tuple(advantage.shape)}; a distribution with one for each dimension needs"
                " torch.distributions.Independent"
            )
        beta, mean = self.beta.clone(), mean_of(kl.detach(), mask)
        if self.training:
            self.beta.copy_(adapted_penalty(beta, mean, self.dtarg, self.increment, self.decrement))
        return penalized_surrogate(log_ratio, advantage, kl, beta), {"kl": mean, "beta": beta}

    def _divergence(self, old: Distribution, new: Distribution) -> Tensor:
        """KL(old || new) of each element, ``[*B]``, by its formula or by samples of the old policy."""
        try:
            return kl_divergence(old, new)
        except NotImplementedError:
            actions = old.sample(torch.Size([self.samples_mc_kl]))
            return (joint(old.log_prob(actions)).detach() - joint(new.log_prob(actions))).mean(0)
