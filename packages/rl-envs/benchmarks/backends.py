"""What a vector step of each simulator back end costs over the simulator's own, in microseconds of CPU time.

Ours is the fast path of collectors: `step_leaves` of the environment's leaf form, and `reset_leaves` where episodes
end. Both implementations take the same actions, and are interleaved in one process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import Any

import torch

from rl.core.errors import MissingExtraError
from rl.envs import (
    DMControlEnv,
    EnvPoolEnv,
    GymnaxEnv,
    HalfCheetahEnv,
    HumanoidEnv,
    JumanjiEnv,
    OpenSpielEnv,
    PettingZooEnv,
    SerialEnv,
    VmasEnv,
)

Case = tuple[Callable[[], None], Callable[[], None]]
ROUNDS, STEPS = 15, 50


def ours(env: Any, actions: Iterator[dict[Any, Any]] | None = None) -> Callable[[], None]:
    """A function that takes one vector step, with random actions if there are none."""
    env.set_seed(0)
    leaf = env.lowered()
    if actions is None:
        drawn = [env.full_action_spec.rand() for _ in range(8)]
        actions = cycle([{key: action[key] for key in env.action_keys} for action in drawn])
    root = leaf.reset_leaves()

    def step() -> None:
        nonlocal root
        root.update(next(actions))
        root = leaf.step_leaves(root)
        if root["done"].any():
            root = leaf.reset_leaves(root, root["done"])

    return step


def ours_without_ends(env: Any) -> Callable[[], None]:
    """A function that takes the first step of an environment with pure steps, in which no episode ends."""
    leaf = env.lowered()
    root = {**leaf.reset_leaves(), "action": env.action_spec.rand()}
    return lambda: leaf.step_leaves(root)


def dm_control(task: str, count: int) -> Case:
    env = SerialEnv(count, lambda: DMControlEnv(task))
    from dm_control import suite

    raw = [suite.load(*task.split("-")) for _ in range(count)]
    for one in raw:
        one.reset()
    actions = cycle([env.action_spec.rand().double().numpy() for _ in range(8)])

    def step() -> None:
        for one, action in zip(raw, next(actions), strict=True):
            if one.step(action).last():
                one.reset()

    return step, ours(env)


def dm_control_cheetah() -> Case:
    return dm_control("cheetah-run", 16)


def dm_control_humanoid() -> Case:
    return dm_control("humanoid-run", 1)


def pettingzoo_spread() -> Case:
    env = PettingZooEnv("mpe2/simple_spread")
    import mpe2.simple_spread_v3

    raw = mpe2.simple_spread_v3.parallel_env()
    raw.reset()
    drawn = [env.full_action_spec.rand()["agent", "action"].tolist() for _ in range(8)]
    actions = cycle([dict(zip(raw.agents, action, strict=True)) for action in drawn])

    def step() -> None:
        raw.step(next(actions))
        if not raw.agents:
            raw.reset()

    return step, ours(env)


def pettingzoo_connect_four() -> Case:
    env = PettingZooEnv("classic/connect_four", parallel=False, use_mask=True)
    import pettingzoo

    raw = pettingzoo.make("aec", env.task)
    raw.reset()
    moves = cycle([0, 1, 2, 3, 4, 5, 6])

    def step() -> None:
        raw.step(next(moves))
        for agent in raw.agents:
            raw.observe(agent)
        _, over, _ = raw.rewards, raw.terminations, raw.truncations
        if over[raw.agent_selection]:
            raw.reset()
            for agent in raw.agents:
                raw.observe(agent)

    move = cycle([torch.full((2,), column) for column in range(7)])
    return step, ours(env, ({("player", "action"): column} for column in move))


def vmas(scenario: str, count: int) -> Case:
    env = VmasEnv(scenario, count, max_steps=100)
    import vmas

    raw = vmas.make_env(scenario, count, max_steps=100)
    raw.reset()
    drawn = [env.full_action_spec.rand() for _ in range(8)]
    actions = cycle([list(action["agents", "action"].unbind(1)) for action in drawn])

    def step() -> None:
        done = raw.step(next(actions))[2]
        if done.all():
            raw.reset()
        elif done.any():
            for index in done.nonzero().flatten().tolist():
                raw.reset_at(index, return_observations=False)
            raw.get_from_scenario(get_observations=True, get_rewards=False, get_infos=False, get_dones=False)

    return step, ours(env)


def vmas_balance() -> Case:
    return vmas("balance", 32)


def vmas_transport() -> Case:
    return vmas("transport", 1024)


def envpool(name: str, count: int) -> Case:
    env = EnvPoolEnv(name, count, num_threads=1, categorical_action_encoding=True)
    import envpool

    raw = envpool.make_gymnasium(name, num_envs=count, num_threads=1, seed=0)
    raw.reset()
    space = raw.action_space
    dtype = space.dtype if space.shape else "int32"
    actions = cycle([env.action_spec.rand().numpy().astype(dtype) for _ in range(8)])

    def step() -> None:
        _, _, terminated, truncated, _ = raw.step(next(actions))
        over = (terminated | truncated).nonzero()[0]
        if over.size:  # at once, as ours does; by itself it resets in the next step, which is lost then
            raw.reset(over.astype("int32"))

    return step, ours(env)


def envpool_cartpole() -> Case:
    return envpool("CartPole-v1", 64)


def envpool_cheetah() -> Case:
    return envpool("HalfCheetah-v5", 16)


def envpool_pong() -> Case:
    return envpool("Pong-v5", 8)


def open_spiel(name: str) -> Case:
    env = OpenSpielEnv(name, categorical_actions=True)
    import pyspiel

    game = pyspiel.load_game(name)
    state, moves = game.new_initial_state(), [game.new_initial_state()]
    numbers: list[int] = []
    while not moves[-1].is_terminal():  # the same game over and over, with the first legal move
        numbers.append(moves[-1].legal_actions()[0])
        moves.append(moves[-1].child(numbers[-1]))
    numbers_of_raw = cycle(numbers)

    def step() -> None:
        nonlocal state
        state.apply_action(next(numbers_of_raw))
        for player in range(2):  # what a step has to tell
            state.observation_tensor(player)
            state.legal_actions(player)
        state.rewards()
        if state.is_terminal():
            state = game.new_initial_state()

    choices = cycle([torch.full((2,), number) for number in numbers])
    return step, ours(env, ({("agents", "action"): choice} for choice in choices))


def open_spiel_ttt() -> Case:
    return open_spiel("tic_tac_toe")


def open_spiel_chess() -> Case:
    return open_spiel("chess")


def mujoco_task(name: str, make: Callable[..., Any], count: int) -> Case:
    env = make(count, num_threads=1)
    import gymnasium

    raw = gymnasium.make_vec(name, count)
    raw.reset(seed=0)
    actions = cycle([env.action_spec.rand().numpy() for _ in range(8)])
    return lambda: raw.step(next(actions)), ours(env)


def mujoco_cheetah() -> Case:
    return mujoco_task("HalfCheetah-v5", HalfCheetahEnv, 16)


def mujoco_humanoid() -> Case:
    return mujoco_task("Humanoid-v5", HumanoidEnv, 4)


def gymnax_cartpole(*, ends: bool = True) -> Case:
    env = GymnaxEnv("CartPole-v1", num_envs=1024, categorical_action_encoding=True)
    import gymnax
    import jax

    raw, params = gymnax.make("CartPole-v1")
    advance = jax.jit(jax.vmap(raw.step, in_axes=(0, 0, 0, None)))
    split = jax.jit(jax.vmap(lambda key: jax.random.split(key)[0]))
    keys = jax.random.split(jax.random.key(0), 1024)
    _, state = jax.vmap(raw.reset, in_axes=(0, None))(keys, params)
    action = jax.numpy.zeros(1024, jax.numpy.int32)

    def step() -> None:
        nonlocal state, keys
        keys = split(keys)
        out = advance(keys, state, action, params)  # with its automatic reset
        state = out[1]
        jax.block_until_ready(out)

    return step, ours(env) if ends else ours_without_ends(env)


def jumanji_snake(*, ends: bool = True) -> Case:
    env = JumanjiEnv("Snake-v1", num_envs=64, categorical_action_encoding=True)
    import jax
    import jumanji
    from jumanji.wrappers import AutoResetWrapper

    raw = AutoResetWrapper(jumanji.make("Snake-v1"))
    advance = jax.jit(jax.vmap(raw.step))
    state, _ = jax.vmap(raw.reset)(jax.random.split(jax.random.key(0), 64))
    action = jax.numpy.zeros(64, jax.numpy.int32)

    def step() -> None:
        nonlocal state
        state, out = advance(state, action)
        jax.block_until_ready(out)

    return step, ours(env) if ends else ours_without_ends(env)


CASES: dict[str, Callable[[], Case]] = {
    "gymnax CartPole-v1 x1024, no ends": partial(gymnax_cartpole, ends=False),
    "gymnax CartPole-v1 x1024": gymnax_cartpole,
    "jumanji Snake-v1 x64, no ends": partial(jumanji_snake, ends=False),
    "jumanji Snake-v1 x64": jumanji_snake,
    "envpool CartPole-v1 x64": envpool_cartpole,
    "envpool HalfCheetah-v5 x16": envpool_cheetah,
    "envpool Pong-v5 x8": envpool_pong,
    "open_spiel tic_tac_toe x1": open_spiel_ttt,
    "open_spiel chess x1": open_spiel_chess,
    "HalfCheetahEnv x16, gymnasium SyncVectorEnv": mujoco_cheetah,
    "HumanoidEnv x4, gymnasium SyncVectorEnv": mujoco_humanoid,
    "dm_control cheetah-run x16": dm_control_cheetah,
    "dm_control humanoid-run x1": dm_control_humanoid,
    "pettingzoo simple_spread x1": pettingzoo_spread,
    "pettingzoo connect_four x1": pettingzoo_connect_four,
    "vmas balance x32": vmas_balance,
    "vmas transport x1024": vmas_transport,
}


def timed(step: Callable[[], None]) -> float:
    """Microseconds of CPU time of one step, of all threads."""
    start = time.process_time()
    for _ in range(STEPS):
        step()
    return (time.process_time() - start) / STEPS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'case':44s} {'raw us':>9s} {'ours us':>9s} {'ratio':>6s} {'ours - raw us':>14s}")
    for name, make in CASES.items():
        try:
            raw, fast = make()
        except MissingExtraError as error:
            print(f"{name:44s} skipped: {error}")
            continue
        pairs = [(timed(raw), timed(fast)) for _ in range(ROUNDS)][1:]
        theirs, own = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name:44s} {theirs:9.1f} {own:9.1f} {own / theirs:6.2f} {own - theirs:14.1f}")


if __name__ == "__main__":
    main()
