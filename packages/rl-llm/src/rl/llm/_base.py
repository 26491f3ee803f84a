"""The base class of the losses of language models: keys, contract, mask and weights of tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import same_shape
from rl.core.contract import Contract, Key, contract_of
from rl.core.errors import ContractError, UnknownNameError
from rl.core.keys import NestedKey, key_str, nearest, unwrap
from rl.core.profiling import profiled
from rl.llm import functional as f
from rl.llm._keys import ENTROPY, GROUP, LOG_PROBS, REMEDIES, SEQUENCE, TRAINED, WEIGHT
from rl.llm.rollouts import packed_from_nested


def per_token_key(name: NestedKey, doc: str, *, optional: bool = False, dtype: torch.dtype | None = None) -> Key:
    """Return the declaration of an entry ``[*B, T]``."""
    return Key(name, ("T",), doc, dtype=dtype, optional=optional, remedy=REMEDIES.get(name, ""))


def scalar(name: str, doc: str) -> Key:
    """Return the declaration of a scalar that a loss returns."""
    return Key(name, (), doc, batched=False)


class KeyedLoss(nn.Module, ABC):
    """Base of losses with a contract: the keys of `default_keys` can be named, outputs selected.

    Args:
        network: Network that the loss trains.
        role: Name of the network's argument.
        writes: Name of the key that the network has to write.

    Raises:
        ContractError: If the network does not write it.
    """

    default_keys: ClassVar[dict[str, NestedKey]]

    def __init__(self, network: nn.Module, role: str, writes: str) -> None:
        super().__init__()
        self._keys = dict(self.default_keys)
        self._selected: list[NestedKey] | None = None
        written, wanted = contract_of(network).out_keys, self._keys[writes]
        if wanted not in written:
            names = ", ".join(map(key_str, written))
            raise ContractError(
                f"{type(self).__name__}: {role} must write {key_str(wanted)}, it writes {names or 'nothing'}."
                f" Wrap it, or pass a network that writes the key"
            )
        setattr(self, role, network)

    @property
    @abstractmethod
    def contract(self) -> Contract:
        """Keys that are read and written."""

    @property
    def in_keys(self) -> list[NestedKey]:
        """Keys that must be in the batch, in order."""
        return self.contract.in_keys

    @property
    def out_keys(self) -> list[NestedKey]:
        return self.contract.out_keys if self._selected is None else list(self._selected)

    def select_out_keys(self, *out_keys: NestedKey) -> Self:
        """Return only some outputs; everything is computed as before.

        Args:
            out_keys: Keys of the outputs, among those of the contract.

        Returns:
            The loss itself.

        Raises:
            UnknownNameError: If the loss has no such output; nothing is changed then.
        """
        known, wanted = self.contract.out_keys, [*map(unwrap, out_keys)]
        wrong = [key_str(key) for key in wanted if key not in known]
        if wrong:
            there = ", ".join(map(key_str, known))
            raise UnknownNameError(f"{type(self).__name__} returns no {', '.join(wrong)}; it returns {there}")
        self._selected = wanted
        return self

    def reset_out_keys(self) -> Self:
        """Return all outputs again."""
        self._selected = None
        return self

    @property
    def tensor_keys(self) -> SimpleNamespace:
        """Key of each name that `set_keys` accepts, as attributes."""
        return SimpleNamespace(**self._keys)

    def set_keys(self, **names: Any) -> None:
        """Read and write other keys than the default ones.

        Args:
            names: Key for each name.

        Raises:
            UnknownNameError: If a name is unknown; nothing is changed then.
        """
        for name in names:
            if name not in self._keys:
                close = nearest(name, self._keys)
                hint = f"; did you mean {close!r}?" if close is not None else ""
                known = ", ".join(self._keys)
                raise UnknownNameError(f"{type(self).__name__} has no key {name!r}; it has {known}{hint}")
        self._keys = {**self._keys, **{name: unwrap(key) for name, key in names.items()}}

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch, in a named range of `torch.profiler`."""
        with profiled(type(self).__name__):
            out = super().__call__(tensordict)
        return out if self._selected is None else out.select(*self._selected)

    @abstractmethod
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch, ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes differ.
        """


class TokenLoss(KeyedLoss):
    """Base of losses on tokens: the sum over trained tokens of a loss and a weight.

    The loss holds the given policy, not a copy. Entries outside of the mask reach neither values nor gradients. The
    weights of tokens are those of `normalize`, and of the given batch if that was not called.

    Args:
        actor_network: Policy, such as a `TokenScorer`: reads tokens, writes their log-probabilities ``[*B, T]`` and
            optionally entropies.
        normalizer: Weight of a token in the loss: "tokens", "sequence", "constant" or "prompt"; see
            `rl.llm.functional.token_weights`.
        max_tokens: Largest number of tokens of a response, for "constant".

    Raises:
        ArgumentError: If the normalizer is unknown or lacks its argument.
        ContractError: If the policy does not write log-probabilities.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "log_prob": LOG_PROBS,
        "entropy": ENTROPY,
        "mask": TRAINED,
        "sequence": SEQUENCE,
        "group": GROUP,
        "weight": WEIGHT,
    }

    actor_network: nn.Module

    def __init__(self, actor_network: nn.Module, *, normalizer: str, max_tokens: float | None = None) -> None:
        super().__init__(actor_network, "actor_network", "log_prob")
        probe = torch.ones(1, 1, dtype=torch.bool)
        f.token_weights(probe, normalizer, prompt=probe.long(), max_tokens=max_tokens)  # raises what does not fit
        self.normalizer, self.max_tokens = normalizer, max_tokens

    @property
    def _has_entropy(self) -> bool:
        return self._keys["entropy"] in contract_of(self.actor_network).out_keys

    @abstractmethod
    def _reads(self) -> tuple[Key, ...]:
        """Return what the loss reads in addition to the policy's inputs, the mask and the weights."""

    @abstractmethod
    def _writes(self) -> tuple[Key, ...]:
        """Return what the loss writes."""

    @property
    def contract(self) -> Contract:
        keys, own = self._keys, self._reads()
        reads = (
            *contract_of(self.actor_network).reads,
            per_token_key(keys["mask"], "true for tokens that are trained", dtype=torch.bool),
            *own,
            per_token_key(keys["weight"], "weight of a token in the step, of normalize", optional=True),
        )
        if "sequence" in keys:
            reads += (
                per_token_key(keys["sequence"], "number of the sequence of a token in packed rows", optional=True),
            )
        if self.normalizer == "prompt":
            reads += (Key(keys["group"], doc="number of the prompt, [*B, 1] or [*B, T, 1]"),)
        unique = {key.name: key for key in reversed(reads)}  # of the loss and of the policy
        return Contract(tuple(reversed(unique.values())), self._writes())

    def normalize(self, step: TensorDictBase) -> TensorDictBase:
        """Return a shallow copy of the batch of an optimizer step with the weight of each token.

        Slices of it are micro-batches: their losses and gradients are summed, and are those of the entire step.

        Args:
            step: Batch of the step, ``[*B]``.

        Example:
            >>> from rl.llm import SFTLoss, TokenScorer
            >>> step = TensorDict({"masks": {"all_assistant_mask": torch.ones(2, 2, dtype=torch.bool)}}, batch_size=[2])
            >>> loss = SFTLoss(TokenScorer(torch.nn.Embedding(5, 5)))
            >>> loss.normalize(step)["token_weight"].tolist()
            [[0.25, 0.25], [0.25, 0.25]]
        """
        row = packed_from_nested(step)
        weights = self._weights_of_step(row, self._mask(row))
        if row is not step:  # jagged as the mask
            offsets = step[self._keys["mask"]].offsets()
            weights = torch.nested.nested_tensor_from_jagged(weights.squeeze(0), offsets)
        return step.copy().set(self._keys["weight"], weights)

    def _mask(self, td: TensorDictBase) -> Tensor:
        mask: Any = td.get(self._keys["mask"], None)
        if mask is None:
            self.contract.refuse(td, self._keys["mask"], self)
        return mask

    def _optional(self, td: TensorDictBase, name: str) -> Tensor | None:
        """Return the entry of a key by name; None if the loss has no such key, or the batch no entry."""
        return td.get(self._keys[name], None) if name in self._keys else None

    def _weights_of_step(self, td: TensorDictBase, mask: Tensor) -> Tensor:
        prompt = None
        if self.normalizer == "prompt":
            group: Any = td.get(self._keys["group"], None)
            if group is None:
                self.contract.refuse(td, self._keys["group"], self)
            prompt = f.per_token(group, mask, "group")
        index = self._optional(td, "sequence")
        return f.token_weights(mask, self.normalizer, index=index, prompt=prompt, max_tokens=self.max_tokens)

    def read(self, tensordict: TensorDictBase) -> TokenBatch:
        """Read the batch, and compute log-probabilities and entropies of its tokens with the policy.

        Args:
            tensordict: Batch, ``[*B]``; one with jagged entries is packed first.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes differ.
        """
        contract, tensordict = self.contract, packed_from_nested(tensordict)
        values = contract.read(tensordict, self)
        entries = dict(zip(contract.in_keys, values, strict=True))
        mask = entries[self._keys["mask"]]
        index, weights = self._optional(tensordict, "sequence"), self._optional(tensordict, "weight")
        if weights is None:
            weights = self._weights_of_step(tensordict, mask)
        inputs = [key.name for key in contract_of(self.actor_network).reads]
        scored = self.actor_network(tensordict.select(*inputs, strict=False))
        log_prob = scored.get(self._keys["log_prob"])
        same_shape(mask=mask, log_prob=log_prob, token_weight=weights)
        entropy: Any = scored.get(self._keys["entropy"], None) if self._has_entropy else None
        return TokenBatch(entries, f.Sequences(mask, index), weights, log_prob, entropy)

    def _written(self, values: dict[str, Tensor]) -> TensorDict:
        """Return the values; diagnostics are detached."""
        return TensorDict({key: value if key.startswith("loss") else value.detach() for key, value in values.items()})


