"""Each fault of a component with a contract is named by check_contract."""

import pytest
import torch
from tensordict import TensorDict

from rl.core.contract import Contract, Key
from rl.core.errors import CheckError
from rl.testing import check_contract


class Doubles:
    """Keeps every promise."""

    contract = Contract((Key("x", ("N",), dtype=torch.float32),), (Key("twice", ("N",)),))

    def __call__(self, td):
        return td.set("twice", 2 * td["x"])


class Forgets(Doubles):
    def __call__(self, td):
        return td


class WritesMore(Doubles):
    def __call__(self, td):
        return super().__call__(td).set("more", td["x"])


class WritesMoreIntoItsInput(Doubles):
    def __call__(self, td):
        td["more"] = td["x"]
        return TensorDict(twice=2 * td["x"], batch_size=td.batch_size)


class InPlace(Doubles):
    def __call__(self, td):
        return td.set("twice", td["x"].mul_(2))


class Replaces(Doubles):
    def __call__(self, td):
        return super().__call__(td).set("x", td["x"] + 1)


class ReadsMore(Doubles):
    def __call__(self, td):
        return td.set("twice", 2 * td["x"] + td["y"])


class OtherShape(Doubles):
    def __call__(self, td):
        return td.set("twice", torch.cat([td["x"], td["x"]], -1))


class OtherType(Doubles):
    contract = Contract(Doubles.contract.reads, (Key("twice", dtype=torch.float64),))


class Broadcasts(Doubles):
    contract = Contract(Doubles.contract.reads, (Key("twice", None),))

    def __call__(self, td):
        return td.set("twice", td["x"][:, :1] + td["x"][:, 0])


class ReturnsATensor(Doubles):
    def __call__(self, td):
        return 2 * td["x"]


FAULTS = {
    Forgets: r"^\['twice'\] is declared and was not written \(Forgets\)",
    WritesMore: r"^\['more'\] was written and is not declared",
    WritesMoreIntoItsInput: r"^\['more'\] was written and is not declared",
    InPlace: "^changed the entry 'x' of its input",
    Replaces: "^changed the entry 'x' of its input",
    ReadsMore: r"^reads \['y'\], which the contract does not declare",
    OtherShape: r"^'twice' is declared \[\*B, N\], it is \[4, 6\] in a batch \[4\] where {'N': 3}",
    OtherType: "^'twice' is declared torch.float64, it is torch.float32",
    Broadcasts: r"^add broadcasts \[4\] with \[4, 1\] to \[4, 4\]",
    ReturnsATensor: "^must return a TensorDict, got Tensor",
}


def batch():
    return TensorDict(x=torch.randn(4, 3), y=torch.ones(4, 3), batch_size=[4])


def test_what_keeps_its_promises_passes():
    assert set(check_contract(Doubles(), batch()).keys()) == {"x", "twice"}


@pytest.mark.parametrize(("kind", "message"), FAULTS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_is_named_reason_first(kind, message):
    with pytest.raises(CheckError, match=message):
        check_contract(kind(), batch())
