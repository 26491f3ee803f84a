"""Decision transformers."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor, nn

from rl.core.arguments import module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError
from rl.core.keys import NestedKey, key_str
from rl.objectives._batch import MASK, mask_keys_of_steps, mean_of, scalar
from rl.objectives._keyed_module import sum_log_probs
from rl.objectives._networks import ActorCall, NetworkCall, input_key
from rl.objectives.functional._q_learning import check_distance, distance, reduce
from rl.objectives.losses._base import LossModule
from rl.objectives.losses.actor_critic._sac import TargetEntropy, action_width, log_bounds
from rl.objectives.losses.policy_gradient._base import weighted_entropy

__all__ = ["DTLoss", "OnlineDTLoss"]


class _SequenceLoss(LossModule):
    """Base of losses of policies that read sequences of observations, actions and returns-to-go."""

    def _reads(self, call: ActorCall | NetworkCall) -> tuple[Key, ...]:
        target = self._keys["action_target"]
        inputs = [key for key in call.in_keys if key != target]
        return (
            *(input_key(key, call.states, "input of the actor") for key in inputs),
            Key(target, doc="action of the dataset"),
            *mask_keys_of_steps(self._keys["mask"]),
        )


@final
@module_arguments()
class DTLoss(_SequenceLoss):
    """Decision transformer: the distance of the policy's actions to those of the dataset.

    Chen et al., "Decision transformer: reinforcement learning via sequence modeling", 2021, algorithm 1.

    Reads the inputs of the actor, such as ``observation`` ``[*B, T, d]``, ``action`` ``[*B, T, a]`` and
    ``return_to_go`` ``[*B, T, 1]``, and, if there, ``("collector", "mask")`` bool ``[*B, T]``, which masks out padding.
    Padding follows the steps of a sequence, so that a causal actor does not see it. Returns the scalar ``loss``.

    Args:
        actor_network: Network that writes ``action``, which it computes for each step without the actions from that
            step on.
        loss_function: Name of the distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If the actor has no keys.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> actor = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> data = TensorDict(observation=torch.randn(8, 5, 3), action=torch.randn(8, 5, 2), batch_size=[8, 5])
        >>> DTLoss(actor)(data)["loss"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "action_target": "action",
        "action_pred": "action",
        "done": "done",
        "mask": MASK,
    }

    def __init__(self, actor_network: nn.Module, *, loss_function: str = "l2", reduction: str | None = "mean") -> None:
        super().__init__(reduction=reduction)
        self.loss_function = check_distance(loss_function, type(self).__name__)
        self.actor_network = actor_network
        self.derive_early()

    def _derive(self) -> Contract:
        self._actor = NetworkCall(self.actor_network, {"action_pred": self._keys["action_pred"]})
        self._states = self._actor.states
        return Contract(self._reads(self._actor), (scalar("loss", "distance to the actions of the dataset"),))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch.

        Args:
            tensordict: Batch ``[*B, T]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        with set_interaction_type(InteractionType.DETERMINISTIC):
            (action,) = self._actor(entries, tensordict.batch_size)
        target = entries[self._keys["action_target"]]
        if action.shape != target.shape:
            raise ShapeError(
                f"DTLoss got actions of shape {tuple(action.shape)} from the actor, and"
                f" {key_str(self._keys['action_target'])} has {tuple(target.shape)}: they would broadcast"
            )
        elements = distance(action, target.to(action.dtype), self.loss_function).mean(-1)
        return TensorDict({"loss": reduce(elements, self.reduction, mask)})


