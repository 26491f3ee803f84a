"""Log-probabilities and entropies of tokens in chunks over vocabulary and time, and the module that scores tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import as_integer, as_number, same_shape
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError
from rl.core.keys import NestedKey
from rl.llm._keys import ATTENTION, ENTROPY, LOG_PROBS, SEQUENCE, TOKENS

__all__ = ["TokenScorer", "linear_log_probs", "log_probs_of_logits", "token_positions"]

#: rows and columns of a chunk: 64 MiB in single precision.
_TIME, _VOCABULARY = 1024, 16384
#: logit of an entry whose probability is 0.
_FLOOR = -1e30


class _Source:
    """Logits ``[N, V]`` by chunk: given ones, or those of a linear layer, which are computed where they are needed."""

    def __init__(
        self, logits: Tensor | None, hidden: Tensor | None, weight: Tensor | None, bias: Tensor | None
    ) -> None:
        self.logits, self.hidden, self.weight, self.bias = logits, hidden, weight, bias
        first: Any = logits if hidden is None else hidden
        columns: Any = first.shape[-1] if weight is None else weight.shape[0]
        self.rows, self.columns = int(first.shape[0]), int(columns)
        # Sums over the vocabulary are never in half precision.
        self.dtype = torch.promote_types(first.dtype, torch.float32)

    def chunk(self, rows: slice, columns: slice, scale: float) -> Tensor:
        if self.logits is not None:
            found = self.logits[rows, columns]
        else:
            hidden: Any = self.hidden
            weight: Any = self.weight
            found = nn.functional.linear(
                hidden[rows], weight[columns], None if self.bias is None else self.bias[columns]
            )
        # The caller may change the chunk: given logits are copied. Masked ones are -inf, and 0 * -inf would be NaN.
        found = found.to(self.dtype, copy=self.logits is not None).clamp_(min=_FLOOR)
        return found if scale == 1 else found.mul_(scale)


def _slices(size: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


class _LogProbs(torch.autograd.Function):
    """Log-probability and entropy of each row; saves the inputs and three numbers for each row."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        logits, hidden, weight, bias, targets, scale, sizes = inputs
        ctx.set_materialize_grads(False)  # entropies are often computed for the log alone
        source = _Source(logits, hidden, weight, bias)
        shape, dtype = (source.rows,), source.dtype
        chosen, normalizer, entropy = (targets.new_empty(shape, dtype=dtype) for _ in range(3))
        for rows in _slices(source.rows, sizes[0]):
            chosen[rows], normalizer[rows], entropy[rows] = _scan(source, targets[rows], rows, scale, sizes[1])
        ctx.save_for_backward(logits, hidden, weight, bias, targets, normalizer, entropy)
        ctx.scale, ctx.sizes = scale, sizes
        return chosen - normalizer, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - as torch calls it
        logits, hidden, weight, bias, targets, normalizer, entropy = ctx.saved_tensors
        source = _Source(logits, hidden, weight, bias)
        by_log_prob, by_entropy = grads[0] if grads[0] is not None else torch.zeros_like(normalizer), grads[1]
        totals = [  # sums over chunks in single precision; the gradient of logits is written once
            None
            if one is None or not needed
            else torch.zeros_like(one, dtype=one.dtype if one is logits else source.dtype)
            for one, needed in zip((logits, hidden, weight, bias), ctx.needs_input_grad, strict=False)
        ]
        of_logits, of_hidden, of_weight, of_bias = totals
        offset = by_log_prob if by_entropy is None else by_log_prob + by_entropy * entropy
        for rows in _slices(source.rows, ctx.sizes[0]):
            for columns in _slices(source.columns, ctx.sizes[1]):
                # d log p(y) / dz = [y] - p and d H / dz = -p (log p + H), in place: chunks are what this costs.
                dz = source.chunk(rows, columns, ctx.scale).sub_(normalizer[rows, None])
                if by_entropy is None:
                    dz.exp_().mul_(-offset[rows, None])
                else:
                    p = dz.exp()
                    dz.mul_(-by_entropy[rows, None]).sub_(offset[rows, None]).mul_(p)
                inside = (targets[rows] >= columns.start) & (targets[rows] < columns.stop)
                where = (targets[rows] - columns.start).where(inside, 0).unsqueeze(-1)
                dz.scatter_add_(-1, where, (by_log_prob[rows] * inside).unsqueeze(-1))
                if ctx.scale != 1:
                    dz.mul_(ctx.scale)
                if of_logits is not None:
                    of_logits[rows, columns] = dz.to(of_logits.dtype)
                if of_hidden is not None:
                    of_hidden[rows].addmm_(dz, weight[columns].to(dz.dtype))
                if of_weight is not None:
                    of_weight[columns].addmm_(dz.T, hidden[rows].to(dz.dtype))
                if of_bias is not None:
                    of_bias[columns] += dz.sum(0)
        out = [
            None if total is None else total.to(one.dtype)
            for total, one in zip(totals, (logits, hidden, weight, bias), strict=True)
        ]
        return *out, None, None, None


