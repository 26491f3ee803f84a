import pytest
import torch
from tensordict import TensorDict
from torch.testing import assert_close

from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.specs import Bounded, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from rl.core.specs import Categorical as CategoricalSpec
from rl.modules import (
    AdditiveGaussianModule,
    EGreedyModule,
    ExplorationType,
    OrnsteinUhlenbeckProcessModule,
    set_exploration_type,
)

SPACES = {
    "one-hot": (OneHot(4, dtype=torch.int64), torch.tensor([1, 0, 0, 0])),
    "one-hot-bool": (OneHot(4), torch.tensor([True, False, False, False])),
    "categorical": (CategoricalSpec(4), torch.tensor(0)),
    "multi-one-hot": (MultiOneHot([2, 2]), torch.tensor([True, False, True, False])),
    "multi-categorical": (MultiCategorical([2, 2]), torch.tensor([0, 0])),
    "box": (Bounded(-1.0, 1.0, (2,)), torch.tensor([0.0, 0.0])),
    "masked-spec": (CategoricalSpec(4, mask=torch.tensor([True, False, True, True])), torch.tensor(0)),
}
EVERY = pytest.mark.parametrize(("spec", "action"), SPACES.values(), ids=SPACES)


def batch(action, count=4000, **more):
    return TensorDict(action=action.expand(count, *action.shape).clone(), batch_size=[count], **more)


def changed(action, out):
    different = out != action
    return different.flatten(1).any(-1) if different.ndim > 1 else different


@EVERY
@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0])
def test_share_of_random_actions(spec, action, eps):
    torch.manual_seed(0)
    out = EGreedyModule(spec, eps, eps)(batch(action))["action"]
    assert out.dtype is action.dtype
    assert spec.is_in(out)
    # A random draw of n classes is the same as before with 1 / n.
    classes = {"box": torch.inf}.get(next(k for k, v in SPACES.items() if v[0] is spec), spec.cardinality())
    assert_close(
        changed(action, out).double().mean(), torch.tensor(eps * (1 - 1 / classes)).double(), atol=0.03, rtol=0
    )


@EVERY
def test_random_actions_are_uniform(spec, action):
    torch.manual_seed(0)
    out = EGreedyModule(spec, 1.0, 1.0)(batch(action))["action"]
    if spec.dtype.is_floating_point:
        assert_close(out.mean(0), torch.zeros(2), atol=0.03, rtol=0)
        assert_close(out.var(0), torch.full((2,), 1 / 3), atol=0.03, rtol=0)
        return
    if isinstance(spec, MultiOneHot):
        out = out[:, 1::2]
    if out.shape[-1:] == (2,):
        out = (out * torch.tensor([1, 2])).sum(-1)
    index = out.long().argmax(-1) if isinstance(spec, OneHot) else out
    counts = index.bincount(minlength=4).double()
    expected = 4000 / spec.cardinality() * (counts > 0)
    assert ((counts - expected).square() / expected.clamp_min(1)).sum() < 16  # 3 degrees of freedom, 1e-3


@EVERY
@pytest.mark.parametrize("mode", [ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN])
def test_nothing_happens_unless_random(spec, action, mode):
    with set_exploration_type(mode):
        out = EGreedyModule(spec, 1.0, 1.0)(batch(action))["action"]
    assert not changed(action, out).any()


@pytest.mark.parametrize("name", ["one-hot", "categorical"])
def test_only_allowed_actions_are_drawn(name):
    torch.manual_seed(0)
    spec, action = SPACES[name]
    mask = torch.rand(4000, 4) < 0.4
    mask[:, 0] = True
    explore = EGreedyModule(spec, 1.0, 1.0, action_mask_key="mask")
    out = explore(batch(action).set("mask", mask))["action"]
    index = out.argmax(-1) if name == "one-hot" else out
    assert mask.gather(-1, index.unsqueeze(-1)).all()
    share = 1 / mask.sum(-1).double()
    assert_close((index == 0).double().mean(), share.mean(), atol=0.03, rtol=0)
    with pytest.raises(ContractError, match="'mask'"):
        explore(batch(action))
    with pytest.raises(ArgumentError, match="allows no action"):
        explore(batch(action).set("mask", mask & False))


@pytest.mark.parametrize("module", ["egreedy", "gaussian"])
def test_level_falls_in_a_straight_line_and_is_saved(module):
    def make():
        if module == "egreedy":
            return EGreedyModule(OneHot(2), 1.0, 0.2, 8)
        return AdditiveGaussianModule(Unbounded((2,)), 1.0, 0.2, 8)

    def level(explore):
        return float(explore.eps if module == "egreedy" else explore.sigma)

    explore, seen = make(), []
    for _ in range(6):
        seen.append(level(explore))
        explore.step(2)
    assert seen == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    other = make()
    explore = make()
    explore.step(3)
    other.load_state_dict(explore.state_dict())
    other.step(3)
    assert level(other) == pytest.approx(1.0 - 0.8 * 6 / 8)
    assert all(isinstance(value, torch.Tensor) for value in explore.state_dict().values())


def test_gaussian_noise_has_the_scale_that_it_says():
    torch.manual_seed(0)
    spec = Composite(action=Unbounded((3,)))
    explore = AdditiveGaussianModule(spec, 0.5, 0.5, mean=2.0, std=3.0)
    out = explore(batch(torch.zeros(3)))["action"]
    assert_close(out.mean(), torch.tensor(1.0), atol=0.05, rtol=0)
    assert_close(out.std(), torch.tensor(1.5), atol=0.05, rtol=0)


