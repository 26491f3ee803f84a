"""`Hash`: a number of fixed length for each value of an entry."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import NonTensorStack
from torch import Tensor

from rl.core.errors import ContractError, SpecError
from rl.core.keys import NestedKey
from rl.core.specs import NonTensor, TensorSpec, Unbounded
from rl.envs import _foreign
from rl.envs.transforms._base import Transform

__all__ = ["Hash"]


@_foreign.hashed
class Hash(Transform):
    """Writes the hash of each value: of texts, or of tensors, one for each element of the batch.

    For the inverse keys, the environment gets the value of a hash that was computed before: of those in `repertoire`.

    Args:
        in_keys: Keys of the values.
        out_keys: Keys of the hashes, ``[*B, 32]`` of uint8 by default.
        in_keys_inv: Keys of the environment's input, which get the values.
        out_keys_inv: Keys of the caller, which have the hashes; `in_keys_inv` if None.
        hash_fn: Function from a text or a tensor, and `seed` if there is one, to a tensor; `reproducible_hash` if None.
        seed: Second argument of `hash_fn`.
        repertoire: Values by hash, written with each new value and shared with the caller; a new dictionary where
            there are inverse keys, otherwise none is kept, if None.

    Raises:
        SpecError: if `hash_fn` does not return a tensor.
        ContractError: if the inverse finds a hash without a value.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv([2]), Hash(["observation"], ["hash"]))
        >>> env.reset()["hash"].shape
        torch.Size([2, 32])
    """

    leafwise = False

    def __init__(
        self,
        in_keys: Iterable[NestedKey],
        out_keys: Iterable[NestedKey],
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        hash_fn: Callable[..., Tensor] | None = None,
        seed: Any = None,
        repertoire: dict[Any, Any] | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv or (), out_keys_inv)
        self.hash_fn, self.seed = hash_fn or self.reproducible_hash, seed
        self.repertoire = {} if repertoire is None and self.in_keys_inv else repertoire

    @staticmethod
    def reproducible_hash(value: Any, seed: str | None = None) -> Tensor:
        """Return the SHA-256 digest of a text, of None as of ``""``, or of the bytes of a tensor, uint8 ``[32]``.

        Args:
            value: Text, tensor or None.
            seed: Text before the value.
        """
        if isinstance(value, Tensor):
            data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        else:
            data = ("" if value is None else str(value)).encode()
        digest = hashlib.sha256((seed or "").encode() + data).digest()
        return torch.frombuffer(bytearray(digest), dtype=torch.uint8)

    def get_input_from_hash(self, hash_tensor: Tensor) -> Any:
        """Return the value whose hash was computed before.

        Raises:
            ContractError: if there is none.
        """
        name = _name(hash_tensor.tolist())
        if self.repertoire is None or name not in self.repertoire:
            raise ContractError(
                f"{self!r} knows no value of the hash {hash_tensor.tolist()}: hash it before, with in_keys_inv or"
                " repertoire="
            )
        return self.repertoire[name]

    def _digest(self, value: Any) -> Tensor:
        out = self.hash_fn(value) if self.seed is None else self.hash_fn(value, self.seed)
        if not isinstance(out, Tensor):
            raise SpecError(f"{self!r}: hash_fn must return a tensor, got {type(out).__name__}")
        return out

    def _hash(self, value: Any) -> Tensor:
        out = self._digest(value)
        if self.repertoire is not None:  # a copy: a tensor here is a part of the batch, which may be written
            self.repertoire[_name(out.tolist())] = value.clone() if isinstance(value, Tensor) else value
        return out

    def _call(self, entries: Any) -> Any:
        size = entries.batch_size
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = entries.get(key, None)
            if value is not None:
                hashes = torch.stack([self._hash(one) for one in _elements(value, len(size))])
                hashes = hashes.reshape(*size, *hashes.shape[1:])
                entries[out] = hashes.to(value.device) if isinstance(value, Tensor) else hashes
        return entries

    def _inv(self, root: Any) -> Any:
        size = root.batch_size
        for key, out in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            hashes = root.get(out, None)
            if hashes is None:
                continue
            values = [self.get_input_from_hash(one) for one in _elements(hashes, len(size))]
            if isinstance(values[0], Tensor):
                root[key] = torch.stack(values).reshape(*size, *values[0].shape)
            else:
                root[key] = NonTensorStack(*values).reshape(size) if size else values[0]
        return root

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        out = self._digest("" if isinstance(spec, NonTensor) else spec.zero())
        return Unbounded(out.shape, dtype=out.dtype, device=spec.device)


def _elements(value: Any, batch_dims: int) -> list[Any]:
    """The value of each element of the batch."""
    if isinstance(value, Tensor):
        return list(value.flatten(0, batch_dims - 1)) if batch_dims else [value]
    values = value.tolist() if hasattr(value, "tolist") else value
    for _ in range(batch_dims - 1):
        values = [one for row in values for one in row]
    return values if batch_dims else [values]


def _name(numbers: Any) -> Any:
    """A hash as key of a dictionary: a number, or nested tuples of numbers."""
    return tuple(map(_name, numbers)) if isinstance(numbers, list) else numbers
