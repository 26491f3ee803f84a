"""`FlattenTensorDict`: a batch with one dimension."""

from __future__ import annotations

from tensordict import TensorDictBase

from rl.core.errors import RLError
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["FlattenTensorDict"]


class FlattenTensorDict(Transform):
    """Flattens the dimensions of a batch into one. For replay buffers; not for environments.

    Args:
        inverse: flatten what is written to the buffer, otherwise what is sampled from it.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> FlattenTensorDict(inverse=False)(TensorDict({"x": torch.zeros(2, 3)}, [2, 3])).batch_size
        torch.Size([6])
    """

    leafwise = False

    def __init__(self, *, inverse: bool = True) -> None:
        super().__init__()
        self.inverse = inverse

    def has_inverse(self) -> bool:
        """Whether it flattens what is written."""
        return self.inverse

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Flatten a sampled batch, unless `inverse`."""
        return tensordict if self.inverse else tensordict.reshape(-1)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Flatten a written batch if `inverse`."""
        return tensordict.reshape(-1) if self.inverse else tensordict

    def transform_specs(self, specs: Specs) -> None:
        """Refuse an environment.

        Raises:
            RLError: always.
        """
        del specs
        raise RLError("FlattenTensorDict is for replay buffers: an environment keeps its batch size")
