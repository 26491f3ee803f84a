"""Rollouts of recurrent state-space models along sequences of actions and observations."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import IS_INIT, NestedKey, as_tuple, key_str, leaf_keys, next_key, unwrap
from rl.modules._keys import key_list
from rl.modules.world_models._layers import shared_weights
from rl.modules.world_models._rssm import Posterior, Prior


class RSSMRollout(TensorDictModuleBase):
    """Posterior states along sequences: each step runs the prior, then the posterior, whose state goes on to the next.

    Hafner et al., "Learning latent dynamics for planning from pixels", 2019, section 2. The step that is marked in
    ``is_init``, if the batch has that key, starts from a state and a belief of zeros.

    Reads the inputs of both modules, such as ``state`` ``[*B, T, s]`` and ``belief`` ``[*B, T, h]``, of which the first
    step counts, ``action`` ``[*B, T, a]`` and ``("next", "encoded_latents")`` ``[*B, T, e]``. Writes their outputs for
    each step; ``state`` and ``belief`` become those before each step. Time is the last dimension of the batch.

    Args:
        rssm_prior: Prior, which reads state, belief, action, and optionally noise, and writes parameters, ``"_"`` or a
            key for its sample, and the next belief: `RSSMPrior` in a `TensorDictModule`.
        rssm_posterior: Posterior, which reads the next belief, the encoded observation, and optionally noise, and
            writes parameters and the next state: `RSSMPosterior` in a `TensorDictModule`.
        use_scan: Whether to run the loop on tensors: what depends on no state is computed for all steps at once, and
            the gradient of each weight in one product. The results are those of the other loop up to rounding.
        compile_step: Whether to compile a step of the loop; not with `use_scan`, which compiles as part of its caller.
        compile_backend: Back end of `torch.compile`.
        compile_mode: Mode of `torch.compile`.
        reset_key: Key of the flags of first steps, bool ``[*B, T, 1]``.

    Raises:
        ContractError: With `use_scan`, for modules without the methods of `RSSMPrior` and `RSSMPosterior`; in the call,
            if an input is absent.
        ShapeError: In the call, if the batch has no dimension of time.

    Example:
        >>> from rl.core.specs import Bounded
        >>> from rl.modules import RSSMPosterior, RSSMPrior
        >>> from tensordict import TensorDict
        >>> prior = TensorDictModule(
        ...     RSSMPrior(Bounded(-1, 1, (2,)), 8, 8, 3),
        ...     ["state", "belief", "action"],
        ...     [("next", "prior_mean"), ("next", "prior_std"), "_", ("next", "belief")],
        ... )
        >>> posterior = TensorDictModule(
        ...     RSSMPosterior(8, 3),
        ...     [("next", "belief"), ("next", "encoded_latents")],
        ...     [("next", "posterior_mean"), ("next", "posterior_std"), ("next", "state")],
        ... )
        >>> rollout = RSSMRollout(prior, posterior, use_scan=True)
        >>> batch = TensorDict(
        ...     state=torch.zeros(4, 6, 3), belief=torch.zeros(4, 6, 8), action=torch.zeros(4, 6, 2),
        ...     next=TensorDict(encoded_latents=torch.randn(4, 6, 5), batch_size=[4, 6]), batch_size=[4, 6],
        ... )
        >>> rollout(batch)["next", "posterior_mean"].shape
        torch.Size([4, 6, 3])
    """

    restarts_action = False
    """Whether the action of a first step is zero, too."""

    def __init__(
        self,
        rssm_prior: TensorDictModule,
        rssm_posterior: TensorDictModule,
        use_scan: bool = False,  # noqa: FBT001, FBT002 - as in TorchRL
        compile_step: bool = False,  # noqa: FBT001, FBT002 - as in TorchRL
        compile_backend: str = "inductor",
        compile_mode: str | None = None,
        reset_key: NestedKey | None = IS_INIT,
    ) -> None:
        super().__init__()
        both = TensorDictSequential(rssm_prior, rssm_posterior)
        self.in_keys: list[Any] = both.in_keys
        self.out_keys: list[Any] = both.out_keys
        self.rssm_prior, self.rssm_posterior = rssm_prior, rssm_posterior
        self.use_scan, self.compile_step = use_scan, compile_step
        self.compile_backend, self.compile_mode = compile_backend, compile_mode
        self.reset_key = None if reset_key is None else unwrap(reset_key)
        self.state_key, self.belief_key, self.action_key = self._find_keys()
        self._compiled: Any = None
        if use_scan:
            self._networks()

    def _find_keys(self) -> tuple[NestedKey, NestedKey, NestedKey]:
        read = key_list(self.rssm_prior.in_keys)
        if len(read) < 3:
            raise ContractError(
                f"{type(self).__name__}: the prior reads {', '.join(map(key_str, read))}; it reads state, belief and"
                " action, in this order"
            )
        written = key_list(self.out_keys)
        for key in read[:2]:
            if next_key(key) not in written:
                raise ContractError(
                    f"{type(self).__name__}: neither module writes {key_str(next_key(key))}, which the next step reads"
                    f" as {key_str(key)}: name it in the out_keys"
                )
        return read[0], read[1], read[2]

    def _networks(self) -> tuple[Any, Any]:
        """Return the modules of prior and posterior, which need the methods that a scan calls."""
        found = [getattr(part, "module", None) for part in (self.rssm_prior, self.rssm_posterior)]
        for network, kind in zip(found, (Prior, Posterior), strict=True):
            if not isinstance(network, kind):
                raise ContractError(
                    f"{type(self).__name__}: use_scan needs a TensorDictModule of a {kind.__name__.lower()} such as"
                    f" RSSM{kind.__name__}, got {type(network).__name__}; use_scan=False takes any module"
                )
        return found[0], found[1]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the states of all steps into a copy of the batch ``[*B, T]``."""
        owner = str(type(self).__name__)
        if not tensordict.ndim or not tensordict.shape[-1]:
            raise ShapeError(f"{owner} got a batch {list(tensordict.shape)}: its last dimension is time, at least 1")
        for key in self.in_keys:
            if tensordict.get(key, None) is None:
                raise ContractError(missing_key_message(owner, Key(unwrap(key)), leaf_keys(tensordict)))
        return (self._scan if self.use_scan else self._loop)(tensordict)

    def _step(self, row: TensorDictBase) -> TensorDictBase:
        return self.rssm_posterior(self.rssm_prior(row))

    def _flags(self, td: TensorDictBase) -> Tensor | None:
        """Return the flags of first steps, bool ``[*B, T, 1]``; None if the batch has no such key."""
        flags: Tensor | None = None if self.reset_key is None else td.get(self.reset_key, None)
        if flags is None:
            return None
        if flags.shape not in (td.shape, (*td.shape, 1)):
            raise ShapeError(f"{type(self).__name__}: {key_str(self.reset_key or '')} is {list(flags.shape)}")
        return flags.reshape(*td.shape, 1).bool()

    def _loop(self, td: TensorDictBase) -> TensorDictBase:
        """Run the recurrence on TensorDicts, with any module."""
        step = self._step
        if self.compile_step:
            if self._compiled is None:
                self._compiled = torch.compile(step, backend=self.compile_backend, mode=self.compile_mode)
            step = self._compiled
        flags = self._flags(td)
        rows = list(td.exclude(*self.out_keys).unbind(-1))
        restarted = [self.state_key, self.belief_key, *([self.action_key] if self.restarts_action else [])]
        for t, row in enumerate(rows):
            if t:
                for key in (self.state_key, self.belief_key):
                    row.set(key, rows[t - 1].get(next_key(key)))
            if flags is not None:
                for key in restarted:
                    row.set(key, row.get(key).masked_fill(flags[..., t, :], 0))
            rows[t] = step(row)
        return TensorDict.stack(rows, -1)

    def _scan(self, td: TensorDictBase) -> TensorDictBase:
        """Run the recurrence on tensors, with time as the first dimension."""
        prior, posterior = self._networks()
        time = td.ndim - 1
        reads, post_reads = key_list(self.rssm_prior.in_keys), key_list(self.rssm_posterior.in_keys)
        flags = self._flags(td)
        action: Tensor = td.get(self.action_key)
        if flags is not None and self.restarts_action:
            action = action.masked_fill(flags, 0)
        state, belief = (td.get(key).select(time, 0) for key in (self.state_key, self.belief_key))
        embedded = posterior.embed(td.get(post_reads[1]).movedim(time, 0), belief.shape[-1])
        actions = prior.embed(action.movedim(time, 0))
        noises = [
            td.get(keys[place]).movedim(time, 0) if len(keys) > place else None
            for keys, place in ((reads, 3), (post_reads, 2))
        ]
        starts = None if flags is None else flags.movedim(time, 0).unbind()
        before: list[list[Tensor]] = [[], []]
        beliefs: list[Tensor] = []
        drawn: list[Tensor] = []
        posts: list[tuple[Tensor, ...]] = []
        with shared_weights():
            for t, (acted, seen) in enumerate(zip(actions.unbind(), embedded.unbind(), strict=True)):
                if starts is not None:
                    state, belief = state.masked_fill(starts[t], 0), belief.masked_fill(starts[t], 0)
                before[0].append(state)
                before[1].append(belief)
                belief = prior.recur(state, belief, acted)
                # In the order of the other loop, so that both draw the same numbers.
                drawn.append(prior.draw(belief) if noises[0] is None else noises[0][t])
                noise = posterior.draw(belief) if noises[1] is None else noises[1][t]
                posts.append(posterior.infer(belief, seen, noise))
                state = posts[-1][-1]
                beliefs.append(belief)
        all_beliefs = torch.stack(beliefs)
        out = td.exclude(*self.out_keys)
        if self.restarts_action:
            out.set(self.action_key, action)
        found = [*prior.head(all_beliefs, torch.stack(drawn)), all_beliefs]
        written = list(zip(key_list(self.rssm_prior.out_keys_source), found, strict=True))
        columns = [torch.stack(column) for column in zip(*posts, strict=True)]
        written += zip(key_list(self.rssm_posterior.out_keys_source), columns, strict=True)
        written += zip((self.state_key, self.belief_key), map(torch.stack, before), strict=True)
        for key, value in written:
            if as_tuple(key)[-1] != "_":
                out.set(key, value.movedim(0, time))
        return out


