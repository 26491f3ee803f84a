"""Stepping a list of Gymnasium environments, from tensors to tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.core.errors import CheckpointError, ContractError, RLError, SpecError
from rl.core.interfaces import Leaves
from rl.core.keys import NestedKey, key_str
from rl.core.specs import TensorSpec
from rl.envs.base._resume import warn_not_restorable
from rl.envs.gym._record import Record
from rl.envs.gym._spaces import Place, nest

__all__ = ["Codec", "GymLeaves"]

_REWARD, _FLAG = np.dtype(np.float32), np.dtype(np.bool_)

Outcome = tuple[Any, float, bool, bool, dict[str, Any]]


class Codec:
    """Between the values of a simulator and tensors by key.

    Args:
        observations: leaves of the observation space.
        actions: leaves of the action space.
        infos: specs of the entries of ``info`` that are taken along, by name.
        batched: whether tensors have the batch ``[n]``; if not there is one element, and no batch.
        device: where tensors go; they stay on the CPU if None.
    """

    def __init__(
        self,
        observations: Sequence[Place],
        actions: Sequence[Place],
        infos: Mapping[str, TensorSpec],
        *,
        batched: bool,
        device: torch.device | None,
    ) -> None:
        self.observations, self.actions, self.infos, self.batched = observations, actions, infos, batched
        self.device = None if device is None or device.type == "cpu" else device
        self._paths = [place.path for place in actions]
        self.encode_one: Callable[[Any], Leaves] = self._encode_one_of_many
        if len(observations) == 1 and not observations[0].path and observations[0].spec.dtype is not None:
            key, encode = observations[0].key, observations[0].encode_one
            self.encode_one = lambda value: {key: torch.from_numpy(encode(value))}
        self.decode_one: Callable[[Any], Any] = self._decode_one_of_many
        if len(actions) == 1 and not actions[0].path:
            act, decode = actions[0].key, actions[0].decode_one
            self.decode_one = lambda root: decode(root[act])

    def _encode_one_of_many(self, value: Any) -> Leaves:
        return self.encode((value,))

    def _decode_one_of_many(self, root: Any) -> Any:
        return self.decode(root)[0]

    def tensor(self, rows: Any) -> Any:
        """An array ``[n, *shape]`` as a tensor, without the batch if there is none."""
        if type(rows) is list:  # what is not a tensor at all
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
            out[place.key] = self.tensor(place.encode([_at(value, place.path) for value in values]))
        return out

    def decode(self, root: Any) -> list[Any]:
        """The action of each element, as the simulator takes it."""
        columns = []
        for place in self.actions:
            action = root[place.key]
            columns.append(place.decode(action if self.batched else action.unsqueeze(0)))
        if len(columns) == 1 and not self._paths[0]:
            return columns[0]
        return [nest(self._paths, row) for row in zip(*columns, strict=True)]

    def column(self, values: Sequence[Any], dtype: Any) -> Tensor:
        """One number for each element, ``[*B, 1]``."""
        array = np.array(values, dtype=dtype)
        tensor = torch.from_numpy(array.reshape(-1, 1) if self.batched else array)
        return tensor if self.device is None else tensor.to(self.device)

    def info_leaves(self, infos: Sequence[Mapping[str, Any]]) -> Leaves:
        """The chosen entries of ``info``; zeros where a simulator does not report one."""
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


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


class GymLeaves:
    """Environments that are stepped one after the other, each with exact partial resets.

    Args:
        envs: Gymnasium environments.
        codec: between their values and tensors.
        frame_skip: how often each action is repeated; rewards are added up.
        pixels: whether a rendered frame is taken along, under ``pixels``.
    """

    def __init__(self, envs: Sequence[Any], codec: Codec, *, frame_skip: int, pixels: bool) -> None:
        self.envs, self.codec, self.pixels = list(envs), codec, pixels
        self._steps: list[Callable[[Any], Outcome]] = [
            env.step if frame_skip == 1 else _Skipping(env, frame_skip) for env in self.envs
        ]
        self._records = [Record() for _ in self.envs]
        self._now: list[Any] = [None] * len(self.envs)
        self._seeds: list[int | None] = [None] * len(self.envs)
        self._infos = [{} for _ in self.envs]
        self._more = pixels or bool(codec.infos)
        tensors = all(place.spec.dtype is not None for place in codec.observations)
        #: whether every entry is a CPU tensor ``[n, ...]`` of the observation space, which `reset_rows` relies on
        self.plain = codec.batched and codec.device is None and tensors and not self._more
        if not codec.batched and not self._more and codec.device is None:
            self.step = self._step_one

    def seed(self, seed: int) -> None:
        """Seed the next reset of each: `seed`, `seed` + 1, ..., as Gymnasium's vector environments do."""
        self._seeds = [seed + index for index in range(len(self.envs))]

    # ---- episodes

    def _restart(self, index: int) -> None:
        env, seed = self.envs[index], self._seeds[index]
        record = self._records[index] = Record(seed)
        if seed is None:
            rng = getattr(env.unwrapped, "np_random", None)
            record.rng = dict(rng.bit_generator.state) if isinstance(rng, np.random.Generator) else None
        self._seeds[index] = None
        self._now[index], self._infos[index] = env.reset(seed=seed)

    def reset(self, mask: Tensor | None) -> Leaves:
        """Start new episodes, in all or where the mask is true; the other rows hold what they hold."""
        chosen = range(len(self.envs)) if mask is None else mask.flatten().nonzero().flatten().tolist()
        for index in chosen:
            self._restart(index)
        for index, value in enumerate(self._now):
            if value is None:  # never reset before: its row needs something of the right form
                self._restart(index)
        leaves = self.codec.encode(self._now)
        count = len(self.envs)
        for name in ("done", "terminated", "truncated"):
            leaves[name] = self.codec.column([False] * count, np.bool_)
        return self._add_more(leaves) if self._more else leaves

    def reset_rows(self, current: Mapping[Any, Tensor], mask: Tensor) -> Leaves:
        """`current` with new episodes where the mask is true; see `plain`."""
        chosen = [index for index, ended in enumerate(mask.flatten().tolist()) if ended]
        kept = ~mask
        try:
            leaves: Leaves = {place.key: current[place.key].clone() for place in self.codec.observations}
            for name in ("done", "terminated", "truncated"):
                leaves[name] = current[name] & kept
        except KeyError as error:
            raise ContractError(
                f"a partial reset reads {key_str(error.args[0])} of what is not reset, which is not in the input (keys:"
                f" {list(current)}); pass the data of the last step along with the mask"
            ) from None
        for index in chosen:
            self._restart(index)
        for place in self.codec.observations if chosen else ():
            fresh, rows = place.encode([_at(self._now[index], place.path) for index in chosen]), leaves[place.key]
            if rows.requires_grad:  # those that stay keep their gradient
                rows[chosen] = torch.from_numpy(fresh).to(rows.dtype)
            else:
                rows.numpy()[chosen] = fresh
        return leaves

    def _step_one(self, root: Any) -> Leaves:
        """`step` for one environment without a batch: the same, without lists."""
        codec = self.codec
        action = codec.decode_one(root)
        observation, reward, terminated, truncated, self._infos[0] = self._steps[0](action)
        self._records[0].actions.append(action)
        self._now[0] = observation
        leaves = codec.encode_one(observation)
        flag, from_numpy = _FLAG, torch.from_numpy
        leaves["reward"] = from_numpy(np.array((reward,), _REWARD))
        leaves["done"] = from_numpy(np.array((terminated or truncated,), flag))
        leaves["terminated"] = from_numpy(np.array((terminated,), flag))
        leaves["truncated"] = from_numpy(np.array((truncated,), flag))
        return leaves

    def step(self, root: Any) -> Leaves:
        """Step each environment; those that ``_step`` excludes stay as they are, and their rows mean nothing."""
        codec = self.codec
        actions = codec.decode(root)
        active = root.get("_step", None)
        if active is None:
            outcomes = [step(action) for step, action in zip(self._steps, actions, strict=True)]
            for record, action in zip(self._records, actions, strict=True):
                record.actions.append(action)
        else:
            outcomes = self._step_some(actions, active.flatten().tolist())
        now, rewards, terminations, truncations, infos = zip(*outcomes, strict=True)
        self._now, self._infos = list(now), list(infos)
        leaves = codec.encode(now)
        leaves["reward"] = codec.column(rewards, np.float32)
        terminated = codec.column(terminations, np.bool_)
        truncated = codec.column(truncations, np.bool_)
        leaves["done"] = terminated | truncated
        leaves["terminated"] = terminated
        leaves["truncated"] = truncated
        return self._add_more(leaves) if self._more else leaves

    def _step_some(self, actions: Sequence[Any], active: Sequence[bool]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for index, (action, moves) in enumerate(zip(actions, active, strict=True)):
            if moves:
                outcomes.append(self._steps[index](action))
                self._records[index].actions.append(action)
            else:
                outcomes.append((self._now[index], 0.0, False, False, self._infos[index]))
        return outcomes

    def _add_more(self, leaves: Leaves) -> Leaves:
        leaves.update(self.codec.info_leaves(self._infos))
        if self.pixels:
            leaves["pixels"] = self.codec.tensor(np.stack([env.render() for env in self.envs]))
        return leaves

    # ---- exact continuation

    def state_dict(self) -> dict[str, Any]:
        """How each episode began and its actions; what was last observed, to compare with."""
        begun = all(value is not None for value in self._now)
        known = all(record.seed is not None or record.rng is not None for record in self._records)
        if begun and not known:
            return {"restorable": False}
        return {
            "restorable": True,
            "episodes": [record.pack() for record in self._records] if begun else None,
            "seeds": list(self._seeds),
            "observed": [self._flat(index) for index in range(len(self.envs))] if begun else None,
        }

    def _flat(self, index: int) -> list[Any]:
        values = [(place, _at(self._now[index], place.path)) for place in self.codec.observations]
        rows = [place.encode([value]) for place, value in values]
        return [row if isinstance(row, list) else torch.from_numpy(row) for row in rows]

    def load_state_dict(self, state: Mapping[str, Any], who: str) -> bool:
        """Live through the episodes again.

        Returns:
            Whether that led to what was observed then.

        Raises:
            CheckpointError: if the number of environments differs.
        """
        if not state.get("restorable", False):
            warn_not_restorable(who)
            return False
        if len(state["seeds"]) != len(self.envs):
            raise CheckpointError(
                f"{who} has {len(self.envs)} environments, the state has {len(state['seeds'])}: make as many"
            )
        if state["episodes"] is not None:
            for index, (packed, observed) in enumerate(zip(state["episodes"], state["observed"], strict=True)):
                self._replay(index, Record.unpack(packed))
                if not all(_equal(a, b) for a, b in zip(self._flat(index), observed, strict=True)):
                    warn_not_restorable(
                        who,
                        f"the simulator of element {index} took another course when its actions were repeated; it has"
                        " randomness or state outside of its own generator",
                    )
                    return False
        self._seeds = list(state["seeds"])
        return True

    def _replay(self, index: int, record: Record) -> None:
        env = self.envs[index]
        if record.rng is not None:
            env.unwrapped.np_random.bit_generator.state = record.rng
        self._records[index] = record
        self._now[index], self._infos[index] = env.reset(seed=record.seed)
        for action in record.actions:
            self._now[index], *_, self._infos[index] = self._steps[index](action)

    def close(self) -> None:
        """Close them."""
        for env in self.envs:
            env.close()


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return np.array_equal(left.numpy(), right.cpu().numpy(), equal_nan=left.is_floating_point())
    return left == right


class _Skipping:
    """A step that repeats its action; an object, so that a copy of the environment steps its own simulator."""

    def __init__(self, env: Any, times: int) -> None:
        self.env, self.times = env, times

    def __call__(self, action: Any) -> Outcome:
        total = 0.0
        for _ in range(self.times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info  # pyright: ignore[reportPossiblyUnboundVariable]
