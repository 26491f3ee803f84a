"""Stepping of simulators with Gymnasium's interface on tensors; nothing here imports Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import CheckpointError, RLError, SpecError
from rl.core.interfaces import Leaves
from rl.core.keys import NestedKey, key_str
from rl.core.specs import TensorSpec
from rl.envs.base._checks import warn_not_restorable
from rl.envs.base._leaf import can_write_rows, write_rows
from rl.envs.gym._leaves import SpaceLeaf, nest, part_of


class Record:
    """Record of one episode: how it began, and its actions.

    Args:
        seed: The seed of its reset, or None.
        rng: The state of the simulator's generator before its reset, if there was no seed.
        options: Options of its reset, or None.
    """

    __slots__ = ("actions", "options", "rng", "seed")

    def __init__(
        self, seed: int | None = None, rng: dict[str, Any] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        self.seed, self.rng, self.options = seed, rng, options
        self.actions: list[Any] = []

    def pack(self) -> dict[str, Any]:
        """Return the record as tensors and plain containers."""
        return {
            "seed": self.seed,
            "rng": None if self.rng is None else pack_rng(self.rng),
            "actions": _pack_value(self.actions),
            "options": _pack_value(self.options),
        }

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Record:
        """Return the record that `pack` wrote."""
        record = cls(packed["seed"], None if packed["rng"] is None else unpack_rng(packed["rng"]))
        record.actions = _unpack_value(packed["actions"])
        record.options = _unpack_value(packed.get("options"))
        return record


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts, arrays and plain containers, so that `Record.pack` keeps it."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic)


def pack_rng(state: Any) -> Any:
    """Return a numpy generator's state without integers of more than 64 bits and without arrays.

    Example:
        >>> pack_rng({"state": 2**100, "has_uint32": 0})
        {'state': {'int': '1267650600228229401496703205376'}, 'has_uint32': 0}
    """
    if isinstance(state, dict):
        return {key: pack_rng(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"ints": [str(value) for value in state.tolist()], "dtype": str(state.dtype)}
    if isinstance(state, int) and not isinstance(state, bool) and abs(state) >= 2**63:
        return {"int": str(state)}
    return state


def unpack_rng(packed: Any) -> Any:
    """Return the state that `pack_rng` wrote."""
    if not isinstance(packed, dict):
        return packed
    if set(packed) == {"int"}:
        return int(packed["int"])
    if set(packed) == {"ints", "dtype"}:
        return np.array([int(value) for value in packed["ints"]], dtype=packed["dtype"])
    return {key: unpack_rng(value) for key, value in packed.items()}


def _pack_value(value: Any) -> Any:
    if isinstance(value, list):
        if value and all(isinstance(one, np.ndarray) for one in value):
            return {"stack": torch.from_numpy(np.stack(value))}
        return [_pack_value(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_pack_value(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": {key: _pack_value(one) for key, one in value.items()}}
    if isinstance(value, np.ndarray):
        return {"array": torch.from_numpy(value.copy())}
    return value.item() if isinstance(value, np.generic) else value


def _unpack_value(packed: Any) -> Any:
    if isinstance(packed, list):
        return [_unpack_value(one) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, inner),) = packed.items()
    if kind == "stack":
        return list(inner.cpu().numpy().copy())
    if kind == "tuple":
        return tuple(_unpack_value(one) for one in inner)
    if kind == "array":
        return inner.cpu().numpy().copy()
    return {key: _unpack_value(one) for key, one in inner.items()}


_REWARD, _FLAG = np.dtype(np.float32), np.dtype(np.bool_)
_ENDS = ("done", "terminated", "truncated")

Outcome = tuple[Any, float, bool, bool, dict[str, Any]]


class Codec:
    """Conversion between the values of a simulator and tensors by key.

    Args:
        observations: Leaves of the observation space.
        actions: Leaves of the action space.
        infos: Specs of the entries of ``info`` that are written, by name.
        batched: Whether tensors have the batch ``[n]``; if not there is one element, and no batch.
        device: Device of the tensors; the CPU if None.
        owner: Name of the simulator, for messages.
    """

    def __init__(
        self,
        observations: Sequence[SpaceLeaf],
        actions: Sequence[SpaceLeaf],
        infos: Mapping[str, TensorSpec],
        *,
        batched: bool,
        device: torch.device | None,
        owner: str,
    ) -> None:
        self.owner = owner
        self.observations, self.actions, self.infos, self.batched = observations, actions, infos, batched
        self.device = None if device is None or device.type == "cpu" else device
        self._paths = [place.path for place in actions]
        self._seen_paths = [place.path for place in observations]
        self.encode_one: Callable[[Any], Leaves] = self._encode_one_of_many
        if len(observations) == 1 and not observations[0].path and observations[0].spec.dtype is not None:
            key, encode = observations[0].key, observations[0].encode_one
            self.encode_one = lambda value: {key: torch.from_numpy(encode(value))}
        elif all(len(place.path) == 1 and place.spec.dtype is not None for place in observations):
            parts = [(place.path[0], place.key, place.encode_one) for place in observations]

            def encode_parts(value: Any) -> Leaves:
                try:
                    return {key: torch.from_numpy(encode(value[name])) for name, key, encode in parts}
                except (KeyError, IndexError, TypeError):
                    return self.encode((value,))  # says what is wrong

            self.encode_one = encode_parts
        self.decode_one: Callable[[Any], Any] = self._decode_one_of_many
        if len(actions) == 1 and not actions[0].path:
            act, decode = actions[0].key, actions[0].decode_one
            self.decode_one = lambda root: decode(root[act])

    def __reduce__(self) -> tuple[Any, ...]:
        return _codec, (self.observations, self.actions, self.infos, self.batched, self.device, self.owner)

    def _encode_one_of_many(self, value: Any) -> Leaves:
        return self.encode((value,))

    def _decode_one_of_many(self, root: Any) -> Any:
        return self.decode(root)[0]

    def tensor(self, rows: Any) -> Any:
        """Return an array ``[n, *shape]`` as a tensor, without the batch if there is none."""
        if type(rows) is list:  # text
            return rows if self.batched else rows[0]
        tensor = torch.from_numpy(rows if self.batched else rows.reshape(rows.shape[1:]))
        return tensor if self.device is None else tensor.to(self.device)

    def encode(self, values: Sequence[Any]) -> Leaves:
        """Observations of the elements as leaves."""
        if len(self.observations) == 1 and not self.observations[0].path:
            place = self.observations[0]
            return {place.key: self.tensor(place.encode(values))}
        out: Leaves = {}
        for place in self.observations:
            out[place.key] = self.tensor(place.encode([self.part(value, place) for value in values]))
        return out

    def part(self, value: Any, place: SpaceLeaf) -> Any:
        """Return the leaf `place` of an observation.

        Raises:
            SpecError: If the observation has no such entry.
        """
        return part_of(value, place.path, self._seen_paths, self.owner)

    def decode(self, root: Any) -> list[Any]:
        """Return the action of each element, as the simulator takes it."""
        return self.decode_steps(
            root if self.batched else {place.key: root[place.key].unsqueeze(0) for place in self.actions}
        )

    def decode_steps(self, actions: Any) -> list[Any]:
        """Return actions ``[T, ...]`` of one element, as the simulator takes them."""
        columns = [place.decode(actions[place.key]) for place in self.actions]
        if len(columns) == 1 and not self._paths[0]:
            return columns[0]
        return [nest(self._paths, row) for row in zip(*columns, strict=True)]

    def column(self, values: Sequence[Any], dtype: Any) -> Tensor:
        """One number for each element, ``[*B, 1]``."""
        array = _numbers(values, dtype)
        tensor = torch.from_numpy(array.reshape(-1, 1) if self.batched else array.reshape(-1))
        return tensor if self.device is None else tensor.to(self.device)

    def no_ends(self, count: int) -> Leaves:
        """Return the flags of `count` elements whose episodes go on, ``[*B, 1]``."""
        shape = (count, 1) if self.batched else (count,)
        flags = [torch.from_numpy(np.zeros(shape, _FLAG)) for _ in _ENDS]
        return dict(zip(_ENDS, flags if self.device is None else [one.to(self.device) for one in flags], strict=True))

    def rows(self, values: Sequence[Any], dtype: Any) -> Tensor:
        """Return a number or several for each element, ``[*B, k]``."""
        array = _numbers(values, dtype).reshape(len(values), -1)
        tensor = torch.from_numpy(array if self.batched else array[0])
        return tensor if self.device is None else tensor.to(self.device)

    def info_leaves(self, infos: Sequence[Mapping[str, Any]]) -> Leaves:
        """Return the chosen entries of ``info``; zeros where a simulator does not report one."""
        out: dict[NestedKey, Any] = {}
        for name, spec in self.infos.items():
            missing = spec.to_numpy(spec.zero())
            try:
                rows = [spec.to_numpy(spec.encode(info[name])) if name in info else missing for info in infos]
            except RLError as error:
                raise SpecError(
                    f"info entry {name!r} is not as its spec says: {error}; state one that holds every value:"
                    f" info_keys={{{name!r}: Unbounded(...)}}"
                ) from error
            out[name] = self.tensor(np.stack(rows))
        return out


def _codec(observations: Any, actions: Any, infos: Any, batched: bool, device: Any, owner: str) -> Codec:  # noqa: FBT001  pickled so
    return Codec(observations, actions, infos, batched=batched, device=device, owner=owner)


class Simulator:
    """One environment and the state of its episode.

    Args:
        env: A Gymnasium environment, or an object with its ``reset``, ``step``, ``render`` and ``close``.
    """

    __slots__ = ("_step", "env", "idle", "info", "observed", "options", "record", "seed")

    def __init__(self, env: Any) -> None:
        self.env = env
        self._step: Callable[[Any], Any] = env.step  # an `Outcome`, as `step` checks
        self.record = Record()
        self.seed: int | None = None
        self.options: dict[str, Any] | None = None  # for `reset`, if not None
        self.observed: Any = None
        self.info: dict[str, Any] = {}
        self.idle: Any = 0.0  # reward of a simulator that is held

    def generator_state(self) -> dict[str, Any] | None:
        """Return the state of the simulator's generator; None if it has none of Gymnasium's kind."""
        rng = getattr(self.env.unwrapped, "np_random", None)
        return dict(rng.bit_generator.state) if isinstance(rng, np.random.Generator) else None

    def set_generator_state(self, state: dict[str, Any]) -> None:
        """Set the state of the simulator's generator."""
        self.env.unwrapped.np_random.bit_generator.state = state

    def reset(self) -> None:
        """Start a new episode."""
        self.record = Record(self.seed, options=self.options)
        if self.seed is None:
            self.record.rng = self.generator_state()
        seed, self.seed = self.seed, None
        self.observed, self.info = self._begin(seed, self.options)

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, Any]:
        try:
            result = self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=options)
        except TypeError as error:
            if "seed" not in str(error):
                raise
            raise SpecError(
                f"reset of {self._name()} takes no seed ({error}): Gymnasium needs reset(*, seed=None, options=None),"
                " which returns (observation, info)"
            ) from error
        if type(result) is not tuple or len(result) != 2:
            raise SpecError(
                f"reset of {self._name()} returned {_form(result)}: Gymnasium needs the 2 values (observation, info)"
            )
        return result

    def _name(self) -> str:
        return type(getattr(self.env, "unwrapped", self.env)).__name__

    def step(self, action: Any) -> Outcome:
        """Step the environment and record the action."""
        outcome = self._step(action)
        if (
            type(outcome) is not tuple
            or len(outcome) != 5
            or type(outcome[1]) not in _NUMBERS
            or type(outcome[2]) not in _FLAGS
            or type(outcome[3]) not in _FLAGS
        ):
            self._check(outcome)
        self.observed, self.info = outcome[0], outcome[4]
        self.record.actions.append(action)
        return outcome

    def _check(self, outcome: Any) -> None:
        """Reject what is no outcome of a step; the usual types are not passed here.

        Raises:
            SpecError: If there are not five values, or reward or flags are no numbers.
        """
        if not isinstance(outcome, tuple | list) or len(outcome) != 5:
            raise SpecError(
                f"step of {self._name()} returned {_form(outcome)}: Gymnasium needs the 5 values (observation, reward,"
                " terminated, truncated, info). Return terminated and truncated in place of done"
            )
        _, reward, terminated, truncated, _ = outcome
        if not (_is_number(reward) and _is_number(terminated, 1) and _is_number(truncated, 1)):
            raise SpecError(
                f"step of {self._name()} returned reward={reward!r:.40}, terminated={terminated!r:.40},"
                f" truncated={truncated!r:.40}: return a number and two booleans"
            )

    def hold(self) -> Outcome:
        """Return the outcome of an environment that is not stepped."""
        return self.observed, self.idle, False, False, self.info

    def replay(self, record: Record) -> None:
        """Repeat a recorded episode."""
        if record.rng is not None:
            self.set_generator_state(record.rng)
        self.record = record
        self.observed, self.info = self._begin(record.seed, record.options)
        for action in record.actions:
            self.observed, *_, self.info = self._step(action)


