"""Keyword arguments that a signature does not have."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn

from rl.core.arguments import check_arguments, constructor_setting, foreign_arguments
from rl.core.errors import ArgumentError, RLError


@foreign_arguments(needless={"fast": ("unused: it is", False, None)}, replaced={"size": "use width="})
class Layer(nn.Module):
    def __init__(self, width: int = 2, *, bias: bool = True) -> None:
        super().__init__()
        self.width, self.bias = width, bias

    def forward(self, x):
        return x * self.width


class Wider(Layer):
    def __init__(self, extra: int, **options) -> None:
        super().__init__(**options)
        self.extra = extra


@foreign_arguments(needless={"fast": ("unused: it is", False), "slow": ("unused: it is not", False)})
class Passing(Layer):
    def __init__(self, **options) -> None:
        super().__init__(**options)


@foreign_arguments(needless={"fast": ("unused: it is", False)})
class Bare:
    pass


@foreign_arguments(replaced={"n": "use count="})
def count_up(count=1):
    return count + 1


@pytest.mark.parametrize("value", [False, None])
def test_a_needless_argument_is_dropped_at_its_default(value):
    assert Layer(3, fast=value, bias=False).width == 3
    assert isinstance(Bare(fast=False), Bare)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Layer(fast=True), "Layer got an unexpected keyword argument fast=True: unused: it is"),
        (lambda: Layer(fast=0), "fast=0: unused"),
        (lambda: Layer(fast=torch.zeros(2)), "'fast': unused"),
        (lambda: Layer(size=3), "Layer got an unexpected keyword argument 'size': use width="),
        (lambda: Layer(widht=3), "'widht'; did you mean 'width'?"),
        (lambda: Layer(q=3), "'q'($|; if TorchRL has it, )"),
        (lambda: Wider(1, size=3), "Wider got an unexpected keyword argument 'size': use width="),
        (lambda: Passing(slow=True), "slow=True: unused: it is not"),
        (lambda: Passing(widht=3), "Passing .*did you mean 'width'"),
        (lambda: check_arguments(Layer, {"width": 3, "widht": 3}, "Other"), "Other .*did you mean 'width'"),
        (lambda: Bare(q=1), "Bare got an unexpected keyword argument 'q'($|; if TorchRL has it, )"),
        (lambda: count_up(n=1), "count_up got an unexpected keyword argument 'n': use count="),
    ],
)
def test_others_are_refused_with_what_to_do(call, message):
    with pytest.raises(ArgumentError, match=message.replace("?", r"\?")) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, RLError)


def test_subclasses_pass_on_what_they_do_not_know():
    assert Wider(1, width=5, fast=False).width == 5
    assert Passing(width=5, fast=False, slow=False).width == 5


def test_signatures_stay_as_they_are():
    assert str(inspect.signature(Layer)) == "(width: int = 2, *, bias: bool = True) -> None"
    assert str(inspect.signature(count_up)) == "(count=1)"
    assert not inspect.signature(Bare).parameters


def test_objects_are_copied_and_pickled():
    for made in (copy.deepcopy(Layer(7)), pickle.loads(pickle.dumps(Layer(7)))):
        assert made.width == 7


def test_a_function_that_builds_modules_compiles_whole():
    compiled = torch.compile(lambda x: Layer(3, bias=False)(x) * count_up(count=1), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [6, 6]


class Scaled(nn.Module):
    factor = constructor_setting("_factor")
    name = constructor_setting("_name", "Call rename(name)")

    def __init__(self, factor, name="a") -> None:
        super().__init__()
        self._factor, self._name = factor, name

    def forward(self, x):
        return x * self.factor


class Renamed(Scaled):
    name = "b"


def test_a_fixed_setting_can_be_read_and_not_assigned():
    module = Scaled(3)
    assert (module.factor, module.name) == (3, "a")
    with pytest.raises(AttributeError, match=r"Scaled\.factor is set by the constructor, .*\. Create a new Scaled$"):
        module.factor = 4
    with pytest.raises(AttributeError, match=r"Scaled\.name .*\. Call rename\(name\)$"):
        module.name = "b"
    with pytest.raises(AttributeError):
        del module.factor
    assert module.factor == copy.deepcopy(module).factor == pickle.loads(pickle.dumps(module)).factor == 3


def test_a_subclass_names_the_object_that_refuses_or_takes_the_name():
    module = Renamed(3)
    with pytest.raises(AttributeError, match=r"Renamed\.factor .*Create a new Renamed"):
        module.factor = 4
    module.name = "c"
    assert module.name == "c"


def test_a_fixed_setting_is_read_by_compiled_code():
    compiled = torch.compile(Scaled(3), fullgraph=True, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [3, 3]
