"""Value estimators on TensorDicts."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, ClassVar, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError, UnsupportedError
from rl.core.keys import as_tuple
from rl.core.registry import load
from rl.objectives._agents import group_of, in_group
from rl.objectives._batch import expand_right, mean_std, replace_padding
from rl.objectives._estimator_base import TDEstimatorBase, ValueEstimatorBase
from rl.objectives._keyed_module import as_list, select_action, sum_log_probs
from rl.objectives._networks import ActorCall, actor_keys, input_key, joint_states
from rl.objectives.functional._advantages import (
    check_thresholds,
    vec_generalized_advantage_estimate,
    vtrace_advantage_estimate,
)
from rl.objectives.functional._returns import (
    td0_return_estimate,
    vec_td1_return_estimate,
    vec_td_lambda_return_estimate,
)

__all__ = [
    "GAE",
    "MultiAgentGAE",
    "TD0Estimator",
    "TD1Estimator",
    "TDEstimatorBase",
    "TDLambdaEstimator",
    "VTrace",
    "ValueEstimatorBase",
    "ValueEstimators",
]


@final
class TD0Estimator(TDEstimatorBase):
    """TD(0): one reward and the discounted value of the next state; steps may be in any order.

    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 6.2. Arguments and keys as for
    `ValueEstimatorBase`, shapes ``[*B, ...]``. Reads ``gamma`` ``[*B, 1]``, if it is there, in place of the argument:
    the discount after a multi-step return.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> flag = torch.tensor([[False], [True]])
        >>> after = TensorDict(reward=torch.ones(2, 1), done=flag, terminated=flag, state_value=torch.ones(2, 1))
        >>> batch = TensorDict(state_value=torch.zeros(2, 1), next=after, batch_size=[2])
        >>> TD0Estimator(gamma=0.5)(batch)["value_target"].flatten()
        tensor([1.5000, 1.0000])
    """

    needs_time = False

    def returns(self, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int) -> Tensor:  # noqa: ARG002 - of the interface
        """Return the target, ``[*B, F]`` as all arguments are."""
        return td0_return_estimate(self.gamma, next_value, reward, terminated)

    def discounted(self, discount: Tensor | None) -> Callable[..., Tensor]:
        """Return `returns` with the discount of the batch, if it holds one."""
        if discount is None:
            return self.returns
        return lambda next_value, reward, _done, terminated, _time: td0_return_estimate(
            discount, next_value, reward, terminated
        )


@final
class TD1Estimator(TDEstimatorBase):
    """TD(1): all rewards to the end of the episode or batch, and the value of the last state.

    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 12.20 with lambda = 1. Arguments and keys as
    for `ValueEstimatorBase`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> flag = torch.tensor([[False], [True]])
        >>> after = TensorDict(reward=torch.ones(2, 1), done=flag, terminated=flag, state_value=torch.ones(2, 1))
        >>> batch = TensorDict(state_value=torch.zeros(2, 1), next=after, batch_size=[2])
        >>> TD1Estimator(gamma=0.5)(batch)["value_target"].flatten()
        tensor([1.5000, 1.0000])
    """

    def returns(self, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int) -> Tensor:
        """Return the target, ``[*B, T, F]`` as all arguments are."""
        return vec_td1_return_estimate(self.gamma, next_value, reward, done, terminated, time_dim=time_dim)


@final
@module_arguments()
class TDLambdaEstimator(TDEstimatorBase):
    """TD(lambda): n-step returns of all lengths, weighted by powers of lambda.

    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 12.20.

    Args:
        gamma: Discount, in [0, 1].
        lmbda: Weight of longer returns, in [0, 1].
        value_network: Network that writes ``state_value``; if None, the batch already holds it, and ``("next",
            "state_value")``.
        differentiable: Whether gradients flow into the values.
        shifted: Whether ``T + 1`` states are evaluated instead of ``2 T``; see `ValueEstimatorBase`.
        time_dim: Batch dimension of time; if None, the one named ``time``, else the last.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> flag = torch.tensor([[False], [True]])
        >>> after = TensorDict(reward=torch.ones(2, 1), done=flag, terminated=flag, state_value=torch.ones(2, 1))
        >>> batch = TensorDict(state_value=torch.zeros(2, 1), next=after, batch_size=[2])
        >>> TDLambdaEstimator(gamma=0.5, lmbda=0.0)(batch)["value_target"].flatten()
        tensor([1.5000, 1.0000])
    """

    lmbda: float | Tensor

    def __init__(
        self,
        *,
        gamma: float | Tensor = 0.99,
        lmbda: float | Tensor = 0.95,
        value_network: nn.Module | None = None,
        differentiable: bool = False,
        shifted: bool = False,
        time_dim: int | None = None,
    ) -> None:
        super().__init__(
            gamma=gamma,
            value_network=value_network,
            differentiable=differentiable,
            shifted=shifted,
            time_dim=time_dim,
        )
        self._set_coefficient("lmbda", lmbda)

    def returns(self, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int) -> Tensor:
        """Return the target, ``[*B, T, F]`` as all arguments are."""
        return vec_td_lambda_return_estimate(
            self.gamma, self.lmbda, next_value, reward, done, terminated, time_dim=time_dim
        )


def check_td(estimator: ValueEstimatorBase, owner: str, *, one_step: bool) -> None:
    """Raise unless the target of an estimator needs only the values of the next states.

    Args:
        estimator: Estimator.
        owner: Loss, for messages.
        one_step: Whether the loss fits distributions, whose targets are one step.

    Raises:
        UnsupportedError: If it needs more.
    """
    if one_step and not isinstance(estimator, TD0Estimator):
        raise UnsupportedError(
            f"{owner} cannot use {type(estimator).__name__}: the target of a distribution is one step, TD0; for n steps"
            " store multi-step transitions (MultiStepTransform)"
        )
    if not isinstance(estimator, TDEstimatorBase):
        raise UnsupportedError(
            f"{owner} cannot use {type(estimator).__name__}, which needs the value of the policy at each state; it"
            " takes TD0, TD1, TDLambda, or a TDEstimatorBase"
        )


@module_arguments()
class GAE(ValueEstimatorBase):
    """Generalized advantage estimation.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, eq. 16.

    Reads the inputs of the value network, the same under ``next``, and ``("next", "reward")``, ``("next", "done")`` and
    ``("next", "terminated")`` ``[*B, T, 1]``; writes ``advantage``, ``value_target`` and ``state_value`` of that shape.
    Steps must be in time order. If trajectory ids, ``index`` or ``is_init`` show another order, the estimator raises; a
    flattened or shuffled batch without these entries is read as one sequence.

    Args:
        gamma: Discount, in [0, 1].
        lmbda: Weight of longer returns, in [0, 1]; 0 is the one-step TD error, 1 the sum of all rewards.
        value_network: Network that writes ``state_value``; if None, the batch already holds it, and ``("next",
            "state_value")``.
        average_gae: Whether the advantage, not `value_target`, is normalized to mean 0 and standard deviation 1 over
            the valid steps of the batch.
        differentiable: Whether gradients flow into the values.
        shifted: Whether ``T + 1`` states are evaluated instead of ``2 T``; see `ValueEstimatorBase`.
        time_dim: Batch dimension of time; if None, the one named ``time``, else the last.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
        >>> flag = torch.zeros(2, 5, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(2, 5, 3), reward=torch.ones(2, 5, 1), done=flag, terminated=flag)
        >>> batch = gae(TensorDict(observation=torch.randn(2, 5, 3), next=after, batch_size=[2, 5]))
        >>> batch["advantage"].shape, batch["value_target"].shape
        (torch.Size([2, 5, 1]), torch.Size([2, 5, 1]))
    """

    lmbda: float | Tensor

    def __init__(
        self,
        *,
        gamma: float | Tensor = 0.99,
        lmbda: float | Tensor = 0.95,
        value_network: nn.Module | None = None,
        average_gae: bool = False,
        differentiable: bool = False,
        shifted: bool = False,
        time_dim: int | None = None,
    ) -> None:
        super().__init__(
            gamma=gamma,
            value_network=value_network,
            differentiable=differentiable,
            shifted=shifted,
            time_dim=time_dim,
        )
        self._set_coefficient("lmbda", lmbda)
        self.average_gae = average_gae

    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the advantage and value target, ``[*B, T, F]`` as all arguments are."""
        advantage, target = vec_generalized_advantage_estimate(
            self.gamma, self.lmbda, value, next_value, reward, done, terminated, time_dim=time_dim
        )
        return (self._scaled(advantage, None) if self.average_gae else advantage), target

    def formula(self, tensordict: TensorDictBase) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return `estimate`, normalized over the valid steps."""
        mask = self.counted(tensordict) if self.average_gae else None
        if mask is None:
            return self.estimate

        def masked(*arguments: Any) -> tuple[Tensor, Tensor]:
            advantage, target = vec_generalized_advantage_estimate(
                self.gamma, self.lmbda, *arguments[:-1], time_dim=arguments[-1]
            )
            return self._scaled(advantage, mask), target

        return masked

    def counted(self, tensordict: TensorDictBase) -> Tensor | None:
        """Return the mask of elements of mean and deviation: steps that count, ``[*B]``, or agents that act in them."""
        mask, learned = self._reader.step_masks(tensordict)
        if self._agents is not None:
            mask = self._agents.acting(tensordict, mask)
        if learned is None or mask is None:
            return mask if learned is None else learned
        return mask & expand_right(learned, mask)

    @staticmethod
    def _scaled(advantage: Tensor, mask: Tensor | None) -> Tensor:
        mean, std = mean_std(advantage, mask)
        return (advantage - mean) / std.clamp_min(1e-4)  # a constant advantage stays finite


@final
@module_arguments()
class MultiAgentGAE(GAE):
    """Generalized advantage estimation for each agent of a group.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, eq. 16, on
    values ``[*B, T, n_agents, 1]``. A reward and done flags of the entire group, ``[*B, T, 1]``, count for each agent.

    If the value network writes ``(group, "state_value")``, it reads ``("next", group, "reward")``, or without it
    the reward of the team, ``("next", "reward")``, and writes ``advantage``, ``value_target`` and ``state_value`` of
    the group; done flags are those of the root. Otherwise keys are those of `GAE`. `set_keys` names others:
    ``done=(group, "done")`` and ``terminated=(group, "terminated")`` where agents leave before the episode ends.

    Where the batch has ``(group, "mask")`` (bool ``[*B, T, n_agents]``) agents that do not act change nothing: the
    network reads 0 in place of their observations, unless it is recurrent, their reward is 0, and advantages pass
    over such steps: the next value of an agent is that of its next act, discounted. With done flags of each agent,
    rewards in such steps count until the agent is done, as in games where players take turns. With `average_gae` agents
    that do not act are left out of mean and deviation.

    Args:
        gamma: Discount, in [0, 1].
        lmbda: Weight of longer returns, in [0, 1].
        value_network: Network that writes ``state_value`` ``[*B, T, n_agents, 1]``; if None, the batch already holds
            it.
        value_norm: Normalization with ``denormalize``, as `PopArtValueNorm` of rl-modules: the network's values are
            normalized, and advantages and targets are in units of return.
        others: Arguments of `GAE`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(4, 1), [("agents", "observation")], [("agents", "state_value")])
        >>> flag = torch.zeros(2, 5, 1, dtype=torch.bool)
        >>> agents = TensorDict(observation=torch.randn(2, 5, 3, 4), batch_size=[2, 5, 3])
        >>> after = TensorDict(agents=agents.clone().set("reward", torch.ones(2, 5, 3, 1)), done=flag, terminated=flag)
        >>> batch = TensorDict(agents=agents, next=after, batch_size=[2, 5])
        >>> MultiAgentGAE(value_network=critic)(batch)["agents", "advantage"].shape
        torch.Size([2, 5, 3, 1])
    """

    _expands_reward: ClassVar[bool] = True
    _grouped: ClassVar[tuple[str, ...]] = ("reward", "advantage", "value_target")

    def __init__(self, *, value_network: nn.Module | None = None, value_norm: Any = None, **others: Any) -> None:
        if value_norm is not None and not hasattr(value_norm, "denormalize"):
            raise ArgumentError(f"MultiAgentGAE got value_norm={value_norm!r}, which has no denormalize(value)")
        super().__init__(value_network=value_network, **others)
        self.value_norm = value_norm
        written = [key for key in getattr(value_network, "out_keys", ()) if as_tuple(key)[-1] == "state_value"]
        if len(written) == 1 and (group := group_of(written[0])):
            names = {name: in_group(group, name) for name in self._grouped}
            self.set_keys(value=written[0], **names)

    def _in_units_of_return(self, value: Tensor) -> Tensor:
        return value if self.value_norm is None else self.value_norm.denormalize(value)


@final
@module_arguments()
class VTrace(ValueEstimatorBase):
    """V-trace: off-policy returns of the current actor, from steps of an older one.

    Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018,
    eq. 1.

    Reads the inputs of both networks, those of the value network under ``next`` too, ``action``, its log-probability
    at collection ``action_log_prob`` ``[*B, T]``, and ``("next", "reward")``, ``("next", "done")`` and ``("next",
    "terminated")`` ``[*B, T, 1]``; writes ``advantage``, ``value_target`` and ``state_value`` of that shape.

    Args:
        actor_network: Policy with a distribution that returns log-probabilities ``[*B, T]``.
        gamma: Discount, in [0, 1].
        lmbda: Weight of longer returns, in [0, 1].
        rho_thresh: Largest weight of a temporal difference; determines the policy whose values are the fixed point.
        c_thresh: Largest weight of what follows, at most `rho_thresh`; determines the speed of convergence.
        value_network: Network that writes ``state_value``; if None, the batch already holds it, and ``("next",
            "state_value")``.
        differentiable: Whether gradients flow into the values and the log-probabilities.
        shifted: Whether ``T + 1`` states are evaluated instead of ``2 T``; see `ValueEstimatorBase`.
        time_dim: Batch dimension of time; if None, the one named ``time``, else the last.

    Raises:
        ContractError: If a network has no ``in_keys`` or ``out_keys``.
        ArgumentError: If a coefficient is outside [0, 1], or the thresholds are not ``0 <= c_thresh <= rho_thresh``.

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
        >>> batch = actor(TensorDict(observation=torch.randn(2, 5, 3), batch_size=[2, 5])).detach()
        >>> flag = torch.zeros(2, 5, 1, dtype=torch.bool)
        >>> batch["next"] = TensorDict(
        ...     observation=torch.randn(2, 5, 3), reward=torch.ones(2, 5, 1), done=flag, terminated=flag
        ... )
        >>> VTrace(actor_network=actor, value_network=critic)(batch)["advantage"].shape
        torch.Size([2, 5, 1])
    """

    needs_actor = True
    lmbda: float | Tensor
    actor_network: nn.Module

    def __init__(
        self,
        *,
        actor_network: nn.Module,
        gamma: float | Tensor = 0.99,
        lmbda: float | Tensor = 1.0,
        rho_thresh: float = 1.0,
        c_thresh: float = 1.0,
        value_network: nn.Module | None = None,
        differentiable: bool = False,
        shifted: bool = False,
        time_dim: int | None = None,
    ) -> None:
        check_thresholds(rho_thresh, c_thresh, type(self).__name__)
        super().__init__(
            gamma=gamma,
            value_network=value_network,
            differentiable=differentiable,
            shifted=shifted,
            time_dim=time_dim,
        )
        self._set_coefficient("lmbda", lmbda)
        self.rho_thresh, self.c_thresh = rho_thresh, c_thresh
        self._keys.update(actor_keys(actor_network))
        self.actor_network = actor_network
        self.derive_early()

    def _derive(self) -> Contract:
        super()._derive()
        actor = self.actor_network
        self._actor = ActorCall(actor)
        self._states = joint_states(
            type(self).__name__, actor, *([] if self.value_network is None else [self.value_network])
        )
        own = (
            *(
                input_key(key, self._states, "input of the actor")
                for key in self._actor.in_keys
                if key not in self._reads.in_keys
            ),
            *(Key(key, doc="action that was taken") for key in as_list(self._keys["action"])),
            *(
                Key(
                    key,
                    (),
                    "log-probability of the action at collection, nats",
                    remedy="Build the actor with return_log_prob=True, or name the key with"
                    " set_keys(sample_log_prob=...)",
                )
                for key in as_list(self._keys["sample_log_prob"])
            ),
        )
        return Contract((*self._reads.reads, *own), self._reads.writes)

    def formula(self, tensordict: TensorDictBase) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return V-trace with the probability ratios of this batch."""
        raw, size = self._reader.read_required(tensordict), tensordict.batch_size
        mask, _ = self._reader.step_masks(tensordict)
        entries = dict(zip(raw, replace_padding([*raw.values()], mask), strict=True))
        dist = self._actor(entries, size)
        log_pi = sum_log_probs(dist.log_prob(select_action(entries, self._keys["action"], size)))
        log_mu = sum_log_probs(select_action(entries, self._keys["sample_log_prob"], size))
        if log_pi.shape != tensordict.batch_size or log_mu.shape != tensordict.batch_size:
            raise ShapeError(
                f"{type(self).__name__} got log-probabilities of shape {tuple(log_pi.shape)} from the actor and"
                f" {self._keys['sample_log_prob']!r} {tuple(log_mu.shape)} from a batch of shape"
                f" {tuple(tensordict.batch_size)}; expected the shape of the batch; a distribution with one"
                " log-probability for each dimension needs torch.distributions.Independent"
            )
        return partial(self.off_policy, log_pi.unsqueeze(-1), log_mu.unsqueeze(-1))

    def off_policy(
        self,
        log_pi: Tensor,
        log_mu: Tensor,
        value: Tensor,
        next_value: Tensor,
        reward: Tensor,
        done: Tensor,
        terminated: Tensor,
        time_dim: int,
    ) -> tuple[Tensor, Tensor]:
        """Return the advantage and value target, ``[*B, T, F]`` as all arguments are, log-probabilities included."""
        return vtrace_advantage_estimate(
            self.gamma,
            log_pi,
            log_mu,
            value,
            next_value,
            reward,
            done,
            terminated,
            rho_thresh=self.rho_thresh,
            c_thresh=self.c_thresh,
            lmbda=self.lmbda,
            time_dim=time_dim,
        )

    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Return the advantage and value target of on-policy steps, ``[*B, T, F]`` as all arguments are."""
        same = torch.zeros_like(reward)
        return self.off_policy(same, same, value, next_value, reward, done, terminated, time_dim)


class ValueEstimators(Enum):
    """Names of the value estimators of this package, as ``rl plugins`` lists them.

    Example:
        >>> ValueEstimators.TDLambda.value
        'td-lambda'
    """

    TD0 = "td0"
    TD1 = "td1"
    TDLambda = "td-lambda"
    GAE = "gae"
    MAGAE = "multi-agent-gae"
    VTrace = "vtrace"


_OURS = {
    ValueEstimators.TD0: TD0Estimator,
    ValueEstimators.TD1: TD1Estimator,
    ValueEstimators.TDLambda: TDLambdaEstimator,
    ValueEstimators.GAE: GAE,
    ValueEstimators.MAGAE: MultiAgentGAE,
    ValueEstimators.VTrace: VTrace,
}


def estimator_class(kind: ValueEstimators | str) -> type[ValueEstimatorBase]:
    """Return the class of an estimator.

    Args:
        kind: Member of `ValueEstimators`, or the name of an installed component of kind ``estimator``.

    Raises:
        UnknownComponentError: If no estimator has that name.

    Example:
        >>> estimator_class("gae").__name__
        'GAE'
    """
    return _OURS[kind] if isinstance(kind, ValueEstimators) else load("estimator", kind)