class TokenBatch:
    """Tokens of a batch as a loss reads them; entries outside of the mask are 0.

    Args:
        entries: Entries by key.
        sequences: Sequences of trained tokens.
        weights: Weight of each token in the loss, ``[*B, T]``.
        log_prob: Log-probability under the policy, ``[*B, T]``.
        entropy: Entropy of the policy, ``[*B, T]``; None if the policy does not write it.
    """

    def __init__(
        self,
        entries: dict[NestedKey, Tensor],
        sequences: f.Sequences,
        weights: Tensor,
        log_prob: Tensor,
        entropy: Tensor | None,
    ) -> None:
        self._entries, self.sequences, self.mask = entries, sequences, sequences.mask
        # Half precision in, single precision in every sum.
        self.log_prob = self.masked(log_prob)
        self.entropy = None if entropy is None else self.masked(entropy)
        self.weights = weights.to(self.log_prob.dtype)

    def masked(self, values: Tensor) -> Tensor:
        """Return values with 0 outside of the mask, at least in single precision."""
        same_shape(mask=self.mask, values=values)
        values = values if values.dtype in (torch.float32, torch.float64) else values.float()
        return values.where(self.mask, 0)

    def constant(self, key: NestedKey) -> Tensor:
        """Return an entry ``[*B, T]`` without gradient, 0 outside of the mask."""
        return self.masked(self._entries[key].detach())

    def expanded(self, key: NestedKey) -> Tensor:
        """Return an entry ``[*B, 1]`` or ``[*B, T, 1]`` for each token, without gradient."""
        return self.masked(f.per_token(self._entries[key].detach(), self.mask, key_str(key)))

    def reduce(self, values: Tensor) -> Tensor:
        """Return the weighted sum over trained tokens, a scalar."""
        return (values.where(self.mask, 0) * self.weights).sum()

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over trained tokens, without gradient."""
        values = values.detach().to(self.log_prob.dtype).where(self.mask, 0)
        return values.sum() / self.mask.sum().clamp(min=1)

    def extreme(self, values: Tensor, *, largest: bool = True) -> Tensor:
        """Return the largest or smallest value of a trained token, without gradient; 0 without any."""
        sign = 1 if largest else -1
        found = (sign * values.detach()).masked_fill(~self.mask, -float("inf")).amax()
        return sign * found.where(found > -float("inf"), 0)