@final
@module_arguments()
class OnlineDTLoss(TargetEntropy, _SequenceLoss):
    """Online decision transformer: the likelihood of the dataset's actions, with an entropy bonus.

    Zheng et al., "Online decision transformer", 2022, eq. 3 to 6: the temperature of the bonus is a Lagrange
    multiplier that keeps the entropy at its target.

    Reads the inputs of the actor, such as ``observation`` ``[*B, T, d]``, ``action`` ``[*B, T, a]`` and
    ``return_to_go`` ``[*B, T, 1]``, and, if there, ``("collector", "mask")`` bool ``[*B, T]``, which masks out padding.
    Returns scalars: ``loss_log_likelihood``, ``loss_entropy`` and ``loss_alpha``, to be summed and minimized, and the
    detached ``alpha`` and ``entropy``.

    Args:
        actor_network: Policy with a distribution of actions for each step, without the actions from that step on.
        alpha_init: First temperature, above 0.
        min_alpha: Smallest temperature; None for no bound.
        max_alpha: Largest temperature; None for no bound.
        fixed_alpha: Whether the temperature stays the first one; ``loss_alpha`` is 0 then.
        target_entropy: Entropy that the temperature is learned for, nats, or ``"auto"`` for minus the number of action
            dimensions.
        samples_mc_entropy: Samples for the entropy of a distribution without a closed form.
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If the actor has no distribution.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> from torch.distributions import Independent, Normal
        >>> head = ProbabilisticTensorDictModule(
        ...     ["loc"], ["action"], distribution_class=lambda loc: Independent(Normal(loc, 1.0), 1)
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), ["observation"], ["loc"])
        >>> loss = OnlineDTLoss(ProbabilisticTensorDictSequential(body, head), alpha_init=0.1)
        >>> data = TensorDict(observation=torch.randn(8, 5, 3), action=torch.randn(8, 5, 2), batch_size=[8, 5])
        >>> out = loss(data)
        >>> (out["loss_log_likelihood"] + out["loss_entropy"] + out["loss_alpha"]).backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {"action_target": "action", "done": "done", "mask": MASK}

    log_alpha: Tensor

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        samples_mc_entropy: int = 1,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self._log_bounds = log_bounds(type(self).__name__, alpha_init, min_alpha, max_alpha, target_entropy)
        self._given_entropy, self.samples_mc_entropy = target_entropy, samples_mc_entropy
        self._count = action_width(getattr(actor_network, "spec", None), self._keys["action_target"])
        device = next((parameter.device for parameter in actor_network.parameters()), None)
        first = torch.tensor(math.log(alpha_init), device=device)
        if fixed_alpha:
            self.register_buffer("log_alpha", first)
        else:
            self.register_parameter("log_alpha", nn.Parameter(first))
        self.fixed_alpha = fixed_alpha
        self.actor_network = actor_network
        self.derive_early()

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradient."""
        return self._alpha().detach()

    def _alpha(self) -> Tensor:
        return (self.log_alpha if self._log_bounds is None else self.log_alpha.clamp(*self._log_bounds)).exp()

    def _derive(self) -> Contract:
        self._actor = ActorCall(self.actor_network)
        self._states = self._actor.states
        return Contract(
            self._reads(self._actor),
            (
                scalar("loss_log_likelihood", "negative log-probability of the actions of the dataset"),
                scalar("loss_entropy", "negative entropy, times the temperature"),
                scalar("loss_alpha", "loss of the temperature"),
                scalar("alpha", "temperature, no gradient"),
                scalar("entropy", "mean entropy of the policy, nats, no gradient"),
            ),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: Batch ``[*B, T]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        size = tensordict.batch_size
        dist, action = self._actor(entries, size), entries[self._keys["action_target"]]
        log_prob = sum_log_probs(dist.log_prob(action))
        bonus, entropy = weighted_entropy(dist, 1.0, self.samples_mc_entropy, self.reduction, mask)
        target = self._given_entropy
        if isinstance(target, str):
            self._count = action.shape[len(size) :].numel()
            target = self._entropy_of(self._count)
        excess = (entropy - target).detach()
        elements = torch.zeros_like(excess) if self.fixed_alpha else self._alpha() * excess
        return TensorDict(
            {
                "loss_log_likelihood": reduce(-log_prob, self.reduction, mask),
                "loss_entropy": self.alpha * bonus,
                "loss_alpha": reduce(elements, self.reduction, mask),
                "alpha": self.alpha,
                "entropy": mean_of(entropy.detach(), mask),
            }
        )
