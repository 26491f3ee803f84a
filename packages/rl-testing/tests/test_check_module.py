"""Each fault of a module is named by check_module."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl.core.errors import CheckError, NotExercisedWarning
from rl.testing import check_module


class Value(nn.Module):
    """Keeps every promise."""

    in_keys = ("observation",)
    out_keys = ("state_value",)

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def value(self, x):
        return self.net(x)

    def forward(self, td):
        return td.set("state_value", self.value(td["observation"]))


class Double(Value):
    def value(self, x):
        return self.net(x).double()


class Hidden(Value):
    """Computes with a layer that no optimizer sees."""

    def __init__(self):
        super().__init__()
        self.more = [nn.Linear(3, 1)]

    def value(self, x):
        return self.net(x) + self.more[0](x)


class Scaled(Value):
    """Its scale is in no state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.zeros(1), persistent=False)

    def value(self, x):
        return self.net(x) + self.shift

    def __setstate__(self, state):
        super().__setstate__(state)
        self.shift.fill_(1.0)


class Forgetful(Value):
    def state_dict(self, *args, **kwargs):
        return {}

    def load_state_dict(self, state, *args, **kwargs):
        pass


class Shared(Value):
    def __deepcopy__(self, memo):
        return self


class Counting(Value):
    count = 0

    def value(self, x):
        self.count += 1
        return self.net(x) + self.count


class ReadsMore(Value):
    def value(self, x):
        return self.net(x)

    def forward(self, td):
        return super().forward(td).set("state_value", td["state_value"] + td["other"])


class Unpicklable(Value):
    def __init__(self):
        super().__init__()
        self.hook = lambda: None


class Diverging(Value):
    """Its lowered form gives other numbers."""

    def lowered(self):
        outer = self

        class TensorFunction:
            in_keys, out_keys = outer.in_keys, outer.out_keys

            def __call__(self, x):
                return (outer.net(x) + 1,)

        return TensorFunction()


FAULTS = {
    Double: r"^'state_value' is float64, although nothing that is read is: expected float32 \(Double\)",
    Hidden: r"^a parameter of shape \[\d.*\] is not registered",
    Scaled: "^a deep copy returns another result|^a pickle returns another result",
    Forgetful: "^the state_dict is incomplete",
    Shared: "^a deep copy shares its parameters",
    Counting: "^the same seed yields two results|^reads",
    ReadsMore: r"^reads \['other'\], which the contract does not declare",
    Unpicklable: "^cannot be pickled",
    Diverging: "^the lowered form returns another 'state_value'",
}


def batch():
    return TensorDict(observation=torch.randn(4, 3), other=torch.ones(4, 1), batch_size=[4])


def test_a_module_that_keeps_its_promises_passes():
    assert check_module(Value(), batch()).not_exercised == []


@pytest.mark.parametrize(("kind", "message"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_named_reason_first(kind, message):
    with pytest.raises(CheckError, match=message):
        check_module(kind(), batch())


def test_a_callable_without_parameters_passes_and_says_so():
    class Half:
        in_keys, out_keys = ("observation",), ("half",)

        def __call__(self, td):
            return td.set("half", td["observation"] / 2)

    with pytest.warns(NotExercisedWarning, match="no torch.nn.Module"):
        check_module(Half(), batch())
