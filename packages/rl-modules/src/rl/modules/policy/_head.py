"""Head of a stochastic policy: from parameters to a distribution, a sample, and its log-probability."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import CompositeDistribution, InteractionType, ProbabilisticTensorDictModule
from tensordict.nn import probabilistic as tensordict_probabilistic
from tensordict.nn.probabilistic import interaction_type  # not in `nn` of tensordict 0.14
from torch import Tensor
from torch.distributions import Distribution

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import as_tuple, leaf_keys
from rl.core.lowering import Lowered, unhooked
from rl.core.specs import TensorSpec
from rl.modules._keys import key_list
from rl.modules.distributions._base import LeanDistribution
from rl.modules.policy._fit import action_shape

__all__ = ["ActionHead"]

Build = Callable[..., Distribution]

# tensordict 0.14 samples first and scores then; later versions let the distribution do both. So do we.
_FUSES = hasattr(tensordict_probabilistic, "_get_joint_sample_and_log_prob")


class ActionHead(ProbabilisticTensorDictModule):
    """A `tensordict.nn.ProbabilisticTensorDictModule` that checks the shape of its first distribution.

    Args:
        spec: of the action, or None.
        **kwargs: those of the base class.
    """

    def __init__(self, spec: TensorSpec | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self._seen = False

    def get_dist(self, tensordict: TensorDictBase) -> Distribution:
        """The distribution of the parameters in `tensordict`.

        Raises:
            ContractError: at the first call, if a parameter is absent.
            ShapeError: at the first call, if an action would not have the spec's shape.
        """
        if self._seen:
            return super().get_dist(tensordict)
        for key in key_list(self.in_keys):
            if tensordict.get(key, None) is None:
                remedy = f"It is a parameter of {self.distribution_class.__name__}: the network must write it."
                raise ContractError(
                    missing_key_message("the policy's head", Key(key, remedy=remedy), leaf_keys(tensordict))
                )
        dist = super().get_dist(tensordict)
        self._check(dist)
        params = [tensordict.get(key) for key in key_list(self.in_keys)]
        self._check_score(dist, params, dist.batch_shape != tensordict.batch_size)
        return dist

    def _check(self, dist: Distribution) -> None:
        spec = self.spec
        event = dist.event_shape
        if spec is not None and event and tuple(spec.shape[-len(event) :]) != tuple(event):
            raise ShapeError(
                f"{type(dist).__name__} gives actions of shape {tuple(event)}, the spec of"
                f" {'.'.join(as_tuple(key_list(self.dist_sample_keys)[0]))!r} has {tuple(spec.shape)}:"
                " change the width of the network's last layer"
            )
        choices = getattr(dist, "num_actions", None)
        if choices is not None and choices != getattr(spec, "n", choices):
            raise ShapeError(
                f"{type(dist).__name__} has {choices} actions, the spec {spec}: change the width of the last layer"
            )
        self._seen = True

    def _check_score(self, dist: Distribution, params: Sequence[Any], several: bool) -> None:  # noqa: FBT001
        """Refuse a log-probability of each number of an action; `several` is whether an action has several numbers."""
        elementwise = not dist.event_shape and any(
            isinstance(p, Tensor) and p.shape == dist.batch_shape for p in params
        )
        if self.return_log_prob and several and elementwise:
            self._seen = False
            name = type(dist).__name__
            raise ShapeError(
                f"{name} has one log-probability for each number of an action, and return_log_prob=True writes one for"
                f" each action: use rl.modules.IndependentNormal, or torch.distributions.Independent({name}(...), 1)"
            )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  torch's signature
        out = super()._apply(fn, recurse)
        _move(self.distribution_kwargs, fn)
        return out

    def builder(self) -> Build | None:
        """A function from the parameters in order to the distribution; None if the class was changed or hooked."""
        if type(self) is not ActionHead or not unhooked(self) or self.distribution_class is CompositeDistribution:
            return None
        make: Any = self.distribution_class
        names = [as_tuple(key)[-1] for key in key_list(list(self.dist_keys))]
        positional = isinstance(make, type) and list(inspect.signature(make).parameters)[: len(names)] == names
        kwargs = self.distribution_kwargs

        def build(*params: Tensor) -> Distribution:
            dist = make(*params, **kwargs) if positional else make(**dict(zip(names, params, strict=True)), **kwargs)
            if not self._seen:
                self._check(dist)
                self._check_score(dist, params, bool(action_shape(self.spec)))
            return dist

        return build

    def lowered(self) -> Lowered | None:
        """The plain form: parameters to action, and its log-probability if asked for."""
        build = self.builder()
        keys = key_list([*self.dist_sample_keys, *((self.log_prob_keys or []) if self.return_log_prob else [])])
        generators = (getattr(self, "_generator", None), getattr(self, "_generator_key", None))
        plain = generators == (None, None) and self.num_samples is None and len(self.dist_sample_keys) == 1
        if build is None or not plain or "_" in keys:
            return None
        draw = self._scored_draw() if self.return_log_prob else self._draw()
        return Lowered(lambda *params: draw(build(*params)), key_list(self.in_keys), keys)

    def _draw(self) -> Callable[[Distribution], tuple[Tensor, ...]]:
        random = InteractionType.RANDOM

        def draw(dist: Any) -> tuple[Tensor, ...]:
            if (interaction_type() or self.default_interaction_type) is random:
                return (dist.rsample() if dist.has_rsample else dist.sample(),)
            return (self._chosen(dist),)

        return draw

    def _scored_draw(self) -> Callable[[Distribution], tuple[Tensor, ...]]:
        random = InteractionType.RANDOM

        def draw(dist: Any) -> tuple[Tensor, ...]:
            if (interaction_type() or self.default_interaction_type) is random:
                both = "rsample_and_log_prob" if dist.has_rsample else "sample_and_log_prob"
                fused = getattr(dist, both, None) if _FUSES else None
                if fused is not None:
                    return fused(torch.Size())
                action = dist.rsample() if dist.has_rsample else dist.sample()
            else:
                action = self._chosen(dist)
            return action, dist.log_prob(action)

        return draw

    def _chosen(self, dist: Any) -> Tensor:
        how = interaction_type() or self.default_interaction_type
        if how is InteractionType.DETERMINISTIC and isinstance(dist, LeanDistribution):
            return dist.deterministic_sample
        return self._dist_sample(dist, interaction_type=interaction_type())


def _move(kwargs: dict[Any, Any], fn: Callable[[Tensor], Tensor]) -> None:
    """Apply `fn` to the tensors among arguments, those of the parts of a composite distribution included."""
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            kwargs[name] = fn(value)
        elif type(value) is dict:
            _move(cast("dict[Any, Any]", value), fn)
