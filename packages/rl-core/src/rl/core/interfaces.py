"""Protocols that the packages expect of each other; inheriting from them is not required.

Everything that can be expressed without a TensorDict also has a *leaf* form, a plain call on tensors by flat key
(`Leaves`). A component offers it through ``lowered()``; collectors and losses ask `rl.core.tensor_functions` for it
and fall back to the TensorDict form. Both forms return the same numbers. Leaves are those of the
TensorDict, not of autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Contract
from rl.core.keys import NestedKey
from rl.core.recurrent import RecurrentOptions

if TYPE_CHECKING:
    from rl.core.specs import Composite

__all__ = [
    "Collector",
    "Env",
    "Estimator",
    "LeafEnv",
    "Leaves",
    "LinearRecurrence",
    "Logger",
    "Loss",
    "LoweredModule",
    "Policy",
    "PriorityTree",
    "RecurrentBackend",
    "RecurrentKernels",
    "RecurrentResets",
    "RowGather",
    "Sampler",
    "Storage",
    "Transform",
    "Writer",
    "missing_env_members",
]


class PriorityTree(Protocol):
    """Priorities by index, drawn in proportion.

    Raw values are what the sampler computed, ``(|td_error| + eps) ** alpha`` in prioritized replay.

    A tree may do more in one call. These methods are optional, and looked up by name:

    - ``update_from_errors(index, error, eps, alpha, *, raw=None, largest=None, rows=None)``: sets
      ``(|error| + eps) ** alpha`` at `index` ``[n]``; of a repeated index the last one counts. If `raw` ``[capacity]``
      is given, it gets ``raw[index] = error`` too; if `largest` ``[]`` is, it becomes the larger of itself and the
      largest ``|error|``. An index of `rows` or more raises. `error`, `raw` and `largest` have the tree's dtype and
      device. Everything is checked before anything is written, into any of the three;
    - ``sample_weighted(n, beta, *, generator=None, stratified=False)``: indices ``[n]`` and their importance weights
      ``(priority / min) ** -beta`` ``[n]``;
    - ``check()``: for a tree whose device computes while the host goes on. It cannot raise at once: a batch that it
      rejects writes nothing, and leaves an error on the device; where nothing can be drawn, indices and weights are
      zeros. ``check()`` waits, and raises the first error since the last ``check()``. A tree without it raises at once.

    With all of these, prioritized replay reads no value of a tensor on the host.
    """

    capacity: int
    device: torch.device
    dtype: torch.dtype

    def update(self, index: Tensor, priority: Tensor) -> None:
        """Set priorities ``[n]`` at ``[n]`` int64; of a repeated index the last one counts.

        Raises:
            IndexError: If an index is outside ``[0, capacity)``.
            ValueError: If a priority is negative, infinite or not a number. Nothing is written then.
        """
        ...

    def sample(
        self, n: int, *, generator: torch.Generator | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Draw indices ``[n]`` in proportion to priority, and those priorities ``[n]``.

        Raises:
            ValueError: If the total is zero.
        """
        ...

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]``."""
        ...

    def total(self) -> Tensor:
        """Sum of all, float64 scalar."""
        ...

    def min(self) -> Tensor:
        """Smallest priority above zero; infinity if there is none."""
        ...

    def max(self) -> Tensor:
        """Largest priority; zero if empty."""
        ...


class LinearRecurrence(Protocol):
    """The reverse scan behind every return: ``x_t = d_t + c_t * x_{t+1}``, ``x_T = 0``; differentiable in both.

    A back end may compute complete returns in one pass over memory. These methods are optional, and looked up by name:

    - ``gae(gamma, lmbda, state_value, next_state_value, reward, done, terminated, time_dim)``: advantage and value
      target;
    - ``td_lambda(gamma, lmbda, next_state_value, reward, done, terminated, time_dim)``: the return; nothing is
      bootstrapped where `next_state_value` is None;
    - ``vtrace(gamma, lmbda, ratio, state_value, next_state_value, reward, done, terminated, time_dim, rho_bar=,
      c_bar=)``: advantage and value target, where `ratio` is the probability of an action now over that when it was
      taken.

    Arguments come as the user passed them, unchecked: coefficients are numbers or tensors, `terminated` may be None and
    stands for `done` then. A method that does not serve them (other types, shapes that differ, a gradient that it
    cannot give) returns None before it computes anything; the caller then checks them and composes the return from the
    recurrence. Results are the same either way. All take a keyword ``out``, given only if the caller wants the results
    there: tensors in the shape of the result, to be written and returned.

    While `torch.compile` traces, a back end is called only if it has an attribute ``traceable`` that is true: it
    consists of registered operators then, complete returns included.

    Example: A back end without returns of its own.
        >>> class Loop:
        ...     def __call__(self, d, c, time_dim):
        ...         x, found = 0 * d.select(time_dim, 0), []
        ...         for t in reversed(range(d.shape[time_dim])):
        ...             x = d.select(time_dim, t) + c.select(time_dim, t) * x
        ...             found.append(x)
        ...         return torch.stack(found[::-1], time_dim)
        >>> Loop()(torch.ones(1, 3), torch.full((1, 3), 0.5), 1)
        tensor([[1.7500, 1.5000, 1.0000]])
    """

    def __call__(self, d: Tensor, c: Tensor, time_dim: int) -> Tensor:
        """Return ``y`` of the shape of `d` and `c`."""
        ...


class RecurrentBackend(Protocol):
    """A recurrence over ``[B, T, ...]`` that resets inside the sequence."""

    name: str

    def __call__(
        self,
        module: torch.nn.RNNBase,
        inputs: Tensor,
        state: tuple[Tensor, ...],
        is_init: Tensor,
        reset_state: tuple[Tensor, ...] | None = None,
        options: RecurrentOptions = ...,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute outputs ``[B, T, H]`` and the states ``[B, T, layers, H]`` after each step.

        Args:
            module: Module with weights named as those of `torch.nn.LSTM` or `torch.nn.GRU`, batch first; its ``mode``,
                ``"LSTM"`` or ``"GRU"``, says which, as it need not inherit from either.
            inputs: ``[B, T, I]``.
            state: State before the first step, ``[B, layers, H]`` each (h, or h and c).
            is_init: Bool ``[B, T]``; where true, the state before that step is `reset_state` there, also before the
                first step.
            reset_state: ``[B, T, layers, H]`` each, read where `is_init` is true, with gradient; zero if None.
            options: Options of the computation.

        Raises:
            BackendError: If it does not serve this module (bidirectional, a projection, ...) or these options. It
                never computes something else instead.
        """
        ...