class RSSMRolloutV3(RSSMRollout):
    """Posterior states of DreamerV3 along sequences; see `RSSMRollout`.

    Row `t` of the batch holds an observation and the action *before* it, as in the official implementation, so that the
    action of the first step of an episode belongs to the episode before: it is zero there, as state and belief are.

    Args:
        rssm_prior: Prior: `RSSMPriorV3` in a `TensorDictModule`.
        rssm_posterior: Posterior: `RSSMPosteriorV3` in a `TensorDictModule`.
        reset_key: Key of the flags of first steps, bool ``[*B, T, 1]``.
        action_key: Key of the action; the third input of the prior if None.
        use_scan: Whether to run the loop on tensors; see `RSSMRollout`.

    Example:
        >>> from rl.modules import RSSMPosteriorV3, RSSMPriorV3
        >>> from tensordict import TensorDict
        >>> prior = TensorDictModule(
        ...     RSSMPriorV3(action_dim=2, hidden_dim=8, rnn_hidden_dim=8, num_categoricals=4, num_classes=4),
        ...     ["state", "belief", "action"],
        ...     [("next", "prior_logits"), "_", ("next", "belief")],
        ... )
        >>> posterior = TensorDictModule(
        ...     RSSMPosteriorV3(8, 4, 4, rnn_hidden_dim=8, obs_embed_dim=5),
        ...     [("next", "belief"), ("next", "encoded_latents")],
        ...     [("next", "posterior_logits"), ("next", "state")],
        ... )
        >>> batch = TensorDict(
        ...     state=torch.zeros(2, 6, 16), belief=torch.zeros(2, 6, 8), action=torch.randn(2, 6, 2),
        ...     next=TensorDict(encoded_latents=torch.randn(2, 6, 5), batch_size=[2, 6]), batch_size=[2, 6],
        ... )
        >>> RSSMRolloutV3(prior, posterior, use_scan=True)(batch)["next", "posterior_logits"].shape
        torch.Size([2, 6, 4, 4])
    """

    restarts_action = True

    def __init__(
        self,
        rssm_prior: TensorDictModule,
        rssm_posterior: TensorDictModule,
        reset_key: NestedKey | None = IS_INIT,
        action_key: NestedKey | None = None,
        *,
        use_scan: bool = False,
    ) -> None:
        super().__init__(rssm_prior, rssm_posterior, use_scan, reset_key=reset_key)
        if action_key is not None:
            self.action_key = unwrap(action_key)
