"""The state of a simulator in JAX as two arrays: its floats, and the bytes of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl.envs._libraries import import_library

__all__ = ["Packing"]


class Packing:
    """Joins the leaves of a PyTree into ``[floats]`` float32 and ``[bytes]`` uint8, and takes them apart again.

    Two arrays cross between JAX and torch at less cost than one for each leaf, and gradients pass through the floats.

    Args:
        example: a PyTree of arrays, or of their shapes and dtypes.
    """

    def __init__(self, example: Any) -> None:
        self._jax = jax = import_library("jax", needed_by="an environment on JAX", extra="brax")
        leaves, self._tree = jax.tree_util.tree_flatten(example)
        self._keys = [jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
        data = [
            jax.eval_shape(jax.random.key_data, leaf) if key else leaf
            for leaf, key in zip(leaves, self._keys, strict=True)
        ]
        self._forms = [(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in data]
        self._floats = [dtype == np.float32 for _, dtype in self._forms]
        self.floats = sum(int(np.prod(shape)) for (shape, _), one in zip(self._forms, self._floats, strict=True) if one)
        self.bytes = sum(
            int(np.prod(shape)) * (1 if dtype == np.bool_ else dtype.itemsize)
            for (shape, dtype), one in zip(self._forms, self._floats, strict=True)
            if not one
        )

    def pack(self, tree: Any) -> tuple[Any, Any]:
        """Return floats and bytes of a PyTree."""
        jax, jnp = self._jax, self._jax.numpy
        floats, rest = [jnp.zeros(0, jnp.float32)], [jnp.zeros(0, jnp.uint8)]
        for leaf, key, one, (_, dtype) in zip(
            jax.tree_util.tree_leaves(tree), self._keys, self._floats, self._forms, strict=True
        ):
            array = jax.random.key_data(leaf) if key else jnp.asarray(leaf)
            if one:
                floats.append(array.reshape(-1))
            elif dtype == np.bool_:
                rest.append(array.reshape(-1).astype(jnp.uint8))
            else:
                rest.append(jax.lax.bitcast_convert_type(array.astype(dtype), jnp.uint8).reshape(-1))
        return jnp.concatenate(floats), jnp.concatenate(rest)

    def unpack(self, floats: Any, rest: Any) -> Any:
        """Return the PyTree of floats and bytes."""
        jax = self._jax
        leaves: list[Any] = []
        at = {True: 0, False: 0}
        for key, one, (shape, dtype) in zip(self._keys, self._floats, self._forms, strict=True):
            count = int(np.prod(shape))
            size = count if one or dtype == np.bool_ else count * dtype.itemsize
            part = (floats if one else rest)[at[one] : at[one] + size]
            at[one] += size
            if one:
                array = part.reshape(shape)
            elif dtype == np.bool_:
                array = part.reshape(shape).astype(bool)
            elif dtype.itemsize == 1:
                array = jax.lax.bitcast_convert_type(part, dtype).reshape(shape)
            else:
                array = jax.lax.bitcast_convert_type(part.reshape(count, dtype.itemsize), dtype).reshape(shape)
            leaves.append(jax.random.wrap_key_data(array) if key else array)
        return jax.tree_util.tree_unflatten(self._tree, leaves)
