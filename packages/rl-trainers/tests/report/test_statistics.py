"""Statistics of runs against rliable 1.2.0, whose numbers were computed once with the code in the docstring below.

from rliable import library, metrics
metrics.aggregate_iqm(x), metrics.probability_of_improvement(x, y)       # x, y: [runs, 1]
library.get_interval_estimates({"x": x}, lambda s: np.array([metrics.aggregate_iqm(s)]), reps=50_000)
library.get_interval_estimates({"p": (x, y)}, lambda a, b: np.array([...(a, b)]), reps=20_000)
"""

import numpy as np
import pytest

from rl.core.errors import ArgumentError, ShapeError
from rl.trainers import bootstrap_interval, interquartile_mean, probability_of_improvement

RLIABLE = {
    "x": [10.37719066328018, 9.603685410126094, 11.921267951329845, 10.31470035145912, 8.392991880516668],
    "y": [
        13.44638021963794,
        17.21600018052055,
        15.78832385251697,
        9.18505905677203,
        6.93831411581579,
        9.50690214985059,
        12.165303917388975,
    ],
    "curve": [
        [-2.3250307746388343, -2.54382243857138, -3.7897333858244453, -4.522000740527897],
        [-0.5442589828573099, -0.8605591392264644, -0.4489286028523316, 0.593584766590346],
        [-0.12853466294403426, 1.2379288076056516, 0.5727341341190381, 0.9242442042120578],
        [0.9034701816518086, 0.9974824794126832, 0.2539832300588748, -0.6677421461995446],
        [-0.45772582566733916, -0.23753070219728975, -1.2471488857360256, -1.4563244606077386],
    ],
    "iqm_x": 10.098525474955132,
    "iqm_y": 12.018393839233301,
    "iqm_curve": [-0.37683982382289444, -0.033535787337023636, -0.48069808617649407, -0.5101606134056457],
    "pi": 0.37142857142857144,
    "ties": 0.5833333333333334,
    "ci_x": [8.796556390386476, 11.406575521979958],
    "ci_y": [8.946778671128635, 15.137081664966072],
    "ci_pi": [0.08571428571428572, 0.7142857142857143],
}
X, Y = RLIABLE["x"], RLIABLE["y"]


def test_the_interquartile_mean_is_that_of_rliable():
    assert interquartile_mean(X) == pytest.approx(RLIABLE["iqm_x"], rel=1e-12)
    assert interquartile_mean(Y) == pytest.approx(RLIABLE["iqm_y"], rel=1e-12)
    assert interquartile_mean(RLIABLE["curve"]) == pytest.approx(np.array(RLIABLE["iqm_curve"]), rel=1e-12)
    assert interquartile_mean(np.array(RLIABLE["curve"]).T, axis=1) == pytest.approx(np.array(RLIABLE["iqm_curve"]))


def test_the_probability_of_improvement_is_that_of_rliable():
    assert probability_of_improvement(X, Y) == pytest.approx(RLIABLE["pi"], rel=1e-12)
    assert probability_of_improvement([1, 2, 2], [2, 1]) == pytest.approx(RLIABLE["ties"], rel=1e-12)
    assert probability_of_improvement(X, X) == 0.5


def test_bootstrap_intervals_are_those_of_rliable():
    assert bootstrap_interval(X, resamples=50_000) == pytest.approx(RLIABLE["ci_x"], abs=0.05)
    assert bootstrap_interval(Y, resamples=50_000) == pytest.approx(RLIABLE["ci_y"], abs=0.05)
    found = bootstrap_interval(X, Y, statistic=probability_of_improvement, resamples=50_000)
    assert found == pytest.approx(RLIABLE["ci_pi"], abs=0.03)


def test_a_run_is_drawn_with_all_points_of_its_curve():
    curve = np.array([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]])
    low, high = bootstrap_interval(curve)
    assert (low[1] - low[0], high[1] - high[0]) == pytest.approx((10, 10))


def test_intervals_are_repeatable_and_narrow_with_the_level():
    assert (bootstrap_interval(X) == bootstrap_interval(X)).all()
    wide, narrow = bootstrap_interval(X, level=0.99), bootstrap_interval(X, level=0.5)
    assert wide[0] < narrow[0] < interquartile_mean(X) < narrow[1] < wide[1]


def test_one_run_has_an_interval_of_one_point():
    assert bootstrap_interval([3.0]).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("call", "error", "said"), [
    (lambda: interquartile_mean([]), ShapeError, "one run at least"),
    (lambda: interquartile_mean(3.0), ShapeError, "one run at least"),
    (lambda: bootstrap_interval(X, level=95), ArgumentError, r"level must be in \(0, 1\), got 95"),
    (lambda: bootstrap_interval(X, resamples=0), ArgumentError, "resamples must be above 0, got 0"),
])  # fmt: skip
def test_bad_arguments_are_refused(call, error, said):
    with pytest.raises(error, match=said):
        call()
