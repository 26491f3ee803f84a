"""Proximal policy optimization, with and without clipping."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence

from rl.core.arguments import as_integer, as_number, constructor_setting, module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError
from rl.objectives._agents import Entries
from rl.objectives._batch import expand_right, mean_of, mean_std, scalar
from rl.objectives._keyed_module import sum_log_probs
from rl.objectives._networks import HeadCall
from rl.objectives.functional import clipped_surrogate, surrogate
from rl.objectives.functional._policy_gradient import adapted_penalty, penalized_surrogate
from rl.objectives.functional._q_learning import reduce
from rl.objectives.losses.policy_gradient._base import EntropyCoeff, PolicyLoss, check_entropy, weighted_entropy


@module_arguments()
class PPOLoss(PolicyLoss):
    """Policy gradient on the probability ratio, with a critic and an entropy bonus; nothing is clipped.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 6 and 9.

    Reads the inputs of both networks, ``action``, ``action_log_prob`` ``[*B]``, ``advantage`` and ``value_target``
    ``[*B, 1]``, none of which receives a gradient, and, if there, ``("collector", "mask")`` bool ``[*B]``, which masks
    out padding. Returns scalars: ``loss_objective``, ``loss_critic``, ``loss_entropy``, to be summed and minimized, and
    detached ``entropy``, ``kl_approx``, ``ESS``, ``explained_variance``. The batch stays as it is. Without
    ``advantage`` in the batch it is estimated (`make_value_estimator`), which needs full sequences: a dimension named
    ``time``. Recurrent networks read the batch as sequences, whose last dimension is time; shuffled steps raise. The
    log-probabilities and entropies of a composite action are summed.

    Args:
        actor_network: Policy with a distribution; returns log-probabilities ``[*B]``.
        critic_network: Network that writes ``state_value`` ``[*B, 1]``.
        entropy_bonus: Whether the entropy bonus is added; False is ``entropy_coeff=0``.
        entropy_coeff: Weight of the entropy bonus, at least 0; for an actor with several actions also a mapping from
            action key to weight.
        critic_coeff: Weight of the critic's loss, at least 0.
        loss_critic_type: Name of the distance, ``"smooth_l1"``, ``"l2"`` or ``"l1"``.
        normalize_advantage: Whether the advantage is normalized to mean 0 and standard deviation 1 over the batch.
        normalize_advantage_exclude_dims: Dimensions of the advantage that are normalized apart, such as ``(-2,)``, the
            agents of ``[*B, n_agents, 1]``.
        clip_value: Clip range of the value around ``state_value`` in the batch, units of return.
        separate_losses: Whether the critic's loss has no gradient for parameters that the critic shares with the actor.
        reduction: Reduction of the losses over the batch, ``"mean"``, ``"sum"`` or ``"none"``; ``"none"`` has 0 at
            padding.
        samples_mc_entropy: Number of actions that estimate the entropy of a distribution without a formula for it.
        diagnostics: Whether the detached diagnostics are computed; they are a fifth of the cost of small networks.

    Raises:
        ContractError: If a network has no ``in_keys`` or ``out_keys``, or does not write a key that is read.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> actor = ProbabilisticTensorDictSequential(body, head)
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> loss = PPOLoss(actor, critic)
        >>> loss.in_keys
        ['observation', 'action', 'action_log_prob', 'advantage', 'value_target']
        >>> batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
        >>> batch = batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
        >>> out = loss(batch)
        >>> (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
    """

    _options: ClassVar[tuple[str, ...]] = ("clip_value", "diagnostics", "separate_losses")
    _reads_log_prob: ClassVar[bool] = True

    entropy_bonus: bool = constructor_setting("_entropy_bonus", "Assign entropy_coeff, which is 0 without a bonus")
    """Whether the entropy bonus is added."""

    def __init__(  # noqa: PLR0913 - as elsewhere
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        entropy_bonus: bool = True,
        entropy_coeff: EntropyCoeff = 0.01,
        critic_coeff: float = 1.0,
        loss_critic_type: str = "smooth_l1",
        normalize_advantage: bool = False,
        normalize_advantage_exclude_dims: tuple[int, ...] = (),
        clip_value: float | None = None,
        separate_losses: bool = False,
        reduction: str | None = "mean",
        samples_mc_entropy: int = 1,
        diagnostics: bool = True,
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            critic_coeff=critic_coeff,
            loss_critic_type=loss_critic_type,
            clip_value=clip_value,
            separate_losses=separate_losses,
            reduction=reduction,
        )
        self.entropy_coeff = check_entropy(entropy_coeff, samples_mc_entropy, type(self).__name__, bonus=entropy_bonus)
        self._entropy_bonus = entropy_bonus
        self.normalize_advantage, self.diagnostics = normalize_advantage, diagnostics
        self.samples_mc_entropy = samples_mc_entropy
        self.normalize_advantage_exclude_dims = tuple(
            as_integer(dim, type(self).__name__, "normalize_advantage_exclude_dims")
            for dim in normalize_advantage_exclude_dims
        )
        self.derive_early()

    def _writes(self) -> tuple[Key, ...]:
        losses = (
            scalar("loss_objective", "surrogate of the policy"),
            scalar("loss_critic", "weighted distance of values and targets"),
            scalar("loss_entropy", "weighted negative entropy"),
        )
        return (*losses, *(self._diagnostic_keys() if self.diagnostics else ()), *self._extra_writes())

    def _extra_writes(self) -> tuple[Key, ...]:
        return ()

    def _diagnostic_keys(self) -> tuple[Key, ...]:
        return (
            scalar("entropy", "entropy of the policy, nats, no gradient"),
            scalar("kl_approx", "estimate of KL(old || new), nats, no gradient"),
            scalar("ESS", "effective sample size as a share of the batch, (0, 1], 0 if nothing is valid, no gradient"),
            scalar("explained_variance", "share of the targets' variance that the critic explains, no gradient"),
        )

    def _objective(
        self,
        log_ratio: Tensor,
        advantage: Tensor,
        dist: Distribution,  # noqa: ARG002 - for subclasses
        entries: Entries,  # noqa: ARG002 - for subclasses
        mask: Tensor | None,  # noqa: ARG002 - for subclasses
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each element ``[*B]``, and further detached outputs."""
        return surrogate(log_ratio, advantage), {}

    def _extra_diagnostics(self, log_ratio: Tensor, mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002 - for subclasses
        return {}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read_estimated(tensordict)
        size, target = tensordict.batch_size, entries[self._keys["value_target"]]
        dist = self._actor(entries, size)
        log_ratio = self._log_prob(dist, entries, size)
        advantage = entries[self._keys["advantage"]]
        if self.normalize_advantage:
            apart, dims = self.normalize_advantage_exclude_dims, advantage.ndim
            if any(not -dims <= dim < dims for dim in apart):
                raise ArgumentError(
                    f"{type(self).__name__} got normalize_advantage_exclude_dims={apart} and advantages of shape"
                    f" {tuple(advantage.shape)}: their dimensions are from {-dims} to {dims - 1}"
                )
            mean, std = mean_std(advantage, mask, apart=apart)
            advantage = (advantage - mean) / std.clamp_min(1e-6)  # a constant advantage stays finite
        advantage = advantage.squeeze(-1)
        loss_entropy, entropy = weighted_entropy(
            dist, self.entropy_coeff, self.samples_mc_entropy, self.reduction, mask
        )
        loss_critic, value = self._value_loss(entries, size, mask)
        objective, more = self._objective(log_ratio, advantage, dist, entries, mask)
        out = {
            "loss_objective": reduce(objective, self.reduction, mask),
            "loss_critic": loss_critic,
            "loss_entropy": loss_entropy,
        }
        if self.diagnostics:
            with torch.no_grad():
                out |= self._diagnostics(log_ratio, entropy, value, target, mask)
        return TensorDict(out | more)

    def _diagnostics(
        self, log_ratio: Tensor, entropy: Tensor, value: Tensor, target: Tensor, mask: Tensor | None
    ) -> dict[str, Tensor]:
        log_ratio = log_ratio.detach()
        flat, count = log_ratio.reshape(-1), max(log_ratio.numel(), 1)
        if mask is None:
            doubled = torch.logsumexp(2 * flat, 0)
        else:
            inside = expand_right(mask, log_ratio).reshape(-1)
            flat, count = flat.where(inside, -torch.inf), inside.sum().clamp_min(1)
            doubled = torch.logsumexp(2 * flat, 0).where(inside.any(), 0)  # ESS is 0 if nothing is valid
        unexplained, spread = (mean_std(x, mask)[1].square() for x in (target - value, target))
        # KL(old || new) as E[r - 1 - log r], which is never negative; ESS = (sum r)^2 / sum r^2 / count
        return {
            "entropy": mean_of(entropy.detach(), mask),
            "kl_approx": mean_of(log_ratio.expm1() - log_ratio, mask),
            "ESS": (2 * torch.logsumexp(flat, 0) - doubled).exp() / count,
            "explained_variance": 1 - unexplained / spread.clamp_min(1e-8),
            **self._extra_diagnostics(log_ratio, mask),
        }


class ClipPPOLoss(PPOLoss):
    """Proximal policy optimization with a clipped probability ratio.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7 and 9.

    Keys and behavior are those of `PPOLoss`; returns one more detached scalar, ``clip_fraction``.

    Args:
        actor_network: Policy with a distribution; returns log-probabilities ``[*B]``.
        critic_network: Network that writes ``state_value`` ``[*B, 1]``.
        clip_epsilon: Half-width of the interval around ratio 1, in (0, 1); or a pair, how far it reaches below and
            above 1, in (0, 1) and above 0 (Yu et al., "DAPO", 2025, eq. 8).
        clip_value: Bound as for `PPOLoss`; True is `clip_epsilon`, a number then, and False is None.
        others: Arguments of `PPOLoss`.

    Raises:
        ContractError: If a network has no ``in_keys`` or ``out_keys``, or does not write a key that is read.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> ClipPPOLoss(ProbabilisticTensorDictSequential(body, head), critic, clip_epsilon=0.1).out_keys[-1]
        'clip_fraction'
    """

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        clip_epsilon: float | tuple[float, float] = 0.2,
        clip_value: float | None = None,
        **others: Any,
    ) -> None:
        owner = type(self).__name__
        pair: Any = tuple(clip_epsilon) if isinstance(clip_epsilon, list | tuple) else None
        sides: Any = (clip_epsilon, clip_epsilon) if pair is None else pair
        if len(sides) != 2:
            raise ArgumentError(f"{owner}: clip_epsilon must be a number, or one below and one above 1, got {pair!r}")
        as_number(sides[0], owner, "clip_epsilon", above=0, below=1)
        as_number(sides[1], owner, "clip_epsilon", above=0, below=1 if pair is None else math.inf)
        if clip_value is True:
            if pair is not None:
                raise ArgumentError(f"{owner}: clip_value must be a number for clip_epsilon={pair}, got True")
            clip_value = sides[0]
        if clip_value is False:
            clip_value = None
        super().__init__(actor_network, critic_network, clip_value=clip_value, **others)
        self.clip_epsilon: float | tuple[float, float] = clip_epsilon if pair is None else pair

    def _diagnostic_keys(self) -> tuple[Key, ...]:
        more = scalar("clip_fraction", "share of ratios outside the interval, [0, 1], no gradient")
        return (*super()._diagnostic_keys(), more)

    def _objective(
        self,
        log_ratio: Tensor,
        advantage: Tensor,
        dist: Distribution,  # noqa: ARG002 - as in the base
        entries: Entries,  # noqa: ARG002 - as in the base
        mask: Tensor | None,  # noqa: ARG002 - as in the base
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return clipped_surrogate(log_ratio, advantage, self.clip_epsilon), {}

    def _extra_diagnostics(self, log_ratio: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        clip, beyond = self.clip_epsilon, log_ratio.exp() - 1
        outside = (beyond < -clip[0]) | (beyond > clip[1]) if isinstance(clip, tuple) else beyond.abs() > clip
        return {"clip_fraction": mean_of(outside.to(log_ratio.dtype), mask)}


@final
class KLPENPPOLoss(PPOLoss):
    """Proximal policy optimization with an adaptive penalty on the Kullback-Leibler divergence of the policies.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 8 and section 4.

    Keys and behavior are those of `PPOLoss`. Reads also the parameters of the distribution at collection, such as
    ``logits`` or ``loc`` and ``scale``: what the actor's network writes for its distribution. Returns two more detached
    scalars: ``kl``, the mean of KL(old || new) in nats, and ``beta``, its weight in this batch. In training mode each
    call adapts the weight, the buffer ``beta``, for the next one; `torch.nn.Module.eval` keeps it.

    Args:
        actor_network: Policy with a distribution, a `ProbabilisticTensorDictSequential`.
        critic_network: Network that writes ``state_value`` ``[*B, 1]``.
        dtarg: Wanted mean of the divergence, above 0, nats.
        beta: First weight of the penalty, at least 0.
        increment: Factor of the weight where the divergence is above 1.5 times `dtarg`, at least 1.
        decrement: Factor of the weight where it is below `dtarg` / 1.5, in (0, 1].
        samples_mc_kl: Number of actions that estimate a divergence without a formula for it.
        others: Arguments of `PPOLoss`.

    Raises:
        ContractError: If the actor does not write the parameters of its distribution, or as for `PPOLoss`.
        ArgumentError: If an argument is out of its range.

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
        owner = type(self).__name__
        beta = as_number(beta, owner, "beta", least=0)
        self._previous: HeadCall
        self.samples_mc_kl = as_integer(samples_mc_kl, owner, "samples_mc_kl", least=1)
        self.dtarg = as_number(dtarg, owner, "dtarg", above=0)
        self.increment = as_number(increment, owner, "increment", least=1)
        self.decrement = as_number(decrement, owner, "decrement", above=0, most=1)
        super().__init__(actor_network, critic_network, **others)
        self.register_buffer("beta", self._to_networks(torch.as_tensor(beta)))

    def _derive(self) -> Contract:
        self._previous = HeadCall(self.actor_network)
        return super()._derive()

    def _extra_reads(self) -> tuple[Key, ...]:
        doc = "parameter of the distribution at collection"
        remedy = "The actor writes it: keep it in select, exclude, transforms and storages."
        return tuple(Key(key, doc=doc, remedy=remedy) for key in self._previous.in_keys)

    def _extra_writes(self) -> tuple[Key, ...]:
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
        """Compute KL(old || new) of each element, ``[*B]``, by its formula or by samples of the old policy."""
        try:
            return kl_divergence(old, new)
        except NotImplementedError:
            actions = old.sample(torch.Size([self.samples_mc_kl]))
            return (sum_log_probs(old.log_prob(actions)).detach() - sum_log_probs(new.log_prob(actions))).mean(0)
