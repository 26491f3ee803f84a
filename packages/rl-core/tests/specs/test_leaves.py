"""Leaf specs: values by hand, errors, masks, printing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rl.core.errors import ArgumentError, SpecError
from rl.core.specs import (
    Binary,
    Bounded,
    Categorical,
    CategoricalBox,
    ContinuousBox,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)

# ---------------------------------------------------------------------- printing


def test_bounded_prints_as_documented():
    low = np.array([-2.0], dtype=np.float32)
    assert repr(Bounded(low, -low)) == (
        "BoundedContinuous(\n"
        "    shape=torch.Size([1]),\n"
        "    space=ContinuousBox(\n"
        "        low=Tensor(shape=torch.Size([1]), device=cpu, dtype=torch.float32, contiguous=True),\n"
        "        high=Tensor(shape=torch.Size([1]), device=cpu, dtype=torch.float32, contiguous=True)),\n"
        "    device=cpu,\n"
        "    dtype=torch.float32,\n"
        "    domain=continuous)"
    )


@pytest.mark.parametrize(
    ("spec", "start", "domain"),
    [
        pytest.param(Bounded(0, 255, (2,), dtype=torch.uint8), "BoundedDiscrete(", "discrete", id="bounded-integers"),
        pytest.param(Unbounded(), "UnboundedContinuous(", "continuous", id="unbounded"),
        pytest.param(Unbounded(dtype=torch.int64), "UnboundedDiscrete(", "discrete", id="unbounded-integers"),
        pytest.param(Categorical(3), "Categorical(", "discrete", id="categorical"),
        pytest.param(OneHot(3), "OneHot(", "discrete", id="one-hot"),
        pytest.param(MultiCategorical([2, 3]), "MultiCategorical(", "discrete", id="multi-categorical"),
        pytest.param(MultiOneHot([2, 3]), "MultiOneHot(", "discrete", id="multi-one-hot"),
        pytest.param(Binary(3), "Binary(", "discrete", id="binary"),
        pytest.param(NonTensor(), "NonTensor(", "None", id="non-tensor"),
    ],
)
def test_print_names_kind_and_domain(spec, start, domain):
    assert repr(spec).startswith(start)
    assert f"domain={domain}" in repr(spec)


def test_spaces_are_the_domains():
    assert OneHot(3).space == CategoricalBox(3)
    assert Categorical(3).space.n == 3
    assert MultiCategorical([2, 3]).space == (CategoricalBox(2), CategoricalBox(3))
    assert Bounded(0, 1, (2,)).space == ContinuousBox(torch.zeros(2), torch.ones(2))
    assert Bounded(0, 1, (2,)).space != ContinuousBox(torch.zeros(2), torch.zeros(2))
    assert Unbounded((2,)).space.high.tolist() == [math.inf, math.inf]
    assert Unbounded(dtype=torch.int8).space.low == -128


# ---------------------------------------------------------------------- construction


def test_defaults():
    assert Unbounded().shape == ()
    assert Unbounded().dtype is torch.get_default_dtype()
    assert Unbounded().device == torch.device("cpu")
    assert OneHot(3).shape == (3,)
    assert OneHot(3).dtype is torch.bool
    assert Categorical(3).dtype is torch.int64
    assert Categorical(3).shape == ()
    assert Binary(3).shape == (3,)
    assert Binary().shape == ()
    assert MultiCategorical([2, 3]).shape == (2,)
    assert MultiOneHot([2, 3]).shape == (5,)
    assert MultiCategorical([[2, 3], [4, 5]]).shape == (2, 2)


def test_bounded_takes_dtype_and_shape_from_its_ends():
    assert Bounded(0, 1).dtype is torch.get_default_dtype()
    assert Bounded(np.zeros(3), np.ones(3)).dtype is torch.float64
    assert Bounded(np.zeros(3), np.ones(3)).shape == (3,)
    assert Bounded(torch.zeros(2, 1), 1).high.tolist() == [[1.0], [1.0]]
    assert Bounded(0, 255, (2,), dtype=torch.uint8).high.tolist() == [255, 255]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(lambda: Bounded(1.0, 0.0), r"low 1.0, high 0.0", id="bounded-ends"),
        pytest.param(lambda: Bounded(math.nan, 0.0), r"low nan", id="bounded-nan"),
        pytest.param(lambda: Bounded(torch.zeros(2), 1, (3,)), r"\(2,\).*shape \(3,\)", id="bounded-shape"),
        pytest.param(lambda: OneHot(3, (4,)), r"number of classes 3, got \(4,\)", id="one-hot-shape"),
        pytest.param(lambda: Binary(3, (4,)), r"n=3, got \(4,\)", id="binary-shape"),
        pytest.param(lambda: MultiCategorical([2, 3], (3,)), r"\(2,\), got \(3,\)", id="multi-shape"),
        pytest.param(lambda: MultiOneHot([2, 3], (4,)), r"\(5,\), got \(4,\)", id="multi-one-hot-shape"),
        pytest.param(lambda: Categorical(2, mask=[1, 0]), r"bool, got torch.int64", id="mask-dtype"),
        pytest.param(lambda: Categorical(2, mask=torch.ones(3) > 0), r"\(2,\), got \(3,\)", id="mask-shape"),
        pytest.param(lambda: OneHot(2, mask=torch.zeros(2) > 0), r"OneHot forbids every class", id="mask-empty"),
    ],
)
def test_impossible_specs_are_rejected(make, text):
    with pytest.raises(SpecError, match=text):
        make()


def test_a_choice_of_nothing_is_rejected():
    with pytest.raises(ArgumentError, match="n must be at least 1, got 0"):
        Categorical(0)
    with pytest.raises(ArgumentError, match=r"nvec=\[2, 0\]"):
        MultiCategorical([2, 0])


def test_the_base_is_abstract():
    with pytest.raises(TypeError, match=r"abstract"):
        TensorSpec()


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("spec", "inside", "outside"),
    [
        pytest.param(Bounded(-1.0, 1.0), [-1.0, 0.0, 1.0], [1.1, math.nan, math.inf], id="box"),
        pytest.param(Bounded(0, 3, dtype=torch.int64), [0, 3], [-1, 4], id="integers"),
        pytest.param(Categorical(3), [0, 2], [-1, 3], id="categorical"),
        pytest.param(Categorical(3, dtype=torch.float32), [0.0, 2.0], [0.5, 3.0, math.nan], id="float-classes"),
        pytest.param(OneHot(2, dtype=torch.int64), [[1, 0], [0, 1]], [[0, 0], [1, 1], [2, 0], [-1, 2]], id="one-hot"),
        pytest.param(MultiCategorical([2, 3]), [[1, 2], [0, 0]], [[2, 0], [0, 3], [-1, 0]], id="multi-categorical"),
        pytest.param(
            MultiOneHot([2, 1], dtype=torch.int64), [[0, 1, 1]], [[0, 1, 0], [1, 1, 1], [1, 0, 2]], id="multi-one-hot"
        ),
        pytest.param(Binary(2), [[0, 1]], [[0, 2], [-1, 0]], id="binary"),
    ],
)
def test_membership_by_hand(spec, inside, outside):
    for value in inside:
        assert spec.is_in(torch.tensor(value, dtype=spec.dtype))
    for value in outside:
        tensor = torch.tensor(value, dtype=spec.dtype)
        assert not spec.is_in(tensor)
        with pytest.raises(SpecError, match=r"expected .*, got"):
            spec.assert_is_in(tensor)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(torch.zeros(3, dtype=torch.float64), "dtype torch.float32, got torch.float64", id="dtype"),
        pytest.param(torch.zeros(2), r"shape \(3,\), or more leading dimensions, got shape \(2,\)", id="shape"),
        pytest.param(torch.zeros(3, 1), r"shape \(3,\).*got shape \(3, 1\)", id="trailing"),
        pytest.param(np.zeros(3), "a tensor, got ndarray", id="type"),
        pytest.param(
            torch.full((3,), 2.0), r"from \[-1.0, -1.0, -1.0\] to \[1.0, .* got \[2.0, 2.0, 2.0\]", id="domain"
        ),
    ],
)
def test_what_is_wrong_is_said(value, text):
    with pytest.raises(SpecError, match=rf"BoundedContinuous expected .*{text}"):
        Bounded(-1, 1, (3,)).assert_is_in(value)


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        pytest.param(Bounded(-1.0, 1.0), [-3.0, 0.5, math.nan, math.inf], [-1.0, 0.5, 0.0, 1.0], id="box"),
        pytest.param(Bounded(2.0, 3.0), [math.nan], [2.0], id="box-without-zero"),
        pytest.param(Categorical(3), [-5, 1, 9], [0, 1, 2], id="categorical"),
        pytest.param(Categorical(4, mask=torch.tensor([True, False, False, True])), [1, 2], [0, 3], id="mask"),
        pytest.param(OneHot(3, dtype=torch.float32), [[0.1, 0.7, 0.2]], [[0, 1, 0]], id="one-hot-scores"),
        pytest.param(
            OneHot(3, dtype=torch.float32, mask=torch.tensor([True, False, True])),
            [[0.1, 0.7, 0.2], [0.0, 1.0, 0.0]],
            [[0, 0, 1], [1, 0, 0]],
            id="one-hot-mask",
        ),
        pytest.param(MultiCategorical([2, 3]), [[5, -1], [0, 2]], [[1, 0], [0, 2]], id="multi-categorical"),
        pytest.param(MultiOneHot([2, 2], dtype=torch.int64), [[3, 0, 0, 0]], [[1, 0, 1, 0]], id="multi-one-hot"),
        pytest.param(Binary(dtype=torch.float32), [0.2, 0.8, -4.0, 9.0], [0, 1, 0, 1], id="binary"),
    ],
)
def test_projection_by_hand(spec, value, expected):
    projected = spec.project(torch.tensor(value, dtype=spec.dtype))
    assert projected.tolist() == expected


def test_form_cannot_be_projected():
    with pytest.raises(SpecError, match=r"shape \(3,\).*got shape \(2,\)"):
        Bounded(0, 1, (3,)).project(torch.zeros(2))
    with pytest.raises(SpecError, match=r"torch.int64, got torch.float32"):
        Categorical(3).project(torch.tensor(1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("low", "high"), [(-math.inf, math.inf), (1.0, math.inf), (-math.inf, 1.0), (-6e4, 6e4), (3.0, 3.0)], ids=str
)
def test_draws_are_finite(low, high, dtype):
    spec = Bounded(low, high, (100,), dtype=dtype)
    assert spec.rand().isfinite().all()
    assert spec.is_in(spec.rand())


def test_draws_from_the_widest_box_are_finite():
    largest = torch.finfo(torch.float32).max
    assert Bounded(-largest, largest, (1000,)).rand().isfinite().all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8], ids=str)
def test_integer_draws_reach_both_ends(dtype):
    info = torch.iinfo(dtype)
    spec = Bounded(torch.tensor([info.min, 3], dtype=dtype), torch.tensor([info.max, 4], dtype=dtype), dtype=dtype)
    value = spec.rand((2000,))
    assert spec.is_in(value)
    assert value[:, 1].unique().tolist() == [3, 4]
    assert value[:, 0].double().std() > 0.25 * (info.max - info.min)


def test_uniform_draws_cover_the_box():
    torch.manual_seed(0)
    value = Bounded(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 30.0])).rand((20000,))
    torch.testing.assert_close(value.mean(0), torch.tensor([0.5, 20.0]), rtol=0.02, atol=0.0)


def test_draws_never_pick_what_a_mask_forbids_and_all_that_it_allows():
    mask = torch.tensor([[True, False, True], [False, True, False]])
    for spec in (Categorical(3, (2,), mask=mask), OneHot(3, (2, 3), mask=mask)):
        codes = spec.to_categorical(spec.rand((500,)))
        assert codes[:, 0].unique().tolist() == [0, 2]
        assert codes[:, 1].unique().tolist() == [1]
        assert spec.cardinality() == 2


def test_masks_change_in_place_and_can_be_lifted():
    spec = OneHot(3)
    other = spec.clone()
    spec.update_mask(torch.tensor([False, True, False]))
    assert spec.rand().tolist() == [False, True, False]
    assert other.mask is None
    assert spec != other
    with pytest.raises(SpecError, match=r"OneHot expected .*mask.*, got"):
        spec.assert_is_in(torch.tensor([True, False, False]))
    spec.update_mask(None)
    assert spec == other


def test_a_refused_mask_changes_nothing():
    spec = Categorical(2, mask=torch.tensor([True, False]))
    with pytest.raises(SpecError, match=r"every class"):
        spec.update_mask(torch.tensor([False, False]))
    assert spec.mask.tolist() == [True, False]


def test_masks_follow_the_elements():
    mask = torch.tensor([[True, False], [True, True], [False, True]])
    spec = Categorical(2, (3,), mask=mask)
    assert spec[2].mask.tolist() == [False, True]
    assert spec.unsqueeze(0).expand(2, 3)[1].mask.tolist() == mask.tolist()
    assert OneHot(2, (3, 2), mask=mask)[1:].mask.tolist() == mask[1:].tolist()


# ---------------------------------------------------------------------- numpy and Python


@pytest.mark.parametrize(
    ("spec", "value", "expected"),
    [
        pytest.param(Categorical(3), 2, 2, id="int"),
        pytest.param(Categorical(3), np.int64(2), 2, id="numpy-scalar"),
        pytest.param(OneHot(3, dtype=torch.int64), 2, [0, 0, 1], id="one-hot-int"),
        pytest.param(
            OneHot(3, (2, 3), dtype=torch.int64), np.array([2, 0]), [[0, 0, 1], [1, 0, 0]], id="one-hot-array"
        ),
        pytest.param(MultiOneHot([2, 2], dtype=torch.int64), (1, 0), [0, 1, 1, 0], id="multi-one-hot"),
        pytest.param(Bounded(-1, 1, (2,)), np.zeros(2), [0.0, 0.0], id="other-float"),
        pytest.param(Bounded(-1, 1), 0.5, 0.5, id="float"),
        pytest.param(Binary(1, dtype=torch.bool), [True], [True], id="flag"),
        pytest.param(Unbounded((2,)), torch.ones(2, dtype=torch.float64), [1.0, 1.0], id="tensor"),
    ],
)
def test_encoding_by_hand(spec, value, expected):
    encoded = spec.encode(value)
    assert encoded.dtype is spec.dtype
    assert encoded.tolist() == expected


def test_encoding_copies_what_a_simulator_may_write_again():
    observation = np.zeros(2, dtype=np.float32)
    encoded = Unbounded(2).encode(observation)
    observation[:] = 7
    assert encoded.tolist() == [0.0, 0.0]


def test_read_only_arrays_are_encoded_without_warning():
    observation = np.zeros(2, dtype=np.float32)
    observation.flags.writeable = False
    assert Unbounded(2).encode(observation).tolist() == [0.0, 0.0]


def test_scalars_go_back_as_scalars():
    assert {Categorical(3).to_numpy(torch.tensor(2)): "hashable"} == {2: "hashable"}
    assert {OneHot(3).to_numpy(torch.tensor([False, True, False])): "hashable"} == {1: "hashable"}
    assert Bounded(0, 1, (2,)).to_numpy(torch.zeros(2)).dtype == np.float32


@pytest.mark.parametrize(
    ("spec", "value", "text"),
    [
        pytest.param(Unbounded(3), np.zeros(2), r"shape \(3,\), got \(2,\)", id="shape"),
        pytest.param(OneHot(3), 3, r"from 0 to 2, got 3", id="one-hot-class"),
        pytest.param(OneHot(3, (2, 3)), [0, 1, 2], r"shape \(2,\), got \(3,\)", id="one-hot-shape"),
        pytest.param(MultiOneHot([2, 3]), [0, 3], r"\[2, 3\], got \[0, 3\]", id="multi-one-hot-class"),
        pytest.param(NonTensor((2,)), "text", "list of 2 values, got 'text'", id="non-tensor"),
    ],
)
def test_what_cannot_be_encoded_is_refused(spec, value, text):
    with pytest.raises(SpecError, match=text):
        spec.encode(value)


def test_specs_keep_their_own_copy_of_what_they_are_made_of():
    low, high = np.zeros(2, dtype=np.float32), torch.ones(2)
    low.flags.writeable = False
    nvec = np.array([2, 3])
    nvec.flags.writeable = False
    mask = torch.tensor([True, False])
    spec, masked = Bounded(low, high), Categorical(2, mask=mask)
    high.zero_()
    mask.fill_(value=True)
    assert spec.high.tolist() == [1.0, 1.0]
    assert masked.mask.tolist() == [True, False]
    assert MultiCategorical(nvec).nvec.tolist() == [2, 3]


def test_where_one_end_is_infinite_draws_lie_at_an_exponential_distance_from_the_other():
    torch.manual_seed(0)
    ends = torch.tensor([1.0, -math.inf]), torch.tensor([math.inf, 1.0])
    value = Bounded(*ends).rand((20000,))
    torch.testing.assert_close(value.mean(0), torch.tensor([2.0, 0.0]), rtol=0.0, atol=0.05)
    torch.testing.assert_close(value.std(0), torch.ones(2), rtol=0.0, atol=0.05)
