"""`check_policy_step` finds what is wrong with a policy of a back end."""

import pytest
import torch
from tensordict.nn import TensorDictModule

from rl.core.errors import CheckError
from rl.core.tensor_functions import TensorFunction, as_function
from rl.testing import check_policy_step

PLAIN = as_function(TensorDictModule(torch.nn.Linear(3, 2), ["observation"], ["action"]))
X = torch.randn(4, 3)
MEMORY = torch.empty(4, 2)


def other(function, out_keys=("action",)):
    return TensorFunction(function, ["observation"], out_keys)


def test_the_policy_itself_conforms():
    check_policy_step(PLAIN, PLAIN, [X])


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (other(lambda x: (PLAIN(x)[0] + 1e-3,)), "differs from PyTorch by more than 1e-05"),
        (other(lambda x: (PLAIN(x)[0].double(),)), r"returned torch.float64 \(4, 2\), expected torch.float32"),
        (other(lambda x: (PLAIN(x)[0].unsqueeze(0),)), r"returned torch.float32 \(1, 4, 2\)"),
        (other(PLAIN.fn, ["logits"]), r"out_keys are \['logits'\]"),
        (other(lambda x: (MEMORY.copy_(PLAIN(x)[0]),)), "two calls returned the same memory"),
        (other(lambda x: (PLAIN(x)[0], x.add_(1))[:1]), "changed its inputs"),
    ],
)
def test_a_wrong_step_is_named(step, why):
    with pytest.raises(CheckError, match=why):
        check_policy_step(step, PLAIN, [X.clone()])


def test_blocks_with_other_random_numbers_are_named():
    class Drawing:
        in_keys, out_keys = ["observation"], ["action"]
        ahead = 0

        def prepare(self, steps):
            self.ahead = steps

        def __call__(self, x):
            random = torch.rand(()) * 1e-8 if self.ahead == 1 else torch.rand(2)[0] * 2e-6
            return (PLAIN(x)[0] + random,)

    with pytest.raises(CheckError, match="differ when they are announced together"):
        check_policy_step(Drawing(), PLAIN, [X])
