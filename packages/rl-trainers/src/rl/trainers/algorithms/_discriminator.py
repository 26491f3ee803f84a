"""Generative adversarial imitation: a discriminator of steps, and gradient steps on its rewards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.interfaces import Env
from rl.core.keys import ACTION, NEXT, OBSERVATION, REWARD, NestedKey
from rl.core.specs import Bounded, Categorical
from rl.modules import MLP
from rl.objectives import ClipPPOLoss, GAILLoss
from rl.objectives.value import GAE
from rl.trainers._checks import check_dataset_named, check_rows
from rl.trainers._device import float_outputs
from rl.trainers.actions import is_choice
from rl.trainers.actors import vector_of
from rl.trainers.datasets import check_entries, open_dataset
from rl.trainers.loops.updater import MinibatchUpdater, adam
from rl.trainers.networks import action_of, described


class _Steps:
    """Steps as the discriminator reads them: the observation, and the action in [-1, 1] or one-hot; floats.

    Args:
        config: Settings.
        env: Environment, whose specs decide how.

    Raises:
        SpecError: If the observation is no vector, or the action neither bounded floats nor one choice.
    """

    def __init__(self, config: Any, env: Env) -> None:
        self.observation, self._seen = vector_of(config, env)
        self.action, spec = action_of(env)
        self._spec: Any = spec
        bounded = type(spec) is Bounded and spec.dtype.is_floating_point and len(spec.shape) == 1
        if not (bounded or is_choice(spec)):
            raise SpecError(f"gail trains one choice and vectors of bounded floats, not {described(spec)}")
        self.width = self._seen + (spec.shape[0] if bounded else int(self._spec.n))

    def __call__(self, batch: TensorDictBase) -> TensorDict:
        """``observation`` and ``action``, ``[*B, ...]`` float32."""
        spec, action = self._spec, batch.get(self.action)
        if type(spec) is Bounded:
            action = 2 * (action - spec.low) / (spec.high - spec.low) - 1  # [-1, 1], on the scale of observations
        elif type(spec) is Categorical:
            action = nn.functional.one_hot(action.long(), int(self._spec.n))
        entries = {OBSERVATION: batch.get(self.observation).float(), ACTION: action.float()}
        return TensorDict(dict[Any, Any](entries), batch_size=batch.batch_size)


class _Joined(nn.Module):
    """A network on observation and action."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.net(torch.cat((observation, action), -1))


class GAILUpdater(MinibatchUpdater):
    """PPO on the rewards of a discriminator, which is trained on each batch before.

    Args:
        config: Settings.
        env: Environment, which decides what the discriminator reads.
        actor: The policy.
        critic: Critic of the discriminator's rewards.
    """

    def __init__(self, config: Any, env: Env, actor: Any, critic: Any) -> None:
        check_dataset_named("gail", config.dataset)
        super().__init__(
            config,
            partial(ClipPPOLoss, actor, critic, **config.loss_settings),
            GAE(gamma=config.gamma, lmbda=config.lmbda, value_network=critic),
        )
        self._steps = steps = _Steps(config, env)
        net = MLP(steps.width, 1, num_cells=list(config.discriminator_num_cells), activation_class=nn.Tanh)
        network = TensorDictModule(_Joined(net), [OBSERVATION, ACTION], ["d_logits"]).to(config.device)
        self._imitation = GAILLoss(network, use_grad_penalty=config.gp_lambda > 0, gp_lambda=config.gp_lambda)
        float_outputs(config, network)
        self._discriminator_optimizer = adam(network.parameters(), config.discriminator_learning_rate)
        self._experts = open_dataset(config.dataset, env, config.discriminator_batch_size, config.env)
        check_entries("gail", config.dataset, self._experts[0], [steps.observation, steps.action])
        check_rows(self._experts[:].select(steps.observation, steps.action), config.dataset)
        self._of_returns, self.estimate = self.estimate, self._estimate_advantages
        self._imitation_metrics: dict[str, Tensor] = {}
        self.parts |= {"discriminator": network, "discriminator_optimizer": self._discriminator_optimizer}
        self.metrics = (*self.metrics, "loss_discriminator", "imitation_reward")

    def _estimate_advantages(self, batch: TensorDictBase) -> TensorDictBase:
        steps = self._steps(batch)
        with torch.enable_grad():
            loss = self._train_discriminator(steps.reshape(-1))
        reward = self._imitation.reward(steps)
        self._imitation_metrics = {"loss_discriminator": loss, "imitation_reward": reward.mean()}
        assert self._of_returns is not None
        return self._of_returns(batch.set((NEXT, REWARD), reward))

    def _train_discriminator(self, steps: TensorDictBase) -> Tensor:
        """Gradient steps of the discriminator on steps ``[n]`` of the policy; returns its mean loss."""
        seen: list[Tensor] = []
        count = self.config.discriminator_batch_size
        for _ in range(self.config.discriminator_updates):
            pairs = self._steps(self._experts.sample().to(self.config.device))
            # as many steps of the policy as of the expert, sampled with replacement
            mine = steps[torch.randint(len(steps), (count,)).to(self.config.device)]
            pairs.set("collector_observation", mine.get(OBSERVATION)).set("collector_action", mine.get(ACTION))
            loss = self.forward(self._imitation, pairs).get("loss")
            loss.backward()
            self._discriminator_optimizer.step()
            self._discriminator_optimizer.zero_grad()
            seen.append(loss.detach())
        return torch.stack(seen).mean()

    def diagnostics(self, rows: Mapping[NestedKey, Tensor]) -> dict[str, float]:
        """Also the loss of the discriminator, and the mean of its rewards."""
        return {**super().diagnostics(rows), **{name: float(one) for name, one in self._imitation_metrics.items()}}
