"""Acting with a decision transformer."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.contract import Contract, Key
from rl.core.errors import ContractError
from rl.core.keys import ACTION, OBSERVATION, NestedKey, key_str, next_key, unwrap
from rl.core.recurrent import State
from rl.core.specs import TensorSpec
from rl.modules import _foreign
from rl.modules._keys import key_list
from rl.modules.imitation._decision_transformer import DecisionTransformer
from rl.modules.policy._fit import action_leaf, spec_by_key

__all__ = ["DecisionTransformerInferenceWrapper"]

_GROUP = "context"
_ROLES = ("observation", "action", "return_to_go")


@_foreign.dt_inference
class DecisionTransformerInferenceWrapper(TensorDictModuleBase):
    """Act with a policy on a decision transformer, from the last `inference_context` steps.

    Chen et al., "Decision transformer: reinforcement learning via sequence modeling", 2021, algorithm 1. The steps so
    far are recurrent states: a `Collector` initializes and passes them on.

    Reads ``observation`` ``[*B, state_dim]``, ``return_to_go`` ``[*B, 1]``, which is the target return minus the
    rewards of the episode so far (such as ``target - episode_reward``, of the transform `RewardSum`), and the states
    ``("context", "observation")``, ``("context", "action")``, ``("context", "return_to_go")`` ``[*B, K, ...]`` and
    ``("context", "steps")`` int64 ``[*B, 1]``; writes ``action`` ``[*B, action_dim]``, and the states under ``next``.

    A batch ``[*B]`` whose observations are sequences ``[*B, T, state_dim]`` is read without states: ``action``
    ``[*B, T, action_dim]`` has the action before each observation, ``return_to_go`` is ``[*B, T, 1]``. A copy of the
    batch is returned, with the action that follows the sequence, ``[*B, action_dim]``, and the last return-to-go.

    Args:
        policy: reads sequences of observations, actions and returns-to-go, writes actions ``[*B, T, action_dim]``;
            contains a `DecisionTransformer`.
        inference_context: K, the number of steps that the policy sees.
        spec: of the action; its dtype is that of the output.

    Raises:
        ContractError: if the policy contains no `DecisionTransformer`, or has other keys; in the call, if an entry is
            absent.
        SpecError: if `inference_context` is out of its range.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from rl.modules import DTActor
        >>> net = DTActor(3, 1, {"n_embd": 32, "n_inner": 64}).eval()
        >>> policy = TensorDictModule(net, ["observation", "action", "return_to_go"], ["action"])
        >>> actor = DecisionTransformerInferenceWrapper(policy, inference_context=4)
        >>> td = TensorDict(observation=torch.zeros(3), return_to_go=torch.ones(1))
        >>> for state in actor.states:
        ...     td[state.name] = state.start()
        >>> actor(td)["action"].shape, td["next", "context", "steps"]
        (torch.Size([1]), tensor([1]))
    """

    def __init__(
        self, policy: TensorDictModuleBase, *, inference_context: int = 5, spec: TensorSpec | None = None
    ) -> None:
        super().__init__()
        owner = "DecisionTransformerInferenceWrapper"
        net = next((part for part in policy.modules() if isinstance(part, DecisionTransformer)), None)
        if net is None:
            raise ContractError(f"{owner} acts with a policy that contains a DecisionTransformer, got {policy}")
        self.inference_context = as_integer(inference_context, owner, "inference_context", least=1)
        self.policy = policy
        self._leaf = action_leaf(spec, ACTION, owner)
        self.spec = spec_by_key(spec, ACTION)
        context = self.inference_context
        shapes = ((context, net.state_dim), (context, net.action_dim), (context, 1))
        windows = [State((_GROUP, role), shape, owner=owner) for role, shape in zip(_ROLES, shapes, strict=True)]
        self._states = (*windows, State((_GROUP, "steps"), (1,), torch.int64, 0.0, owner))
        self.set_tensor_keys(observation=OBSERVATION, action=ACTION, return_to_go="return_to_go")

    def set_tensor_keys(self, **keys: NestedKey) -> None:
        """Name the entries that are read and written.

        Args:
            keys: ``observation``, ``action`` (of sequences), ``return_to_go``, and ``out_action``, the action that the
                policy writes; ``action`` if left out.

        Raises:
            ContractError: if a name is unknown, or the policy does not write ``out_action``.
        """
        known = {*_ROLES, "out_action"}
        if unknown := sorted(keys.keys() - known):
            raise ContractError(
                f"{type(self).__name__} has no key {', '.join(unknown)}; it has {', '.join(sorted(known))}"
            )
        before: dict[str, NestedKey] = getattr(self, "_keys", {})
        self._keys = {**before, **{name: unwrap(key) for name, key in keys.items()}}
        self._out = self._keys.get("out_action", self._keys["action"])
        if self._out not in key_list(self.policy.out_keys):
            raise ContractError(
                f"{type(self).__name__} reads {key_str(self._out)} of the policy, which writes"
                f" {', '.join(map(key_str, key_list(self.policy.out_keys)))}: name it with"
                " set_tensor_keys(out_action=...)"
            )
        states = [state.name for state in self._states]
        self.in_keys = key_list([self._keys["observation"], self._keys["return_to_go"], *states])
        self.out_keys = key_list([self._out, *map(next_key, states)])

    @property
    def states(self) -> tuple[State, ...]:
        """The last steps, and their number."""
        return self._states

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        observation, action, _ = (state.shape[1:] for state in self._states[:3])
        remedy = "A Collector writes it; in a loop of your own write states of `actor.states` with start()."
        target = "The transform RewardSum writes episode_reward: it is the target return minus that."
        reads = [
            Key(self._keys["observation"], observation, "observation"),
            Key(self._keys["return_to_go"], (1,), "target return minus the rewards so far", remedy=target),
            *(Key(state.name, state.shape, "steps so far", state.dtype, remedy=remedy) for state in self._states),
        ]
        dtype = None if self._leaf is None else self._leaf.dtype
        after = [Key(next_key(state.name), state.shape, "steps so far", state.dtype) for state in self._states]
        return Contract(tuple(reads), (Key(self._out, action, "action", dtype), *after))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the action of this step and the states after it; or of sequences, see the class.

        Raises:
            ContractError: if an entry is absent.
        """
        observation = tensordict.get(self._keys["observation"], None)
        if observation is not None and observation.ndim == tensordict.ndim + 2:
            return self._after_sequence(tensordict)
        observation, return_to_go, *states = self.contract.read(tensordict, self)
        *windows, steps = states
        context = self.inference_context
        place, full = steps.clamp(max=context - 1), (steps >= context).unsqueeze(-1)
        blank = torch.zeros_like(windows[1][..., 0, :])
        windows = [
            _put(torch.where(full, window.roll(-1, -2), window), place, entry.to(window.dtype))
            for window, entry in zip(windows, (observation, blank, return_to_go), strict=True)
        ]
        action = self._act(windows).gather(-2, place.unsqueeze(-1).expand(blank.unsqueeze(-2).shape)).squeeze(-2)
        windows[1] = _put(windows[1], place, action.to(blank.dtype))
        for state, value in zip(self._states, (*windows, (steps + 1).clamp(max=context)), strict=True):
            tensordict.set(next_key(state.name), value)
        return tensordict.set(self._out, self._cast(action))

    def _after_sequence(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The action that follows sequences of steps, in a copy of the batch."""
        context = self.inference_context
        observation, action, return_to_go = (tensordict.get(self._keys[role])[..., -context:, :] for role in _ROLES)
        action = torch.cat((action[..., 1:, :], torch.zeros_like(action[..., :1, :])), -2)
        found = self._act([observation, action, return_to_go])[..., -1, :]
        out = tensordict.copy().set(self._keys["return_to_go"], return_to_go[..., -1, :])
        return out.set(self._out, self._cast(found))

    def _act(self, windows: list[Tensor]) -> Tensor:
        """Actions of the policy for each step of sequences ``[*B, T, ...]``."""
        entries: dict[Any, Any] = {self._keys[role]: window for role, window in zip(_ROLES, windows, strict=True)}
        td = TensorDict({}, batch_size=windows[0].shape[:-1])
        for key, window in entries.items():
            td.set(key, window)
        return self.policy(td).get(self._out)

    def _cast(self, action: Tensor) -> Tensor:
        return action if self._leaf is None else action.to(self._leaf.dtype)


def _put(window: Tensor, place: Tensor, entry: Tensor) -> Tensor:
    """`window` ``[*B, K, D]`` with the entry ``[*B, D]`` at the `place` ``[*B, 1]``."""
    entry = entry.unsqueeze(-2)
    return window.scatter(-2, place.unsqueeze(-1).expand(entry.shape), entry)