def test_gaussian_noise_stays_within_bounds_and_out_of_evaluation():
    spec = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.5]))
    explore = AdditiveGaussianModule(spec, 5.0, 5.0)
    assert spec.is_in(explore(batch(torch.zeros(2)))["action"])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert not explore(batch(torch.zeros(2)))["action"].any()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        pytest.param(lambda: EGreedyModule(OneHot(2), 1.5), ArgumentError, "probability", id="eps"),
        pytest.param(lambda: EGreedyModule(OneHot(2), 0.1, 0.5), ArgumentError, "start >= end", id="rising"),
        pytest.param(
            lambda: EGreedyModule(Unbounded((2,)), action_mask_key="mask"), SpecError, "masks one-hot", id="mask"
        ),
        pytest.param(lambda: EGreedyModule(Composite(act=OneHot(2))), SpecError, "'action'.*act", id="entry"),
        pytest.param(lambda: AdditiveGaussianModule(OneHot(2)), SpecError, "continuous", id="discrete"),
        pytest.param(lambda: AdditiveGaussianModule(Unbounded(2), 0.1, 0.5), ArgumentError, "start >= end", id="sigma"),
    ],
)
def test_what_does_not_fit_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "explore", [EGreedyModule(OneHot(2)), AdditiveGaussianModule(Unbounded(2))], ids=["eps", "noise"]
)
def test_a_missing_action_is_named_with_the_remedy(explore):
    with pytest.raises(ContractError, match=r"'action'.*after the policy"):
        explore(TensorDict(observation=torch.zeros(3, 2), batch_size=[3]))


def test_an_action_of_another_encoding_is_refused():
    with pytest.raises(ShapeError, match=r"does not fit|fewer dimensions"):
        EGreedyModule(OneHot(3))(TensorDict(action=torch.zeros(5, 4), batch_size=[5]))


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_each_dimension_has_noise_of_its_own_width(kind):
    torch.manual_seed(0)
    spec = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 100.0]), (2,))
    half = (spec.high - spec.low) / 2
    if kind == "gaussian":
        module = AdditiveGaussianModule(spec, sigma_init=0.2 * half, sigma_end=0.1 * half, annealing_num_steps=4)
        module.step(4)
        torch.testing.assert_close(module.sigma, 0.1 * half)
    else:
        module = OrnsteinUhlenbeckProcessModule(spec, eps_end=1.0, sigma=0.1 * half, dt=1.0)
    middle = torch.tensor([0.0, 50.0]).expand(5000, 2)
    td = TensorDict(action=middle.clone(), batch_size=[5000])
    for state in getattr(module, "states", ()):
        td[state.name] = state.start((5000,))
    noise = (module(td)["action"] - middle) / half
    torch.testing.assert_close(noise.std(0), torch.full((2,), 0.1), atol=0.005, rtol=0)
    torch.testing.assert_close(noise.mean(0), torch.zeros(2), atol=0.01, rtol=0)


@pytest.mark.parametrize("sigma", [torch.tensor([0.1, -0.1]), torch.tensor([0.1, torch.nan])])
def test_widths_by_dimension_are_checked(sigma):
    spec = Bounded(-1.0, 1.0, (2,))
    with pytest.raises(ArgumentError, match="needs start >= end >= 0"):
        AdditiveGaussianModule(spec, sigma_init=sigma, sigma_end=sigma)
    with pytest.raises(ArgumentError, match="needs sigma >= sigma_min >= 0"):
        OrnsteinUhlenbeckProcessModule(spec, sigma=sigma)


def test_the_spec_of_a_batch_is_refused_with_the_remedy():
    module = OrnsteinUhlenbeckProcessModule(Bounded(-1.0, 1.0, (3, 1)))
    td = TensorDict(action=torch.zeros(3, 1), batch_size=[3])
    for state in module.states:
        td[state.name] = state.start((3,))
    with pytest.raises(ShapeError, match=r"its spec \[3, 1\] is that of one action.*env\.action_spec_unbatched"):
        module(td)


@pytest.mark.parametrize("make", [EGreedyModule, AdditiveGaussianModule, OrnsteinUhlenbeckProcessModule])
def test_a_module_is_made_on_a_device(make):
    module = make(Bounded(-1.0, 1.0, (2,)), device="meta")
    assert {one.device.type for one in module.buffers()} == {"meta"}


@pytest.mark.parametrize("kind", [MultiCategorical, MultiOneHot])
def test_random_actions_of_several_choices_are_allowed_and_uniform(kind):
    torch.manual_seed(0)
    spec = kind([2, 3])
    mask = torch.tensor([True, False, True, False, True]).expand(4000, 5)
    action = spec.zero((4000,))
    explore = EGreedyModule(spec, 1.0, 1.0, action_mask_key="mask")
    out = explore(TensorDict(action=action, mask=mask, batch_size=[4000]))["action"]
    taken = (out if kind is MultiOneHot else spec.to_one_hot(out)).float().mean(0)
    assert out.dtype == spec.dtype
    assert_close(taken[[0, 1, 3]], torch.tensor([1.0, 0.0, 0.0]))
    assert_close(taken[[2, 4]], torch.tensor([0.5, 0.5]), atol=0.03, rtol=0)
    with pytest.raises(ArgumentError, match="a row that allows no action"):
        explore(TensorDict(action=action, mask=mask & (torch.arange(5) != 0), batch_size=[4000]))
