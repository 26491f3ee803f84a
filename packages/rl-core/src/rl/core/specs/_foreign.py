"""Arguments of TorchRL's specs that are dropped at their default, or replaced."""

from __future__ import annotations

from rl.core.arguments import foreign_arguments

__all__ = ["leaf", "multi_categorical", "non_tensor", "one_hot"]

_DOMAIN = "needless: it follows from the dtype", None
leaf = foreign_arguments(needless={"domain": _DOMAIN}, replaced={"minimum": "use low=", "maximum": "use high="})
one_hot = foreign_arguments(needless={"use_register": ("not available yet: classes are 0 to n - 1", False)})
multi_categorical = foreign_arguments(
    needless={"remove_singleton": ("use Categorical(n) for one choice without a dimension of its own", False)}
)
non_tensor = foreign_arguments(
    needless={
        "batched": ("not available yet: an encoded value has the shape of the spec", None, False),
        "feature_dims": ("not available yet: all dimensions of a spec are its own", None),
    }
)
