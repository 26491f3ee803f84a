"""Value transforms as modules."""

from __future__ import annotations

from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.modules.value_transforms._functional import signed_hyperbolic, signed_parabolic, symexp, symlog

__all__ = [
    "ComposeValueTransform",
    "IdentityValueTransform",
    "SignedHyperbolicValueTransform",
    "SymLogValueTransform",
    "ValueTransform",
]


class ValueTransform(nn.Module):
    """Base of invertible transforms: a critic predicts ``transform(target)``, whose value is ``transform.inverse``."""

    def forward(self, value: Tensor) -> Tensor:
        """From units of reward to what a critic predicts, of the same shape."""
        raise NotImplementedError

    def inverse(self, value: Tensor) -> Tensor:
        """From what a critic predicts to units of reward, of the same shape."""
        raise NotImplementedError


class IdentityValueTransform(ValueTransform):
    """Values as they are.

    Example:
        >>> import torch
        >>> IdentityValueTransform()(torch.ones(1))
        tensor([1.])
    """

    def forward(self, value: Tensor) -> Tensor:
        """The values."""
        return value

    def inverse(self, value: Tensor) -> Tensor:
        """The values."""
        return value


class SymLogValueTransform(ValueTransform):
    """Values on a symmetric logarithmic scale, see `symlog`.

    Example:
        >>> import torch
        >>> transform = SymLogValueTransform()
        >>> transform.inverse(transform(torch.tensor([-3.0, 0.5])))
        tensor([-3.0000,  0.5000])
    """

    def forward(self, value: Tensor) -> Tensor:
        """`symlog` of the values."""
        return symlog(value)

    def inverse(self, value: Tensor) -> Tensor:
        """`symexp` of the values."""
        return symexp(value)


class SignedHyperbolicValueTransform(ValueTransform):
    """Values on a square root scale, see `signed_hyperbolic`.

    Args:
        eps: slope for large values, at least 0.

    Raises:
        SpecError: if `eps` is negative.

    Example:
        >>> import torch
        >>> transform = SignedHyperbolicValueTransform()
        >>> transform.inverse(transform(torch.tensor([-100.0, 0.5])))
        tensor([-100.0000,    0.5000])
    """

    def __init__(self, eps: float = 1e-3) -> None:
        super().__init__()
        if not eps >= 0:
            raise SpecError(f"SignedHyperbolicValueTransform got eps={eps}; it is at least 0")
        self.eps = eps

    def forward(self, value: Tensor) -> Tensor:
        """`signed_hyperbolic` of the values."""
        return signed_hyperbolic(value, self.eps)

    def inverse(self, value: Tensor) -> Tensor:
        """`signed_parabolic` of the values."""
        return signed_parabolic(value, self.eps)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


class ComposeValueTransform(ValueTransform):
    """Several transforms, the first one first.

    Args:
        transforms: in the order in which they are applied to values in units of reward.

    Example:
        >>> import torch
        >>> both = ComposeValueTransform(SignedHyperbolicValueTransform(), SymLogValueTransform())
        >>> both.inverse(both(torch.tensor([50.0])))
        tensor([50.0000])
    """

    def __init__(self, *transforms: ValueTransform) -> None:
        super().__init__()
        self.transforms = nn.ModuleList(transforms)

    def forward(self, value: Tensor) -> Tensor:
        """The transforms, one after the other."""
        for transform in self.transforms:
            value = transform(value)
        return value

    def inverse(self, value: Tensor) -> Tensor:
        """Their inverses, the last one first."""
        for transform in reversed(self.transforms):
            assert isinstance(transform, ValueTransform)
            value = transform.inverse(value)
        return value