class RecurrentResets(Protocol):
    """Steps of T time-major sequences of B rows at which the recurrent state, of width H, is replaced by a given one.

    Reset number i, of n, replaces the state of one row before one step. Resets are sorted by their step.
    """

    @property
    def starts(self) -> list[int]:
        """T + 1 offsets: the resets ``starts[t]`` to ``starts[t + 1] - 1`` are those before step t."""
        ...

    @property
    def rows(self) -> Tensor:
        """Row of the batch of each reset, int64 ``[n]``, ascending within a step."""
        ...

    @property
    def h(self) -> Tensor:
        """Hidden state that each reset sets, ``[n, H]``."""
        ...

    @property
    def c(self) -> Tensor | None:
        """Cell state that each reset sets, ``[n, H]``; None for a GRU."""
        ...


class RecurrentKernels(Protocol):
    """Loops over time of one LSTM or GRU layer, forward and backward, as the argument ``kernels=`` of a backend.

    A package with compiled loops, such as rl-native, passes an object with these methods to the component ``scan`` of
    the kind ``recurrent_backend``, which computes the products with the inputs and calls these loops for the rest.

    T steps, B rows, H hidden units. All tensors are contiguous, time-major, of one dtype and on one device. The caller
    allocates them, and a method writes all elements of those that are marked as written. `resets` is None if no state
    is replaced inside of the sequences. Slots of a gate tensor are adjacent blocks of H columns.
    """

    name: str
    """Name under which compiled graphs find the loops; one object for each name in a process."""
    why: str
    """Reason for which these loops are used, for reports."""

    def serves(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether the loops support a dtype and device; the caller computes in plain torch otherwise."""
        ...

    def lstm_forward(
        self,
        gates: Tensor,
        weight: Tensor,
        h0: Tensor,
        c0: Tensor,
        resets: RecurrentResets | None,
        h: Tensor,
        c: Tensor,
    ) -> None:
        """Compute the states of an LSTM layer after each step.

        Args:
            gates: Products with the inputs and all biases, ``[T, B, 4H]``, slots i, f, g, o. The activated gates are
                written over them, for `lstm_backward`.
            weight: Recurrent weights, ``[4H, H]``.
            h0: Hidden state before the first step, ``[B, H]``.
            c0: Cell state before the first step, ``[B, H]``.
            resets: Replaced states.
            h: Hidden states after each step, ``[T, B, H]``, written.
            c: Cell states after each step, ``[T, B, H]``, written.

        Raises:
            ShapeError: If a shape differs; nothing is written then.
            ArgumentError: If a dtype, a device or the memory layout differs; nothing is written then.
        """
        ...

    def lstm_backward(  # noqa: PLR0913, PLR0917  one buffer each
        self,
        gates: Tensor,
        weight: Tensor,
        c0: Tensor,
        c: Tensor,
        resets: RecurrentResets | None,
        grad_h: Tensor,
        grad_c: Tensor | None,
        grad_gates: Tensor,
        grad_h0: Tensor,
        grad_c0: Tensor,
        grad_reset_h: Tensor | None,
        grad_reset_c: Tensor | None,
    ) -> None:
        """Compute the gradients of `lstm_forward`.

        Args:
            gates: Activated gates, ``[T, B, 4H]``, which `lstm_forward` wrote.
            weight: Recurrent weights, ``[4H, H]``.
            c0: Cell state before the first step, ``[B, H]``.
            c: Cell states after each step, ``[T, B, H]``.
            resets: Replaced states.
            grad_h: Gradient of the hidden states after each step, ``[T, B, H]``.
            grad_c: Gradient of the cell states after each step, ``[T, B, H]``; None for zero.
            grad_gates: Gradient of the gates before activation, ``[T, B, 4H]``, written; memory of its own.
            grad_h0: Gradient of `h0`, ``[B, H]``, written.
            grad_c0: Gradient of `c0`, ``[B, H]``, written.
            grad_reset_h: Gradient of ``resets.h``, ``[n, H]``, written; None to skip it.
            grad_reset_c: Gradient of ``resets.c``, ``[n, H]``, written; None to skip it.

        Raises:
            ShapeError: See `lstm_forward`.
            ArgumentError: See `lstm_forward`.
        """
        ...

    def gru_forward(self, gates: Tensor, weight: Tensor, h0: Tensor, resets: RecurrentResets | None, h: Tensor) -> None:
        """Compute the states of a GRU layer after each step.

        Args:
            gates: Gates ``[T, B, 4H]``, slots n, r, z, m: in n, r and z the products with the inputs and their biases,
                in m the bias of the recurrent part of n. Written over them are the activated n, r and z, and in m the
                recurrent part of n, for `gru_backward`.
            weight: Recurrent weights of r, z and m, ``[3H, H]``.
            h0: Hidden state before the first step, ``[B, H]``.
            resets: Replaced states.
            h: Hidden states after each step, ``[T, B, H]``, written.

        Raises:
            ShapeError: See `lstm_forward`.
            ArgumentError: See `lstm_forward`.
        """
        ...

    def gru_backward(
        self,
        gates: Tensor,
        weight: Tensor,
        h0: Tensor,
        h: Tensor,
        resets: RecurrentResets | None,
        grad_h: Tensor,
        grad_gates: Tensor,
        grad_h0: Tensor,
        grad_reset_h: Tensor | None,
    ) -> None:
        """Compute the gradients of `gru_forward`.

        Args:
            gates: Gates ``[T, B, 4H]``, which `gru_forward` wrote.
            weight: Recurrent weights of r, z and m, ``[3H, H]``.
            h0: Hidden state before the first step, ``[B, H]``.
            h: Hidden states after each step, ``[T, B, H]``.
            resets: Replaced states.
            grad_h: Gradient of the hidden states after each step, ``[T, B, H]``.
            grad_gates: Gradient of the slots n, r, z and m before activation, ``[T, B, 4H]``, written; memory of its
                own.
            grad_h0: Gradient of `h0`, ``[B, H]``, written.
            grad_reset_h: Gradient of ``resets.h``, ``[n, H]``, written; None to skip it.

        Raises:
            ShapeError: See `lstm_forward`.
            ArgumentError: See `lstm_forward`.
        """
        ...


class RowGather(Protocol):
    """Copies of stored rows: created for the tensors ``[capacity, ...]`` of a storage, all of them in one call.

    It keeps the tensors, not what they hold: rows are written, and memory may be moved, between calls.
    """

    def rows(self, written: int, index: Tensor) -> list[Tensor]:
        """Of each tensor's first `written` rows those under `index` int64 ``[n]``, as copies ``[n, ...]``.

        `index` may be a view, whose numbers lie apart.

        Raises:
            IndexError: If an index is outside of them. An accelerator may leave that to its device.
        """
        ...

    def runs(self, written: int, begin: Tensor, steps: int) -> list[Tensor]:
        """Gather `steps` rows from each of `begin` int64 ``[n]`` on, one run after the other: ``[n * steps, ...]``.

        Raises:
            IndexError: If a run is outside of the first `written` rows. An accelerator may leave that to its device.
        """
        ...


class Collector(Protocol):
    """An iterable of batches ``[*B, T]`` whose last dimension is named ``time``."""

    def __iter__(self) -> Iterator[TensorDictBase]: ...
    def shutdown(self) -> None:
        """Close the environments. May be called twice."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that an exact continuation needs, as tensors and plain containers."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken."""
        ...


Leaves = dict[NestedKey, Tensor]
"""Tensors by flat key: a nested key is a tuple, an un-nested one a string, never a tuple of one."""


class LeafEnv(Protocol):
    """An environment as plain calls on leaves.

    Every tensor that it returns is fresh: the caller keeps it without copying.
    """

    batch_size: torch.Size

    def reset_leaves(self, current: Leaves | None = None, mask: Tensor | None = None) -> Leaves:
        """Return the root entries (observations, done flags, state) after a reset.

        Args:
            current: Root entries of the elements that are not reset; needed with `mask`.
            mask: Bool ``[*B, 1]``, the elements to reset; all of them if None.
        """
        ...

    def step_leaves(self, root: Leaves) -> Leaves:
        """Return what a step writes under ``next``, keyed without the ``next``: observations, reward, flags."""
        ...


@runtime_checkable
class Env(Protocol):
    """An environment: specs, and steps from TensorDict to TensorDict."""

    batch_size: torch.Size

    @property
    def observation_spec(self) -> Composite:
        """What resets and steps write besides rewards and done flags, with the batch."""
        ...

    @property
    def full_action_spec(self) -> Composite:
        """All actions, keyed as `step` reads them."""
        ...

    @property
    def full_reward_spec(self) -> Composite:
        """All rewards, keyed as `step` writes them under ``next``."""
        ...

    @property
    def full_done_spec(self) -> Composite:
        """All done flags: ``done``, ``terminated``, and ``truncated`` where it exists."""
        ...

    def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Start episodes: all, or those marked in ``_reset`` (bool ``[*B, 1]``)."""
        ...

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read the action at the root, write the outcome under ``next``, return the same TensorDict."""
        ...

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """`step`, and the root of the following step, in which finished episodes have been reset."""
        ...

    def set_seed(self, seed: int) -> int:
        """Make what follows repeatable; returns the seed for the next environment."""
        ...

    def close(self) -> None:
        """Release what the environment holds. May be called twice."""
        ...


def missing_env_members(env: object) -> list[str]:
    """Return the members of `Env` that an object lacks, in the order of the protocol; empty for an environment.

    Example:
        >>> missing_env_members(object())[:3]
        ['batch_size', 'observation_spec', 'full_action_spec']
    """
    members = [name for name in (*Env.__annotations__, *vars(Env)) if not name.startswith("_")]
    return [name for name in members if not hasattr(env, name)]


class Transform(Protocol):
    """Any callable from TensorDict to TensorDict.

    An environment calls it with the entries of a reset, and after a step with those that the step wrote, *without*
    ``next``: there the reward is ``"reward"``, and missing after a reset. A replay buffer calls it with a batch, where
    the reward is ``("next", "reward")``.

    These methods are optional, and looked up by name. A replay buffer calls them:

    - ``inv(td)``: the other direction, called on each batch before it is written. Returns the rows to write, None or
      an empty TensorDict if there are none. It changes no tensor of `td` in place;
    - ``has_inverse()``: false if ``inv`` changes nothing, so that it is not called;
    - ``state_dict()``, ``load_state_dict(state)``: of a transform with ``inv``, its memory as tensors and plain
      containers; part of the state of the buffer, and restored if a batch cannot be written;
    - ``empty()``: the buffer was emptied: discard rows that are held back.

    Example:
        >>> from tensordict import TensorDict
        >>> class Half:  # stores x in half precision
        ...     def __call__(self, td):
        ...         return td.set("x", td["x"].float())
        ...
        ...     def inv(self, td):
        ...         return td.copy().set("x", td["x"].half())
        >>> Half().inv(TensorDict(x=torch.ones(3), batch_size=[3]))["x"].dtype
        torch.float16
    """

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase: ...


class Logger(Protocol):
    """Record of the metrics of a run.

    The target of a component of kind ``logger`` is called as ``target(folder, resume_step=None)`` with the folder of
    the run as a `pathlib.Path`. `resume_step` is an int where a run continues: the frames from which it does, so that
    rows of later steps, which an earlier start may have written, are dropped.
    """

    def log_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record values at `step` (frames)."""
        ...

    def close(self) -> None:
        """Flush. May be called twice."""
        ...


class Estimator(Protocol):
    """Adds ``advantage`` and ``value_target`` to a batch that is in time order."""

    contract: Contract

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase: ...


class Loss(Protocol):
    """Reads a batch, returns scalars: ``loss_*`` to be summed and minimized, and detached diagnostics."""

    contract: Contract

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase: ...


class LoweredModule(Protocol):
    """A module as a plain call: the leaves under `in_keys` in order, to those under `out_keys` in order."""

    @property
    def in_keys(self) -> Sequence[NestedKey]: ...
    @property
    def out_keys(self) -> Sequence[NestedKey]: ...
    def __call__(self, *leaves: Tensor) -> tuple[Tensor, ...]: ...


class Policy(Protocol):
    """Reads observations, writes actions, in place."""

    @property
    def in_keys(self) -> Sequence[NestedKey]: ...
    @property
    def out_keys(self) -> Sequence[NestedKey]: ...
    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase: ...


class Storage(Protocol):
    """Rows of experience by index. The first batch fixes what a row looks like."""

    @property
    def max_size(self) -> int:
        """Capacity in rows."""
        ...

    def __len__(self) -> int: ...
    def count(self, data: Any) -> int:
        """Count the rows of a batch; they are not compared with what is stored.

        Raises:
            RLError: If `data` is no batch of rows.
        """
        ...

    def get(self, index: Tensor | int | slice) -> Any:
        """Return the rows under `index`, stacked or as a list; one row for an int. A copy, never a view.

        Raises:
            IndexError: If an index is outside of what is stored.
        """
        ...

    def set(self, index: Tensor | int | slice, data: Any) -> None:
        """Write rows. Everything is checked before anything is written.

        Raises:
            RLError: If a key is missing or new, a shape or dtype differs, or the numbers of rows and indices do.
            IndexError: If an index is outside ``[0, max_size)``, or rows before it would stay unwritten.
        """
        ...

    def empty(self) -> None:
        """Remove all rows; the layout (keys, shapes, dtypes) stays."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Sampler(Protocol):
    """Selects the rows of a batch.

    A class needs the members below. `rl.replay.SamplerBase` adds further ones with defaults that fit most samplers; of
    a class that does not inherit from it, those that it defines are used:

    - ``attach(storage)``: called when the buffer is constructed and after a state was loaded;
    - ``admit(data)``: called before a batch is written; raises if the sampler cannot use it;
    - ``expired(count)``: called before a batch is written; returns up to `count` rows, int64, that the writer may
      overwrite first, or None;
    - ``postprocess(data, info)``: called after the rows of a sample were gathered and collated; returns the batch.
      `info` is that of `sample` with ``index``; the method may change both, and what it leaves in `info` is returned to
      the user. Without it, a `TensorDictReplayBuffer` writes each tensor of `info` into the batch;
    - ``replaced(index, data)``: called after stored rows were replaced; `extended` is called without it;
    - ``patched(keys)``: called after entries of some stored rows were replaced;
    - ``check_priority(priority, rows)``: called before rows with priorities are written; returns priorities ``[rows]``;
    - ``available(storage)``: number of rows that may still be sampled, which is the length of the buffer;
    - ``max_capacity``: largest capacity of a storage;
    - ``batch_multiple``: number that every batch size is a multiple of;
    - ``prefetchable``: whether sampled batches may be discarded.

    The info of a sample is plain data: tensors, numbers, strings. If it has ``runs``, int64 ``[m]``, the sample is m
    runs of equally many adjacent rows that begin there, and the buffer may copy complete runs.

    Example:
        >>> import torch
        >>> class Newest:  # the last rows; together with the other methods of the protocol
        ...     def sample(self, storage, batch_size, *, generator=None):
        ...         rows = torch.arange(len(storage) - batch_size, len(storage))
        ...         return rows, {"age": len(storage) - 1 - rows}
        ...
        ...     def postprocess(self, data, info):
        ...         return data.set("age", info["age"])
        >>> index, info = Newest().sample(range(10), 3)
        >>> index, info["age"]
        (tensor([7, 8, 9]), tensor([2, 1, 0]))
    """

    @property
    def ran_out(self) -> bool:
        """Whether the last sample ended a pass over the storage; false with replacement."""
        ...

    def sample(
        self, storage: Storage, batch_size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Sample indices int64 ``[batch_size]``, and a dict with more about them (``priority_weight``, ...).

        The last batch of a pass may be smaller. All randomness comes from `generator`, or from the global
        one if it is None.

        Raises:
            ContractError: If the storage is empty.
            ArgumentError: If `batch_size` is below 1.
        """
        ...

    def extended(self, index: Tensor, data: Any) -> None:
        """Rows `index` were just written with `data`."""
        ...

    def update_priority(self, index: Tensor, priority: Tensor) -> None:
        """Set new priorities; a sampler without priorities raises.

        Raises:
            ContractError: If there are no priorities.
        """
        ...

    def restart(self) -> None:
        """Begin a new pass with the next sample; do nothing with replacement."""
        ...

    def empty(self) -> None:
        """Reset the sampler after the storage was emptied."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Writer(Protocol):
    """Chooses where new rows go.

    A class needs the members below. `rl.replay.WriterBase` adds further ones with defaults; of a class that does not
    inherit from it, those that it defines are used:

    - ``attach(storage)``: called when a buffer is constructed and after a state was loaded;
    - ``select(storage, data)``: called before `claim`; returns the positions, int64 ``[m]``, of the rows of a batch
      that are written, or None for all. `claim` is called for these only;
    - ``reuse(rows)``: called before `claim` with rows, int64, that the sampler has consumed; the next claim starts with
      them;
    - ``run``: slice of the last claim if its rows are adjacent, else None;
    - ``rewritten(index)``: called after stored rows were replaced in place;
    - ``tracks_generations``: whether ``generations_of(index)`` returns how often rows were overwritten;
    - ``cursor``: row that is written next.
    """

    def claim(self, storage: Storage, count: int) -> Tensor:
        """Return indices ``[count]`` int64, all different, for `count` new rows; the cursor stays.

        Raises:
            RLError: If the rows cannot be placed.
        """
        ...

    def extended(self, index: Tensor, data: Any) -> None:
        """Rows were just written at the claimed `index`: move on."""
        ...

    def empty(self) -> None:
        """Prepare for an emptied storage: start again, or raise."""
        ...

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
