from __future__ import annotations

import cv2
import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import Bounded, Unbounded
from rl.envs import CenterCrop, Compose, Crop, GrayScale, GymWrapper, Resize, ToTensorImage, TransformedEnv
from rl.testing import check_transform

FRONT = ToTensorImage(dtype=torch.uint8, from_int=False)


class Noise(gymnasium.Env):
    """Random images under ``pixels``."""

    observation_space = gymnasium.spaces.Dict(pixels=gymnasium.spaces.Box(0, 255, (7, 9, 3), np.uint8))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, action):
        self.count += 1
        return self._seen(), 1.0, self.count == 3, self.count == 2 and action == 1, {}

    def _seen(self):
        return {"pixels": self.np_random.integers(0, 256, (7, 9, 3), np.uint8)}


def images(dtype=torch.uint8, *shape):
    values = torch.randint(0, 256, shape or (2, 4, 3, 7, 9), dtype=torch.uint8, generator=torch.manual_seed(0))
    return values if dtype == torch.uint8 else values.to(dtype) / 255


def batch(value):
    return TensorDict(pixels=value, next={"pixels": value}, batch_size=value.shape[:2])


ALL = [
    ToTensorImage(),
    ToTensorImage(unsqueeze=True, out_keys=["image"]),
    Compose(FRONT.clone(), GrayScale()),
    Compose(FRONT.clone(), Resize(4, 5)),
    Compose(FRONT.clone(), Resize(4, interpolation="area")),
    Compose(ToTensorImage(), Resize(4, 5, "bicubic")),
    Compose(FRONT.clone(), Resize(4, 5, "nearest")),
    Compose(FRONT.clone(), Crop(3, 4, top=2, left=1)),
    Compose(FRONT.clone(), CenterCrop(3)),
]


@pytest.mark.parametrize("several", [None, 2])
@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_conformance(transform, several):
    make = lambda: Noise() if several is None else [Noise() for _ in range(several)]
    last = images(torch.uint8, 2, 4, 7, 9, 3)
    check_transform(transform, batch(last), wrap=lambda one: TransformedEnv(GymWrapper(make()), one))


def test_a_tensor_image_has_its_channels_in_front():
    value = images(torch.uint8, 2, 4, 7, 9, 3)
    expected = np.moveaxis(value.numpy(), -1, -3).astype(np.float32) / 255
    assert np.array_equal(ToTensorImage()(batch(value))["pixels"].numpy(), expected)
    assert np.array_equal(ToTensorImage(unsqueeze=True)(batch(value))["next", "pixels"].numpy(), expected[:, :, None])
    half = ToTensorImage(dtype=torch.float64)(batch(images(torch.float32, 2, 4, 7, 9, 3)))["pixels"]
    assert half.dtype == torch.float64
    assert half.max() <= 1
    assert ToTensorImage(shape_tolerant=True)(batch(images()))["pixels"].shape == (2, 4, 3, 7, 9)
    spec = ToTensorImage()._transform_spec(Bounded(0, 255, shape=(7, 9, 3), dtype=torch.uint8))
    assert (spec.shape, spec.space.high.max().item()) == ((3, 7, 9), 1.0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_gray_is_the_weighted_sum_of_colours(dtype):
    value = images(dtype)
    expected = (value.double() * torch.tensor([0.2989, 0.587, 0.114]).double().reshape(3, 1, 1)).sum(-3, keepdim=True)
    out = GrayScale()(batch(value))["pixels"]
    assert out.dtype == dtype
    expected = expected.round() if dtype == torch.uint8 else expected
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(4, 5), (7, 3), (3, 9)])
def test_area_is_that_of_opencv(size):
    value = images()
    expected = np.stack(
        [cv2.resize(one, size[::-1], interpolation=cv2.INTER_AREA) for one in value.reshape(-1, 7, 9).numpy()]
    )
    out = Resize(*size, interpolation="area")(batch(value))["pixels"]
    assert np.array_equal(out.reshape(-1, *size).numpy(), expected)
    floats = Resize(*size, interpolation="area")(batch(value.double()))["pixels"]
    assert (floats - out).abs().max() <= 0.5


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_other_interpolations_are_those_of_torch_and_keep_the_dtype(mode, dtype):
    value = images(dtype)
    smooth = mode != "nearest"
    expected = torch.nn.functional.interpolate(value.flatten(0, 1).float(), (4, 5), mode=mode, antialias=smooth)
    low, high = value.amin((-2, -1), keepdim=True), value.amax((-2, -1), keepdim=True)
    expected = expected.reshape(2, 4, 3, 4, 5).clamp(low, high)
    out = Resize(4, 5, mode)(batch(value))["pixels"]
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected.round().to(dtype) if dtype == torch.uint8 else expected)


def test_crops_are_slices():
    value = images()
    assert torch.equal(Crop(3, 4, top=2, left=1)(batch(value))["pixels"], value[..., 2:5, 1:5])
    assert torch.equal(CenterCrop(3, 5)(batch(value))["next", "pixels"], value[..., 2:5, 2:7])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: Resize(0), "at least 1", id="size"),
        pytest.param(lambda: Resize(3, interpolation="cubic"), "'cubic'", id="mode"),
        pytest.param(lambda: Crop(3, left=-1), "at least 0", id="start"),
        pytest.param(lambda: Crop(9)(batch(images())), r"Crop.*outside of an image of 7 x 9", id="outside"),
        pytest.param(lambda: GrayScale()(batch(images(torch.uint8, 2, 4, 7, 9))), "3, H, W", id="channels"),
        pytest.param(lambda: ToTensorImage()(batch(images()[..., 0, 0, 0])), r"\[\*B, H, W, C\]", id="flat"),
        pytest.param(lambda: CenterCrop(4)._transform_spec(Unbounded((3, 3, 9))), "outside", id="spec"),
        pytest.param(
            lambda: TransformedEnv(GymWrapper(Noise()), Resize(3, in_keys=["pixel"])), "did you mean 'pixels'", id="key"
        ),
    ],
)
def test_wrong_use(make, message):
    with pytest.raises((ArgumentError, SpecError), match=message):
        make()


@pytest.mark.parametrize("size", [(84,), (3, 4), (20, 31)], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "area", "nearest"])
@pytest.mark.parametrize("value", [0, 255])
def test_black_and_white_stay_within_their_bounds(mode, size, value):
    class Plain(Noise):
        observation_space = gymnasium.spaces.Dict(pixels=gymnasium.spaces.Box(0, 255, (31, 47, 3), np.uint8))

        def _seen(self):
            return {"pixels": np.full((31, 47, 3), value, np.uint8)}

    chain = Compose(ToTensorImage(), Resize(*size, interpolation=mode))
    env = TransformedEnv(GymWrapper(Plain()), chain)
    assert env.observation_spec.is_in(env.reset().select("pixels"))
    for more in (GrayScale(), Crop(2), CenterCrop(2)):
        env = TransformedEnv(GymWrapper(Plain()), Compose(*[one.clone() for one in chain], more))
        assert env.observation_spec.is_in(env.reset().select("pixels"))