def _are_false(flags: Sequence[Any]) -> bool:
    """Whether each flag is False itself, not a number or an array that equals it."""
    return all([one is False for one in flags])  # noqa: C419  a generator takes twice the time


_NUMBERS = frozenset({float, int, np.float32, np.float64})
_FLAGS = frozenset({bool, np.bool_})


def _is_number(value: Any, size: int | None = None) -> bool:
    """Return whether a reward or a flag is a real number or an array of them, of `size` ones if given; no text."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors of another device
        return isinstance(value, torch.Tensor) and size in (None, value.numel())
    return array.dtype.kind in "biuf" and size in (None, array.size)


def _form(result: Any) -> str:
    return f"{len(result)} values" if type(result) is tuple else f"one {type(result).__name__}"


def _numbers(values: Any, dtype: Any) -> Any:
    """Rewards or flags as a fresh array.

    Raises:
        SpecError: If they are no numbers.
    """
    array = np.array(values)
    if array.dtype.kind not in "biuf":
        raise SpecError(f"rewards and done flags of the simulator must be numbers and booleans, got {values!r:.80}")
    return array if array.dtype == dtype else array.astype(dtype)


class GymLeaves:
    """Simulators that are stepped one after the other, each with exact partial resets.

    Args:
        simulators: The simulators; several `GymLeaves` may share one.
        codec: Conversion between their values and tensors.
        pixels: Whether a rendered frame is written under ``pixels``.
    """

    def __init__(self, simulators: Sequence[Simulator], codec: Codec, *, pixels: bool) -> None:
        self.simulators, self.pixels = list(simulators), pixels
        self.use(codec)

    def use(self, codec: Codec) -> None:
        """Convert with `codec` from now on."""
        self.codec, pixels = codec, self.pixels
        self._more = pixels or bool(codec.infos)
        tensors = all(place.spec.dtype is not None for place in codec.observations)
        self._writes_rows = codec.batched and codec.device is None and tensors and not self._more
        self._single = not codec.batched and not self._more and codec.device is None

    @classmethod
    def together(cls, parts: Sequence[GymLeaves]) -> GymLeaves:
        """Return the same simulators as one batch; each part continues to work.

        Args:
            parts: Simulators without a batch, and with equal spaces and entries.
        """
        first = parts[0].codec
        codec = Codec(
            first.observations, first.actions, first.infos, batched=True, device=first.device, owner=first.owner
        )
        return cls([part.simulators[0] for part in parts], codec, pixels=parts[0].pixels)

    def seed(self, seed: int) -> None:
        """Seed the next reset of each: `seed`, `seed` + 1, ..., as Gymnasium's vector environments do."""
        for index, simulator in enumerate(self.simulators):
            simulator.seed = seed + index

    def set_options(self, options: dict[str, Any] | None) -> None:
        """Pass `options` to resets from now on; None for none."""
        for simulator in self.simulators:
            simulator.options = options

    # ---- episodes

    def reset(self, mask: Tensor | None) -> Leaves:
        """Start new episodes, in all or where the mask is true; the other rows hold their last observations."""
        chosen = [True] * len(self.simulators) if mask is None else mask.flatten().tolist()
        for simulator, marked in zip(self.simulators, chosen, strict=True):
            if marked or simulator.observed is None:  # one that was never reset needs an observation too
                simulator.reset()
        leaves = self.codec.encode([simulator.observed for simulator in self.simulators])
        leaves.update(self.codec.no_ends(len(self.simulators)))
        return self._add_more(leaves) if self._more else leaves

    def reset_rows(self, current: Mapping[Any, Tensor], mask: Tensor) -> Leaves | None:
        """Return `current` with new episodes in the mask; None unless all entries are observations on the CPU."""
        if not self._writes_rows:
            return None
        places = self.codec.observations
        if not can_write_rows(current, [place.key for place in places]):
            return None
        chosen = mask.numpy().ravel().nonzero()[0]
        simulators = [self.simulators[index] for index in chosen.tolist()]
        for simulator in simulators:
            simulator.reset()
        fresh = {
            place.key: place.encode([self.codec.part(one.observed, place) for one in simulators])
            if simulators
            else None
            for place in places
        }
        return write_rows(current, mask, chosen, fresh)

    def _step_single(self, root: Any) -> Leaves:
        """`step` for one environment without a batch: the same, without lists."""
        codec, held = self.codec, root.get("_step", None)
        simulator = self.simulators[0]
        moves = held is None or bool(held)
        observation, reward, terminated, truncated, _ = (
            simulator.step(codec.decode_one(root)) if moves else simulator.hold()
        )
        leaves = codec.encode_one(observation)
        flag, from_numpy = _FLAG, torch.from_numpy
        leaves["reward"] = from_numpy(np.array((reward,), _REWARD).reshape(-1))
        if terminated is False and truncated is False:  # at most steps
            leaves["done"] = from_numpy(np.zeros(1, flag))
            leaves["terminated"] = from_numpy(np.zeros(1, flag))
            leaves["truncated"] = from_numpy(np.zeros(1, flag))
            return leaves
        leaves["done"] = from_numpy(np.array((terminated or truncated,), flag).reshape(-1))  # some are arrays of one
        leaves["terminated"] = from_numpy(np.array((terminated,), flag).reshape(-1))
        leaves["truncated"] = from_numpy(np.array((truncated,), flag).reshape(-1))
        return leaves

    def play(self, root: Leaves, actions: Leaves, *, stop: bool) -> tuple[Leaves, Leaves] | None:
        """Take a step with each action, as alternate calls of `step` and `reset` do.

        Args:
            root: Root entries of the first step.
            actions: Actions ``[T, ...]``.
            stop: Whether to stop at the end of an episode; if not, a new one begins, but not after the last step.

        Returns:
            Root entries and entries under ``next`` of the steps ``[T, ...]``; None unless there is one environment
            without a batch, and one observation, on the CPU.

        Raises:
            SpecError: If an observation is not as its space says.
        """
        places = self.codec.observations
        if not self._single or len(places) != 1 or places[0].path:
            return None
        simulator, key, encode = self.simulators[0], places[0].key, places[0].encode_one
        spec, first = places[0].spec, root[key]
        if first.dtype != spec.dtype or first.shape != spec.shape or first.requires_grad:
            return None
        rewards: list[Any] = []
        seen: list[Any] = []
        ends: list[tuple[int, Any, Any]] = []
        starts: list[tuple[int, Any]] = [(0, first.numpy())]
        decoded = self.codec.decode_steps(actions)
        last = len(decoded) - 1
        for step, action in enumerate(decoded):
            observation, reward, terminated, truncated, _ = simulator.step(action)
            seen.append(encode(observation))
            rewards.append(reward)
            if terminated is False and truncated is False:  # at most steps
                continue
            ends.append((step, terminated, truncated))
            if terminated or truncated:
                if stop or step == last:
                    break
                simulator.reset()
                starts.append((step + 1, encode(simulator.observed)))
        for row in (*seen, *[start for _, start in starts]):
            if row.shape != spec.shape:
                raise SpecError(
                    f"{self.codec.owner} returned {key_str(key)} of shape {list(row.shape)}, expected"
                    f" {list(spec.shape)}: correct the space, or what the simulator returns"
                )
        return self._columns(root, key, seen, starts, rewards, ends)

    def _columns(
        self,
        root: Leaves,
        key: NestedKey,
        seen: list[Any],
        starts: list[tuple[int, Any]],
        rewards: list[Any],
        ends: list[tuple[int, Any, Any]],
    ) -> tuple[Leaves, Leaves]:
        """Return what `play` has recorded as root entries and entries under ``next``."""
        count = len(seen)
        after = np.array(seen)
        before = np.empty_like(after)
        before[1:] = after[:-1]
        for step, start in starts:
            before[step] = start
        outcome: dict[str, Any] = {name: np.zeros((count, 1), _FLAG) for name in _ENDS}
        begun: dict[str, Any] = {name: np.zeros((count, 1), _FLAG) for name in _ENDS}
        for name in _ENDS:
            begun[name][0] = root[name].numpy()
        for step, terminated, truncated in ends:
            for name, flag in zip(_ENDS, (terminated or truncated, terminated, truncated), strict=True):
                outcome[name][step] = np.array((flag,), _FLAG).reshape(-1)
        if _NUMBERS.issuperset(map(type, rewards)):
            returned = np.array(rewards, _REWARD).reshape(count, -1)
        else:  # some are arrays
            returned = np.stack([np.array((reward,), _REWARD).reshape(-1) for reward in rewards])
        from_numpy = torch.from_numpy
        roots: Leaves = {key: from_numpy(before), **{name: from_numpy(array) for name, array in begun.items()}}
        nexts: Leaves = {key: from_numpy(after), "reward": from_numpy(returned)}
        return roots, {**nexts, **{name: from_numpy(array) for name, array in outcome.items()}}

    def step(self, root: Any) -> Leaves:
        """Step each simulator; those that ``_step`` excludes are held, and their rows mean nothing."""
        if self._single:
            return self._step_single(root)
        codec, simulators = self.codec, self.simulators
        actions = codec.decode(root)
        active = root.get("_step", None)
        if active is None:
            outcomes = [simulator.step(action) for simulator, action in zip(simulators, actions, strict=True)]
        else:
            rows = zip(simulators, actions, active.flatten().tolist(), strict=True)
            outcomes = [simulator.step(action) if moves else simulator.hold() for simulator, action, moves in rows]
        observations, rewards, terminations, truncations, _ = zip(*outcomes, strict=True)
        leaves = codec.encode(observations)
        leaves["reward"] = codec.rows(rewards, np.float32)
        if _are_false(terminations) and _are_false(truncations):  # at most steps
            leaves.update(codec.no_ends(len(outcomes)))
        else:
            ends = [one or other for one, other in zip(terminations, truncations, strict=True)]
            for name, flags in zip(_ENDS, (ends, terminations, truncations), strict=True):
                leaves[name] = codec.column(flags, np.bool_)
        return self._add_more(leaves) if self._more else leaves

    def _add_more(self, leaves: Leaves) -> Leaves:
        leaves.update(self.codec.info_leaves([simulator.info for simulator in self.simulators]))
        if self.pixels:
            leaves["pixels"] = self.codec.tensor(np.stack([simulator.env.render() for simulator in self.simulators]))
        return leaves

    # ---- exact continuation

    def state_dict(self) -> dict[str, Any]:
        """Return how each episode began and its actions, and the last observations, to compare with."""
        begun = all(simulator.observed is not None for simulator in self.simulators)
        records = [simulator.record for simulator in self.simulators]
        if begun and not all(record.seed is not None or record.rng is not None for record in records):
            return {"restorable": False}
        if begun and not all(is_plain(record.options) for record in records):
            return {"restorable": False}
        return {
            "restorable": True,
            "episodes": [record.pack() for record in records] if begun else None,
            "seeds": [simulator.seed for simulator in self.simulators],
            "observed": [self._flat(simulator) for simulator in self.simulators] if begun else None,
        }

    def _flat(self, simulator: Simulator) -> list[Any]:
        values = [(place, self.codec.part(simulator.observed, place)) for place in self.codec.observations]
        rows = [place.encode([value]) for place, value in values]
        return [row if isinstance(row, list) else torch.from_numpy(row) for row in rows]

    def load_state_dict(self, state: Mapping[str, Any], owner: str) -> bool:
        """Repeat the recorded episodes.

        Returns:
            Whether that led to the recorded observations.

        Raises:
            CheckpointError: If the number of environments differs.
        """
        if not state.get("restorable", False):
            warn_not_restorable(owner)
            return False
        if len(state["seeds"]) != len(self.simulators):
            raise CheckpointError(
                f"{owner} has {len(self.simulators)} environments, the state has {len(state['seeds'])}: make as many"
            )
        if state["episodes"] is not None:
            recorded = zip(self.simulators, state["episodes"], state["observed"], strict=True)
            for index, (simulator, packed, observed) in enumerate(recorded):
                simulator.replay(Record.unpack(packed))
                if not all(_equal(a, b) for a, b in zip(self._flat(simulator), observed, strict=True)):
                    warn_not_restorable(
                        owner,
                        f"the simulator of element {index} took another course when its actions were repeated; it has"
                        " randomness or state outside of its own generator",
                    )
                    return False
        for simulator, seed in zip(self.simulators, state["seeds"], strict=True):
            simulator.seed = seed
        return True

    def close(self) -> None:
        """Close the simulators."""
        for simulator in self.simulators:
            simulator.env.close()


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return np.array_equal(left.numpy(), right.cpu().numpy(), equal_nan=left.is_floating_point())
    return left == right
