"""Arguments without a meaning are refused where they are given, not found out later."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rl.core.errors import ArgumentError
from rl.core.specs import Bounded, OneHot
from rl.modules import (
    MLP,
    Actor,
    AdditiveGaussianModule,
    ConvNet,
    EGreedyModule,
    EnsembleDynamics,
    NoisyLinear,
    NormalParamExtractor,
    OrnsteinUhlenbeckProcessModule,
    QValueModule,
    RMSNorm,
    TanhNormal,
    TDMPC2Actor,
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(3, 2, depth=-1), "MLP: depth must be at least 0, got -1"),
        (lambda: MLP(3, ()), r"MLP got out_features=\(\)"),
        (lambda: ConvNet(3, depth=-1), "ConvNet: depth must be at least 0, got -1"),
        (
            lambda: EGreedyModule("one-hot"),
            "EGreedyModule needs the spec of the action, got 'one-hot'",
        ),
        (lambda: NormalParamExtractor(scale_lb=-0.1), "NormalParamExtractor: scale_lb must be at least 0, got -0.1"),
        (lambda: NormalParamExtractor(scale_lb=float("nan")), "scale_lb must be at least 0, got nan"),
        (lambda: TanhNormal(torch.zeros(1), torch.ones(1), low=-torch.inf), "needs finite low <= high, got low=-inf"),
        (lambda: TanhNormal(torch.zeros(1), torch.ones(1), high=torch.inf), "needs finite low <= high"),
        (lambda: QValueModule(torch.zeros(3)), "an action space is a spec or one of .*, got tensor"),
        (lambda: Actor(nn.Linear(3, 2), spec=torch.zeros(2)), "Actor needs the spec of the action, got tensor"),
        (lambda: MLP(3, 2, [4], activation_kwargs=[{}, {}]), "MLP got 2 activation_kwargs for 1 layers"),
        (lambda: ConvNet(3, norm_kwargs=[{}]), "ConvNet got 1 norm_kwargs for 3 layers"),
        (lambda: MLP(3, 2, activation_class=nn.Tanh()), "activation_class must be a class of modules .* got Tanh()"),
        (lambda: MLP(3, 2, activation_class=torch.tanh), "MLP: activation_class cannot be created with {}"),
        (lambda: ConvNet(3, activation_class=nn.ELU()), "ConvNet: activation_class must be a class of modules"),
        (lambda: MLP(3, 2, norm_class="layer"), "norm_class must be a class of modules, got 'layer'"),
        (lambda: MLP(3, 2, dropout=1.5), "dropout must be at least 0 and at most 1, got 1.5"),
        (lambda: NoisyLinear(3, 2, std_init=-1.0), "std_init must be at least 0, got -1.0"),
        (lambda: AdditiveGaussianModule(None, std=float("nan")), "std must be at least 0, got nan"),
        (lambda: OrnsteinUhlenbeckProcessModule(None, theta=-1.0), "theta must be at least 0, got -1.0"),
        (lambda: OrnsteinUhlenbeckProcessModule(None, mu=float("inf")), "mu must be a finite number, got inf"),
        (lambda: RMSNorm(0), "features must be at least 1, got 0"),
        (lambda: TDMPC2Actor(3, 2, log_std_min=1.0, log_std_max=0.0), "log_std_max must be at least 1, got 0.0"),
        (lambda: EnsembleDynamics(3, 1, bound_weight=float("nan")), "bound_weight must be at least 0, got nan"),
    ],
    ids=[
        "depth",
        "shape",
        "convolutions",
        "no-spec",
        "scale",
        "scale-nan",
        "low",
        "high",
        "space",
        "tensor",
        "activations",
        "norms",
        "activation",
        "activation-function",
        "activation-of-convolutions",
        "norm",
        "dropout",
        "noise-at-start",
        "noise",
        "noise-rate",
        "noise-mean",
        "width",
        "log-scales",
        "bounds",
    ],
)
def test_arguments_out_of_range(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_infinite_bounds_in_tensors_are_refused_where_arguments_are_checked():
    low = torch.tensor([-1.0, -torch.inf])
    with pytest.raises(ArgumentError, match="needs finite low <= high"):
        TanhNormal(torch.zeros(2), torch.ones(2), low=low, validate_args=True)


def test_tanh_normal_scores_integers_as_floats():
    dist = TanhNormal(torch.tensor([0.3, -0.2]), torch.tensor([0.5, 2.0]))
    assert_close(dist.log_prob(torch.tensor([0, 1])), dist.log_prob(torch.tensor([0.0, 1.0])))


@pytest.mark.parametrize(
    "explore", [EGreedyModule(OneHot(3)), AdditiveGaussianModule(Bounded(-1.0, 1.0, (2,)))], ids=["greedy", "noise"]
)
def test_exploration_does_not_go_back(explore):
    explore.step(100)
    before = explore.schedule.value.clone()
    with pytest.raises(ArgumentError, match=f"{type(explore).__name__}.step got -50, expected at least 0"):
        explore.step(-50)
    assert torch.equal(explore.schedule.value, before)
    assert explore.schedule.done == 100


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (lambda: EGreedyModule(OneHot(3), 1.0, 0.0, 10), ("eps_init", "eps_end", "eps")),
        (lambda: AdditiveGaussianModule(Bounded(-1, 1, (2,)), 1.0, 0.0, 10), ("sigma_init", "sigma_end", "sigma")),
        (
            lambda: OrnsteinUhlenbeckProcessModule(Bounded(-1, 1, (2,)), 1.0, 0.0, 10),
            ("eps_init", "eps_end", "eps"),
        ),
    ],
)
def test_the_schedule_of_exploration_follows_assignments(module, names):
    explore, (start, end, now) = module(), names
    setattr(explore, start, 0.5)
    assert_close(getattr(explore, now), torch.tensor(0.5))
    explore.step(5)
    assert_close(getattr(explore, now), torch.tensor(0.25))
    setattr(explore, end, 0.1)
    assert_close(getattr(explore, now), torch.tensor(0.3))
    explore.annealing_num_steps = 20
    assert_close(getattr(explore, now), torch.tensor(0.4))
    assert (getattr(explore, start), getattr(explore, end), explore.annealing_num_steps) == (0.5, 0.1, 20)
    with pytest.raises(ArgumentError, match="start >= end"):
        setattr(explore, start, 0.01)
    assert getattr(explore, start) == 0.5


def test_each_dimension_of_a_scale_follows_assignments():
    explore = AdditiveGaussianModule(Bounded(-1, 1, (2,)), torch.tensor([1.0, 2.0]), 0.0, 10)
    explore.sigma_init = torch.tensor([3.0, 4.0])
    explore.step(5)
    assert_close(explore.sigma, torch.tensor([1.5, 2.0]))
    explore.sigma_init = 1.0
    assert_close(explore.sigma, torch.tensor([0.5, 0.5]))


def test_a_probability_of_exploration_is_at_most_one():
    explore = EGreedyModule(OneHot(3))
    with pytest.raises(ArgumentError, match=r"EGreedyModule starts at a probability, at most 1, got 1\.5"):
        explore.eps_init = 1.5


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda: EGreedyModule(OneHot(3)), "action_key", "Create a new EGreedyModule"),
        (lambda: EGreedyModule(OneHot(3)), "spec", r"Call set_spec\(spec\)"),
        (lambda: EGreedyModule(OneHot(3)), "eps", "eps"),
        (lambda: AdditiveGaussianModule(Bounded(-1, 1, (2,))), "spec", r"Call set_spec\(spec\)"),
        (lambda: OrnsteinUhlenbeckProcessModule(Bounded(-1, 1, (2,))), "spec", r"Call set_spec\(spec\)"),
        (lambda: MLP(3, 4), "out_features", "Create a new MLP"),
        (lambda: MLP(3, 4), "in_features", "Create a new MLP"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(make, name, message):
    module = make()
    before = getattr(module, name)
    with pytest.raises(AttributeError, match=message):
        setattr(module, name, 7)
    assert getattr(module, name) is before
