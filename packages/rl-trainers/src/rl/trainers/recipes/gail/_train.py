"""The recipe ``gail``: generative adversarial imitation with PPO, in the loop of `on_policy`."""

from __future__ import annotations

from collections.abc import Mapping
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
from rl.objectives import GAILLoss
from rl.trainers._build.dataset import open_dataset
from rl.trainers._build.device import float_outputs, mixed_precision
from rl.trainers._build.legal_actions import is_choice
from rl.trainers._build.networks import action_of, described
from rl.trainers._build.optimizer import adam
from rl.trainers._run.finite import check_rows
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.gail._config import GAIL, GAILConfig
from rl.trainers.recipes.offline._networks import vector_of
from rl.trainers.recipes.offline._windows import check_entries
from rl.trainers.recipes.on_policy._networks import on_policy_actor
from rl.trainers.recipes.on_policy._train import train_on_policy
from rl.trainers.recipes.ppo._train import METRICS, PPOLearner

__all__ = ["GAILLearner", "gail_policy", "train_gail"]


def train_gail(config: GAILConfig, **options: Any) -> TrainResult:
    """Train a policy whose steps a discriminator takes for those of an expert.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_ppo`.

    Raises:
        SpecError: if there is no data set, or it does not fit the environment.
    """
    if not config.dataset:
        raise SpecError("gail learns from an expert: give --dataset SOURCE:NAME, such as minari:NAME")
    return train_on_policy(GAIL, config, GAILLearner, **options)


gail_policy = on_policy_actor


class _Steps:
    """Steps as the discriminator reads them: the observation, and the action in [-1, 1] or one-hot; floats.

    Args:
        config: settings.
        env: its specs decide how.

    Raises:
        SpecError: if the observation is no vector, or the action neither bounded floats nor one choice.
    """

    def __init__(self, config: GAILConfig, env: Env) -> None:
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
            action = 2 * (action - spec.low) / (spec.high - spec.low) - 1
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


class GAILLearner(PPOLearner):
    """PPO on the rewards of a discriminator, which is trained on each batch before.

    Args:
        config: settings.
        env: decides what the discriminator reads.
        actor: the policy.
        critic: of the discriminator's rewards.
    """

    def __init__(self, config: GAILConfig, env: Env, actor: Any, critic: Any) -> None:
        super().__init__(config, env, actor, critic)
        self._gail = config
        self._steps = steps = _Steps(config, env)
        net = MLP(steps.width, 1, num_cells=list(config.discriminator_hidden), activation_class=nn.Tanh)
        network = TensorDictModule(_Joined(net), [OBSERVATION, ACTION], ["d_logits"]).to(config.device)
        self._imitation = GAILLoss(network, use_grad_penalty=config.gp_lambda > 0, gp_lambda=config.gp_lambda)
        float_outputs(config, network)
        self._discriminator_optimizer = adam(network.parameters(), config.discriminator_learning_rate)
        self._experts = open_dataset(config.dataset, env, config.discriminator_minibatch_size, config.env)
        check_entries("gail", config.dataset, self._experts[0], [steps.observation, steps.action])
        check_rows(self._experts[:].select(steps.observation, steps.action), config.dataset)
        self._of_returns, self.estimate = self.estimate, self._estimated
        self._figures_of_gail: dict[str, Tensor] = {}
        self.parts |= {"discriminator": network, "discriminator_optimizer": self._discriminator_optimizer}
        self.metrics = (*METRICS, "loss_discriminator", "imitation_reward")

    def _estimated(self, batch: TensorDictBase) -> TensorDictBase:
        steps = self._steps(batch)
        with torch.enable_grad():
            loss = self._train_discriminator(steps.reshape(-1))
        reward = self._imitation.reward(steps)
        self._figures_of_gail = {"loss_discriminator": loss, "imitation_reward": reward.mean()}
        assert self._of_returns is not None
        return self._of_returns(batch.set((NEXT, REWARD), reward))

    def _train_discriminator(self, steps: TensorDictBase) -> Tensor:
        """Gradient steps of the discriminator on steps ``[n]`` of the policy; returns its mean loss."""
        seen: list[Tensor] = []
        count = self._gail.discriminator_minibatch_size
        for _ in range(self._gail.discriminator_updates):
            pairs = self._steps(self._experts.sample().to(self._gail.device))
            mine = steps[torch.randint(len(steps), (count,)).to(self._gail.device)]
            pairs.set("collector_observation", mine.get(OBSERVATION)).set("collector_action", mine.get(ACTION))
            with mixed_precision(self._gail):
                loss = self._imitation(pairs).get("loss")
            loss.backward()
            self._discriminator_optimizer.step()
            self._discriminator_optimizer.zero_grad()
            seen.append(loss.detach())
        return torch.stack(seen).mean()

    def _diagnostics(self, rows: Mapping[NestedKey, Tensor]) -> dict[str, float]:
        return {**super()._diagnostics(rows), **{name: float(one) for name, one in self._figures_of_gail.items()}}
