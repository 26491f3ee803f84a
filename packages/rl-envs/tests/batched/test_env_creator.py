"""`EnvCreator`: environments of one function, with shared statistics."""

import pytest
import torch
import torch.multiprocessing as mp

from rl.core.errors import ArgumentError, SpecError
from rl.envs import EnvCreator, PendulumEnv, RewardNorm, SerialEnv, TransformedEnv, VecNorm


def make(batch=(), norms=2):
    env = TransformedEnv(PendulumEnv(list(batch), seed=0), VecNorm(["observation"]))
    return env if norms == 1 else env.append_transform(RewardNorm())


def test_statistics_are_those_of_all_environments():
    create = EnvCreator(make)
    both = SerialEnv(2, create)
    data = both.rollout(20)
    raw = both.envs[0].transform[0].denorm(data)
    seen = torch.cat([raw["observation"][:, :1], raw["next", "observation"]], 1).flatten(0, 1)
    for env in both.envs:
        loc = env.transform[0].loc["observation"]
        assert (loc == create().transform[0].loc["observation"]).all()
        assert loc.abs().sum() > 0
    assert seen.shape == (2 * 21, 3)
    alone = EnvCreator(make, share_memory=False)
    assert alone().transform[0].loc["observation"].abs().sum() == 0


def collect(create):
    create().rollout(10)


def test_another_process_updates_the_same_statistics():
    create = EnvCreator(make, {"batch": (2,)})
    here = create()
    worker = mp.get_context("spawn").Process(target=collect, args=(create,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    count = here.transform[0].state_dict()["stats"][0][1]["count"]
    assert 20 < count <= 22  # two resets' rows and ten steps' of two elements, older ones weighted less


def test_variants():
    create = EnvCreator(make, {"norms": 1})
    other = create.make_variant(batch=(3,))
    assert other().batch_size == (3,)
    other().rollout(2)
    assert create().transform.loc["observation"].abs().sum() > 0
    with pytest.raises(SpecError, match="2 transforms"):
        create(norms=2)
    with pytest.raises(ArgumentError, match="takes a function"):
        EnvCreator(PendulumEnv())
