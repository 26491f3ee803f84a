"""CPU time of the physics of a vector step: `MujocoEnv` against the pool of ``mujoco.rollout``, from the same states.

Both use one thread. Ours also computes the forces on bodies that observations contain; the pool returns states alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
from mujoco import rollout

from rl.envs import HalfCheetahEnv, HumanoidEnv

STEPS, COUNT = 400, 16


def timed(step: Callable[[], object]) -> float:
    """Microseconds of CPU time."""
    start = time.process_time()
    step()
    return (time.process_time() - start) * 1e6


def compare(make: Callable[..., Any]) -> tuple[float, float]:
    """Medians of the pool and of ours."""
    env = make(COUNT, num_threads=1)
    env.set_seed(0)
    model, skip, kind = env.model, env.frame_skip, mujoco.mjtState.mjSTATE_FULLPHYSICS
    leaf = env.lowered()
    root = leaf.reset_leaves()
    pool, scratch = rollout.Rollout(nthread=0), [mujoco.MjData(model)]
    states, start = np.zeros((COUNT, mujoco.mj_stateSize(model, kind))), np.zeros((COUNT, model.nv))
    after, sensors = np.zeros((COUNT, skip, states.shape[1])), np.zeros((COUNT, skip, model.nsensordata))
    pairs: list[tuple[float, float]] = []
    for _ in range(STEPS):
        root["action"] = env.action_spec.rand()
        action = root["action"].numpy()
        for state, warm, data in zip(states, start, env.data, strict=True):
            mujoco.mj_getState(model, data, state, kind)
            warm[:] = data.qacc_warmstart

        def theirs(action: Any = action) -> None:
            control = np.repeat(action.astype(np.float64)[:, None], skip, 1)
            pool.rollout(
                model, scratch, states, control, nstep=skip, initial_warmstart=start, state=after, sensordata=sensors
            )

        def ours(action: Any = action) -> None:
            for data, row in zip(env.data, action, strict=True):
                data.ctrl[:] = row
                mujoco.mj_step(model, data, nstep=skip)
                mujoco.mj_rnePostConstraint(model, data)

        pairs.append((timed(theirs), timed(ours)))
        for state, warm, data in zip(states, start, env.data, strict=True):  # back to where both began
            mujoco.mj_setState(model, data, state, kind)
            data.qacc_warmstart[:] = warm
        root = leaf.step_leaves(root)
        if root["done"].any():
            root = leaf.reset_leaves(root, root["done"])
    theirs_us, ours_us = (statistics.median(column) for column in zip(*pairs[20:], strict=True))
    return theirs_us, ours_us


def main() -> None:
    for make in (HalfCheetahEnv, HumanoidEnv):
        theirs, ours = compare(make)
        print(f"{make.__name__} x {COUNT}: rollout {theirs:.0f} us, ours {ours:.0f} us, ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
