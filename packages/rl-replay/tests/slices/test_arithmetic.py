"""The arithmetic of slices: random numbers and flags, against loops."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.replay import (
    LazyTensorStorage,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
)

# the largest random number below one, and trajectories of 2**40 steps, are not drawn in a test
from rl.replay._slice_sampling import place_slices


def rows():
    """Six episodes of ten steps."""
    x = torch.arange(60)
    return TensorDict({"x": x, ("next", "done"): (x % 10 == 9).unsqueeze(-1)}, [60])


def make(data, **arguments):
    return TensorDictReplayBuffer(
        storage=TensorStorage(data),
        sampler=SliceSampler(**{"slice_len": 4, **arguments}),
        batch_size=80,
        generator=torch.Generator().manual_seed(0),
    )


def test_the_largest_random_number_stays_inside_the_trajectory():
    have = np.array([7, 64, 1 << 40, (1 << 40) + 1])
    first, _ = place_slices(have, np.full(4, 1 - 2.0**-53), 5, (0, 0))
    assert (first + 4 == have - 1).all()


def test_samplers_draw_the_same_in_inference_mode_and_outside():
    def drawn(*modes):
        buffer = make(rows())
        found = []
        for mode in modes:
            with torch.inference_mode(mode=mode):
                found.append(buffer.sample()["index"].tolist())
        return found

    assert drawn(True, False, True) == drawn(False, False, False)


@pytest.mark.parametrize("strict", [True, False])
def test_slices_follow_the_generator_as_torch_does(strict):
    generator = torch.Generator().manual_seed(0)
    buffer = make(rows(), strict_length=strict)
    for _ in range(3):
        where, which = torch.rand(2, 20, dtype=torch.float64, generator=generator)
        begin = (which * 6).long() * 10 + (where * 7).long()
        assert buffer.sample()["index"].view(20, 4)[:, 0].equal(begin)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("arguments", [{}, {"slice_len": 16}, {"slice_len": 16, "pad_output": True}])
def test_flags_of_every_shape_are_true_where_slices_begin_and_end(arguments, shape, stored):
    x = torch.arange(60)  # episodes of 10 steps
    data = TensorDict({"x": x, ("next", "done"): (x % 10 == 9).view(60, *shape), "episode": x // 10}, [60])
    if stored:
        data["is_init"] = (x % 10 == 0).view(60, *shape)
    buffer = make(data, strict_length=False, **arguments)
    sample = buffer.sample()
    length = arguments.get("slice_len", 4)
    steps = min(length, 10)
    real = sample["collector", "mask"].view(-1) if "pad_output" in arguments else torch.ones(len(sample), dtype=bool)
    for key in ("is_init", ("next", "done"), ("next", "truncated"), ("next", "terminated")):
        flag = sample[key]
        assert flag.shape == (*sample.batch_size, *shape)
        flag = flag.reshape(-1)
        found = flag[real].view(-1, steps)
        place = torch.arange(steps).expand_as(found)
        over = sample["x"].view(-1)[real].view(-1, steps) % 10 == 9
        expected = {"is_init": place == 0, ("next", "terminated"): over}.get(key, place == steps - 1)
        assert (found == expected).all()
        assert flag[~real].all() or key == ("next", "terminated")
    assert (buffer.storage.get(torch.arange(60)) == data).all()  # what is stored stays


_COMPILED = {
    "whole": (SliceSampler, {}),
    "shorter": (SliceSampler, {"slice_len": 16, "strict_length": False}),
    "padded": (SliceSampler, {"slice_len": 16, "strict_length": False, "pad_output": True}),
    "span": (SliceSampler, {"span": True}),
    "passes": (SliceSamplerWithoutReplacement, {}),
    "shorter passes": (SliceSamplerWithoutReplacement, {"slice_len": 16, "strict_length": False}),
}


@pytest.mark.parametrize(("kind", "arguments"), _COMPILED.values(), ids=_COMPILED)
def test_in_a_compiled_function_slices_are_those_of_the_same_seed(kind, arguments):
    """They are drawn with arrays that share memory with tensors, which would part in a graph."""

    def step(buffer, weight):
        sample = buffer.sample()
        return sample["x"].float().sum() * weight, sample

    torch._dynamo.reset()
    buffers = [
        TensorDictReplayBuffer(
            storage=LazyTensorStorage(40),
            sampler=kind(**{"slice_len": 4, **arguments}),
            batch_size=32,
            generator=torch.Generator().manual_seed(0),
        )
        for _ in range(2)
    ]
    compiled = torch.compile(step, backend="aot_eager")
    for part in rows().split(15):  # the last ones overwrite the first ones
        for buffer in buffers:
            buffer.extend(part)
        for _ in range(2):
            one, two = compiled(buffers[0], torch.ones(3)), step(buffers[1], torch.ones(3))
            assert one[0].equal(two[0])
            assert (one[1] == two[1]).all()
