"""Decision transformer: a causal transformer over returns-to-go, states and actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_integer, as_number, module_arguments, one_of
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ContractError, ShapeError, UnknownNameError
from rl.core.keys import ACTION, OBSERVATION, NestedKey, key_str, next_key, unwrap
from rl.core.recurrent import State
from rl.core.specs import TensorSpec
from rl.modules._keys import key_list
from rl.modules.policy._fit import action_leaf, spec_by_key

_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh}

#: tokens of a step: return-to-go, state, action
TOKENS = 3


@dataclass
class DTConfig:
    """Sizes of a `DecisionTransformer`.

    Args:
        n_embd: Width of a token, a multiple of `n_head`.
        n_layer: Number of layers.
        n_head: Number of heads of the attention.
        n_inner: Width of the hidden layer between two attentions.
        activation: Activation of that layer, ``"relu"``, ``"gelu"``, ``"silu"`` or ``"tanh"``.
        n_positions: Largest number of tokens; a step has three.
        resid_pdrop: Dropout of the output of each attention and each hidden layer, in [0, 1).
        attn_pdrop: Dropout of the weights of the attention, in [0, 1).

    Raises:
        ArgumentError: if a value is out of its range.

    Example:
        >>> DTConfig(n_embd=128).n_layer
        4
    """

    n_embd: int = 256
    n_layer: int = 4
    n_head: int = 4
    n_inner: int = 1024
    activation: str = "relu"
    n_positions: int = 1024
    resid_pdrop: float = 0.1
    attn_pdrop: float = 0.1

    def __post_init__(self) -> None:
        for name in ("n_embd", "n_layer", "n_head", "n_inner", "n_positions"):
            as_integer(getattr(self, name), "DTConfig", name, least=1)
        if self.n_embd % self.n_head:
            raise ArgumentError(f"DTConfig got n_embd={self.n_embd}, which n_head={self.n_head} does not divide")
        one_of(self.activation, "DTConfig", "activation", _ACTIVATIONS)
        for name in ("resid_pdrop", "attn_pdrop"):
            as_number(getattr(self, name), "DTConfig", name, least=0, below=1)


class DecisionTransformer(nn.Module):
    """Causal transformer over the tokens (return-to-go, state, action) of successive steps.

    Chen et al., "Decision transformer: reinforcement learning via sequence modeling", 2021, algorithm 1, with the
    positions of GPT-2: the output at a step depends on the returns-to-go and states up to that step, and on the actions
    before it. Positions count from the first step of the sequence.

    Args:
        state_dim: Width of an observation.
        action_dim: Width of an action.
        config: `DTConfig`, or a mapping of its fields; `default_config` if None.
        device: Device of the parameters.

    Shapes: observation ``[*B, T, state_dim]``, action ``[*B, T, action_dim]`` and return-to-go ``[*B, T, 1]`` to
    features ``[*B, T, n_embd]``.

    Raises:
        ArgumentError: if an argument is out of its range.
        ShapeError: in the call, if shapes do not agree, or there are more than ``n_positions // 3`` steps.

    Example:
        >>> net = DecisionTransformer(4, 2, DecisionTransformer.DTConfig(n_embd=32, n_inner=64))
        >>> net(torch.randn(3, 10, 4), torch.randn(3, 10, 2), torch.randn(3, 10, 1)).shape
        torch.Size([3, 10, 32])
    """

    DTConfig = DTConfig

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.state_dim = as_integer(state_dim, owner, "state_dim", least=1)
        self.action_dim = as_integer(action_dim, owner, "action_dim", least=1)
        self.config = config = _as_config(config, self.default_config(), owner)
        width = config.n_embd
        self.embed_return = nn.Linear(1, width, device=device)
        self.embed_state = nn.Linear(state_dim, width, device=device)
        self.embed_action = nn.Linear(action_dim, width, device=device)
        self.embed_ln = nn.LayerNorm(width, device=device)
        self.positions = nn.Parameter(torch.empty(config.n_positions, width, device=device))
        self.blocks = nn.ModuleList(_Block(config, device) for _ in range(config.n_layer))
        self.last_ln = nn.LayerNorm(width, device=device)
        nn.init.normal_(self.positions, std=0.02)
        for part in self.blocks.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)

    @classmethod
    def default_config(cls) -> DTConfig:
        """Return the default sizes."""
        return DTConfig()

    def forward(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> Tensor:
        """Features of each step, from the tokens up to its state.

        Raises:
            ShapeError: see the class.
        """
        self._check(observation, action, return_to_go)
        *batch, steps, _ = observation.shape
        parts = self.embed_return(return_to_go), self.embed_state(observation), self.embed_action(action)
        tokens = torch.stack(parts, -2).reshape(-1, TOKENS * steps, self.config.n_embd)
        x = self.embed_ln(tokens) + self.positions[: TOKENS * steps]
        for block in self.blocks:
            x = block(x)
        return self.last_ln(x).reshape(*batch, steps, TOKENS, -1).select(-2, 1)

    def _check(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> None:
        before = observation.shape[:-1]
        expected = {
            "observation": (observation, (*before, self.state_dim)),
            "action": (action, (*before, self.action_dim)),
            "return_to_go": (return_to_go, (*before, 1)),
        }
        for name, (value, shape) in expected.items():
            if tuple(value.shape) != shape or value.ndim < 2:
                wanted = [*map(str, before), shape[-1]] if value.ndim > 1 else ["*B", "T", shape[-1]]
                raise ShapeError(
                    f"{type(self).__name__} got {name} {list(value.shape)}, expected [{', '.join(map(str, wanted))}]:"
                    " sequences, time before the last dimension"
                )
        if TOKENS * before[-1] > self.config.n_positions:
            raise ShapeError(
                f"{type(self).__name__} got {before[-1]} steps, which are {TOKENS * before[-1]} tokens, and has"
                f" n_positions={self.config.n_positions}: pass shorter sequences"
            )


class _Block(nn.Module):
    """Attention and a hidden layer, each after a normalization and added to its input, as in GPT-2."""

    def __init__(self, config: DTConfig, device: Any) -> None:
        super().__init__()
        width = config.n_embd
        self.config, self.activation = config, _ACTIVATIONS[config.activation]
        self.attention_ln, self.hidden_ln = nn.LayerNorm(width, device=device), nn.LayerNorm(width, device=device)
        self.query_key_value = nn.Linear(width, 3 * width, device=device)
        self.attended = nn.Linear(width, width, device=device)
        self.hidden = nn.Linear(width, config.n_inner, device=device)
        self.out = nn.Linear(config.n_inner, width, device=device)
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attended(self._attend(self.attention_ln(x))))
        return x + self.dropout(self.out(self.activation(self.hidden(self.hidden_ln(x)))))

    def _attend(self, x: Tensor) -> Tensor:
        """Causal attention of tokens ``[N, L, width]``."""
        parts = self.query_key_value(x).unflatten(-1, (3, self.config.n_head, -1)).permute(2, 0, 3, 1, 4)
        rate = self.config.attn_pdrop if self.training else 0.0
        query, key, value = parts.unbind(0)
        return (
            F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
            .transpose(1, 2)
            .flatten(-2)
        )


def _as_config(given: Any, default: DTConfig, owner: str) -> DTConfig:
    if given is None:
        return default
    if isinstance(given, DTConfig):
        return given
    try:
        return DTConfig(**given)
    except TypeError as error:
        raise ArgumentError(f"{owner} got config={given!r}; it is a DTConfig, or a mapping of its fields") from error


#: limits of the logarithm of a standard deviation
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class _DTNetwork(nn.Module):
    """A `DecisionTransformer` with linear outputs."""

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        transformer_config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__()
        config = self.default_config() if transformer_config is None else transformer_config
        self.transformer = DecisionTransformer(state_dim, action_dim, config, device)

    @classmethod
    def default_config(cls) -> DTConfig:
        """Return the default sizes of the transformer."""
        return DTConfig(n_embd=512, n_inner=2048)

    def _output(self, device: Any) -> nn.Linear:
        layer = nn.Linear(self.transformer.config.n_embd, self.transformer.action_dim, device=device)
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer


class DTActor(_DTNetwork):
    """Network of the deterministic policy of a decision transformer.

    Chen et al., "Decision transformer: reinforcement learning via sequence modeling", 2021. The output is not bounded:
    use it as the parameter of a `TanhDelta`. `DecisionTransformerInferenceWrapper` acts with it step by step.

    Args:
        state_dim: Width of an observation.
        action_dim: Width of an action.
        transformer_config: `DecisionTransformer.DTConfig`, or a mapping of its fields; `default_config` if None.
        device: Device of the parameters.

    Shapes: observation ``[*B, T, state_dim]``, action ``[*B, T, action_dim]`` and return-to-go ``[*B, T, 1]`` to
    actions ``[*B, T, action_dim]``, each computed without the actions from its own step on.

    Raises:
        ArgumentError: if an argument is out of its range.
        ShapeError: in the call, as for `DecisionTransformer`.

    Example:
        >>> net = DTActor(4, 2, {"n_embd": 32, "n_inner": 64})
        >>> net(torch.randn(3, 10, 4), torch.randn(3, 10, 2), torch.randn(3, 10, 1)).shape
        torch.Size([3, 10, 2])
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        transformer_config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(state_dim, action_dim, transformer_config, device)
        self.action_layer = self._output(device)

    def forward(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> Tensor:
        """Actions ``[*B, T, action_dim]``."""
        return self.action_layer(self.transformer(observation, action, return_to_go))


class OnlineDTActor(_DTNetwork):
    """Network of the stochastic policy of an online decision transformer: means and standard deviations.

    Zheng et al., "Online decision transformer", 2022, eq. 2. The logarithm of the standard deviation is squashed into
    [-5, 2]. Use it with `TanhNormal`; `DecisionTransformerInferenceWrapper` acts with it step by step.

    Args:
        state_dim: Width of an observation.
        action_dim: Width of an action.
        transformer_config: `DecisionTransformer.DTConfig`, or a mapping of its fields; `default_config` if None.
        device: Device of the parameters.

    Shapes: observation ``[*B, T, state_dim]``, action ``[*B, T, action_dim]`` and return-to-go ``[*B, T, 1]`` to means
    and standard deviations ``[*B, T, action_dim]``.

    Raises:
        ArgumentError: if an argument is out of its range.
        ShapeError: in the call, as for `DecisionTransformer`.

    Example:
        >>> net = OnlineDTActor(4, 2, {"n_embd": 32, "n_inner": 64})
        >>> loc, scale = net(torch.randn(3, 10, 4), torch.randn(3, 10, 2), torch.randn(3, 10, 1))
        >>> scale.shape, bool((scale > 0).all())
        (torch.Size([3, 10, 2]), True)
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        transformer_config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__(state_dim, action_dim, transformer_config, device)
        self.action_layer_mean, self.action_layer_logstd = self._output(device), self._output(device)

    def forward(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations, each ``[*B, T, action_dim]``."""
        features = self.transformer(observation, action, return_to_go)
        share = (self.action_layer_logstd(features).tanh() + 1) / 2
        return self.action_layer_mean(features), (LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) * share).exp()


_GROUP = "context"
_ROLES = ("observation", "action", "return_to_go")


@module_arguments()
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
        policy: Module that reads sequences of observations, actions and returns-to-go, writes actions ``[*B, T,
            action_dim]``; contains a `DecisionTransformer`.
        inference_context: K, the number of steps that the policy sees.
        spec: Spec of the action; its dtype is that of the output.

    Raises:
        ArgumentError: if the policy contains no `DecisionTransformer`.
        ContractError: if the policy has other keys; in the call, if an entry is absent.
        ArgumentError: if `inference_context` is out of its range.

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
            raise ArgumentError(f"{owner} acts with a policy that contains a DecisionTransformer, got {policy}")
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
            raise UnknownNameError(
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
        """Compute the action that follows sequences of steps, in a copy of the batch."""
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