def _scan(source: _Source, targets: Tensor, rows: slice, scale: float, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logit of the target, the logarithm of the normalizer and the entropy of some rows.

    One pass over the vocabulary with the running maximum m, ``s = sum exp(z - m)`` and ``t = sum exp(z - m) z``; the
    entropy is ``log Z - t / s`` (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
    """
    shape = targets.shape
    m = torch.full(shape, torch.finfo(source.dtype).min, dtype=source.dtype, device=targets.device)
    s, t, chosen = (torch.zeros_like(m) for _ in range(3))
    for columns in _slices(source.columns, step):
        z = source.chunk(rows, columns, scale)
        new = torch.maximum(m, z.amax(-1))
        old = (m - new).exp()
        e = (z - new.unsqueeze(-1)).exp_()
        s = s * old + e.sum(-1)
        t = t * old + torch.linalg.vecdot(e, z)
        inside = (targets >= columns.start) & (targets < columns.stop)
        where = (targets - columns.start).where(inside, 0).unsqueeze(-1)
        chosen = torch.where(inside, z.gather(-1, where).squeeze(-1), chosen)
        m = new
    normalizer = m + s.log()
    return chosen, normalizer, normalizer - t / s


def _compute(
    inputs: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    tokens: Tensor,
    temperature: float,
    chunk: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    scale = 1 / as_number(temperature, "log_probs", "temperature", above=0)
    sizes = tuple(as_integer(size, "log_probs", "chunk", least=1) for size in chunk)
    apply: Callable[..., tuple[Tensor, Tensor]] = _LogProbs.apply
    log_prob, entropy = apply(*inputs, tokens.reshape(-1), scale, sizes)
    return log_prob.view(tokens.shape), entropy.view(tokens.shape)


def log_probs_of_logits(
    logits: Tensor, tokens: Tensor, *, temperature: float = 1.0, chunk: tuple[int, int] = (_TIME, _VOCABULARY)
) -> tuple[Tensor, Tensor]:
    """Compute the log-probability of tokens, and the entropy, from logits; no tensor of their size is kept.

    Sums of logits in half precision are in single precision. Gradients have the dtype of the logits.

    Args:
        logits: Logits of the token at the same position, ``[*B, T, V]``.
        tokens: Tokens, int64 ``[*B, T]``.
        temperature: Number by which logits are divided: that of the sampler, above 0.
        chunk: Number of positions and of entries of the vocabulary that are computed at once.

    Returns:
        Log-probability and entropy, nats, ``[*B, T]``.

    Raises:
        ShapeError: If the shapes do not fit.

    Example:
        >>> log_prob, entropy = log_probs_of_logits(torch.zeros(1, 2, 4), torch.tensor([[0, 3]]))
        >>> log_prob.exp(), entropy.exp()
        (tensor([[0.2500, 0.2500]]), tensor([[4., 4.]]))
    """
    if logits.shape[:-1] != tokens.shape:
        raise ShapeError(
            f"log_probs_of_logits: logits must be [*B, T, V] and tokens [*B, T], got {list(logits.shape)} and"
            f" {list(tokens.shape)}"
        )
    return _compute((logits.reshape(-1, logits.shape[-1]), None, None, None), tokens, temperature, chunk)


def linear_log_probs(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk: tuple[int, int] = (_TIME, _VOCABULARY),
) -> tuple[Tensor, Tensor]:
    """Compute the log-probability of tokens, and the entropy, from hidden states and the output layer.

    Logits exist for one chunk at a time, and are computed again for the gradient.

    Args:
        hidden: Hidden states, ``[*B, T, D]``.
        weight: Weight of the output layer, ``[V, D]``.
        tokens: Tokens, int64 ``[*B, T]``.
        bias: Bias of the output layer, ``[V]``.
        temperature: Number by which logits are divided, above 0.
        chunk: Number of positions and of entries of the vocabulary that are computed at once.

    Returns:
        Log-probability and entropy, nats, ``[*B, T]``.

    Raises:
        ShapeError: If the shapes do not fit.
    """
    if hidden.shape[:-1] != tokens.shape or weight.shape[1:] != hidden.shape[-1:]:
        raise ShapeError(
            "linear_log_probs: hidden must be [*B, T, D], weight [V, D] and tokens [*B, T], got"
            f" {list(hidden.shape)}, {list(weight.shape)} and {list(tokens.shape)}"
        )
    return _compute((None, hidden.reshape(-1, hidden.shape[-1]), weight, bias), tokens, temperature, chunk)


def token_positions(attention_mask: Tensor, sequence: Tensor | None = None) -> Tensor:
    """Return the position of each token in its sequence, int64 ``[*B, T]``; 0 for padding.

    Positions start at 0 at the first token that is not padding, on whichever side the padding is, and again at each
    sequence of a packed row.

    Args:
        attention_mask: True for tokens that are not padding, bool ``[*B, T]``.
        sequence: Number of the sequence of each token, ``[*B, T]``, of packed rows; tokens of one are contiguous.

    Example:
        >>> token_positions(torch.tensor([[False, True, True]]))
        tensor([[0, 0, 1]])
        >>> token_positions(torch.ones(1, 4, dtype=torch.bool), torch.tensor([[0, 0, 1, 1]]))
        tensor([[0, 1, 0, 1]])
    """
    count = attention_mask.long().cumsum(-1) - 1
    if sequence is not None:
        same_shape(attention_mask=attention_mask, sequence=sequence)
        starts = torch.ones_like(attention_mask)
        starts[..., 1:] = sequence[..., 1:] != sequence[..., :-1]
        count = count - count.where(starts, 0).cummax(-1).values
    return count.where(attention_mask, 0)


@final
class TokenScorer(nn.Module):
    """Policy of a causal language model: log-probability of each token given those before it, and the entropy there.

    Reads ``("tokens", "full")`` int64 ``[*B, T]`` and, if there, ``("masks", "all_attention_mask")`` bool ``[*B, T]``,
    false for padding, and ``("tokens", "sequence")`` int64 ``[*B, T]`` of packed rows. Writes
    ``("log_probs", "full")`` and ``("entropy", "full")`` ``[*B, T]``, 0 for the first token of a sequence and for
    padding.

    The model is called as Hugging Face's are: ``model(input_ids=, attention_mask=, position_ids=, use_cache=)`` with
    tensors ``[N, T]``; a model whose ``forward`` has none of these names is called with the tokens alone. Position ids
    start at 0 after left padding. For packed rows the attention mask is left out, and the model has to separate
    sequences where positions start again, as Hugging Face's do with ``attn_implementation="sdpa"`` or ``"eager"``.

    Args:
        model: Model that returns logits ``[N, T, V]``, or an object with the attribute ``logits``. With `head`, hidden
            states ``[N, T, D]``, or an object with ``last_hidden_state``.
        head: Output layer, from which logits are computed in chunks.
        temperature: Number by which logits are divided: that of the sampler, above 0.
        entropy: Whether the entropy is written.
        chunk: Number of positions and of entries of the vocabulary that are computed at once.

    Example:
        >>> from tensordict import TensorDict
        >>> scorer = TokenScorer(nn.Embedding(4, 4).requires_grad_(False))
        >>> out = scorer(TensorDict({"tokens": {"full": torch.tensor([[1, 2, 3]])}}, batch_size=[1]))
        >>> out["log_probs", "full"].shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        head: nn.Linear | None = None,
        *,
        temperature: float = 1.0,
        entropy: bool = True,
        chunk: tuple[int, int] = (_TIME, _VOCABULARY),
    ) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.temperature = as_number(temperature, "TokenScorer", "temperature", above=0)
        self.chunk, self.entropy = chunk, entropy
        if len(chunk) != 2:
            raise ArgumentError(f"TokenScorer: chunk must be a pair of sizes, got {chunk!r}")
        self._names = accepted_arguments(model)

    @property
    def contract(self) -> Contract:
        reads = (
            Key(TOKENS, ("T",), "tokens", dtype=torch.int64),
            Key(ATTENTION, ("T",), "false for padding", dtype=torch.bool, optional=True),
            Key(SEQUENCE, ("T",), "number of the sequence of a token in packed rows", optional=True),
        )
        writes = [Key(LOG_PROBS, ("T",), "log-probability of each token, nats")]
        if self.entropy:
            writes.append(Key(ENTROPY, ("T",), "entropy where the token was sampled, nats"))
        return Contract(reads, tuple(writes))

    @property
    def in_keys(self) -> list[NestedKey]:
        return self.contract.in_keys

    @property
    def out_keys(self) -> list[NestedKey]:
        return self.contract.out_keys

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write log-probabilities and entropies of the tokens of a batch, ``[*B]``.

        Raises:
            ContractError: If the tokens are absent.
            ShapeError: If the model returns another shape.
        """
        (tokens,) = self.contract.read(tensordict, self)
        rows = tokens.reshape(-1, tokens.shape[-1])
        mask: Any = tensordict.get(ATTENTION, None)
        index: Any = tensordict.get(SEQUENCE, None)
        mask = torch.ones_like(rows, dtype=torch.bool) if mask is None else mask.reshape(rows.shape)
        index = None if index is None else index.reshape(rows.shape)
        positions = token_positions(mask, index)
        log_prob, entropy = self._score(rows, mask, positions, packed=index is not None)
        # The logits at t are those of token t + 1; the first token of a sequence has none.
        scored = mask & (positions > 0)
        for key, values in ((LOG_PROBS, log_prob), (ENTROPY, entropy if self.entropy else None)):
            if values is not None:
                shifted = nn.functional.pad(values, (1, 0)).where(scored, 0)
                tensordict = tensordict.set(key, shifted.reshape(tokens.shape))
        return tensordict

    def _score(self, rows: Tensor, mask: Tensor, positions: Tensor, *, packed: bool) -> tuple[Tensor, Tensor]:
        # Hugging Face's models look for packed sequences only without a mask and without a cache of keys and values.
        given = {
            "input_ids": rows,
            "attention_mask": None if packed else mask.long(),
            "position_ids": positions,
            "use_cache": False,
        }
        arguments = {name: value for name, value in given.items() if name in self._names}
        found: Any = self.model(**arguments) if arguments else self.model(rows)
        names = ("last_hidden_state",) if self.head is not None else ("logits",)
        values: Tensor = next((getattr(found, name) for name in names if hasattr(found, name)), found)
        if values.shape[:-1] != rows.shape:
            raise ShapeError(f"TokenScorer: the model must return {[*rows.shape, 'V']}, got {list(values.shape)}")
        before, targets = values[:, :-1], rows[:, 1:]
        if self.head is None:
            return log_probs_of_logits(before, targets, temperature=self.temperature, chunk=self.chunk)
        return linear_log_probs(
            before, self.head.weight, targets, bias=self.head.bias, temperature=self.temperature, chunk=self.chunk
        )


def accepted_arguments(model: nn.Module) -> frozenset[str]:
    """Return which of the arguments of a causal model its ``forward`` has."""
    # Adapters of peft take any arguments, and pass them to the model that they wrap.
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]
    parameters = inspect.signature(base.forward).parameters
    known = {"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep"}
    return frozenset(known & parameters.keys())
