"""Claim: 4,096 copies of a native environment step within 1.3 x of their bare arithmetic.

Both implementations take the same 200 steps with the same actions, interleaved: the leaf form of the environment with
its checks and dictionaries, and the formulas on bare tensors. Prints medians in microseconds a step and the ratio.
"""

from __future__ import annotations

import statistics
import time

import torch

from rl.envs import CartPoleEnv, MountainCarEnv
from rl.envs.native import _classic_control as control

COPIES, STEPS, ROUNDS = 4096, 200, 15


def bare_cartpole(state: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, speed, angle, turn = state.unbind(-1)
    push = action.float() * (2 * control.CARTPOLE_FORCE) - control.CARTPOLE_FORCE
    cos, sin = angle.cos(), angle.sin()
    moment, total = control.POLE * control.HALF_LENGTH, control.CART + control.POLE
    pull = (push + moment * turn.square() * sin) / total
    angle_acc = (control.CARTPOLE_GRAVITY * sin - cos * pull) / (
        control.HALF_LENGTH * (4 / 3 - control.POLE * cos.square() / total)
    )
    acc = pull - moment * angle_acc * cos / total
    dt = control.CARTPOLE_DT
    state = torch.stack([x + dt * speed, speed + dt * acc, angle + dt * turn, turn + dt * angle_acc], -1)
    over = (state[:, 0].abs() > control.X_LIMIT) | (state[:, 2].abs() > control.ANGLE_LIMIT)
    return state, torch.ones(COPIES, 1), over


def bare_car(state: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    place, speed = state.unbind(-1)
    push = action.float() - 1
    speed = (speed + push * control.MOUNTAIN_CAR_FORCE + (3 * place).cos() * -control.MOUNTAIN_CAR_GRAVITY).clamp(
        -control.TOP_SPEED, control.TOP_SPEED
    )
    place = (place + speed).clamp(control.LEFT, control.RIGHT)
    speed = torch.where((place == control.LEFT) & (speed < 0), 0.0, speed)
    return torch.stack([place, speed], -1), torch.full((COPIES, 1), -1.0), (place >= control.GOAL) & (speed >= 0)


def main() -> None:
    torch.set_num_threads(1)
    for kind, bare, n in ((CartPoleEnv, bare_cartpole, 2), (MountainCarEnv, bare_car, 3)):
        env = kind([COPIES], seed=0, categorical_action_encoding=True)
        leaf = env.lowered()
        start = leaf.reset_leaves()
        actions = torch.randint(n, (STEPS, COPIES))
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            root = start
            for action in actions:
                root = leaf.step_leaves({"state": root["state"], "action": action})
            middle = time.perf_counter()
            state = start["state"]
            for action in actions:
                state, _, _ = bare(state, action)
            ours.append((middle - begin) / STEPS * 1e6)
            theirs.append((time.perf_counter() - middle) / STEPS * 1e6)
        a, b = statistics.median(ours), statistics.median(theirs)
        print(f"{kind.__name__}: {a:.0f} us a step, bare arithmetic {b:.0f} us, ratio {a / b:.2f}")


if __name__ == "__main__":
    main()
