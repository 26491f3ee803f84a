"""The kit for copies of rows passes the toy and catches wrong ones."""

import pytest

from rl.testing import ToyRowGather, check_row_gather


def test_the_toy_passes():
    check_row_gather(ToyRowGather)


class FirstRowsOnly(ToyRowGather):
    def rows(self, written, index):
        return super().rows(written, index)[:1]


class ForgetsTheType(ToyRowGather):
    def rows(self, written, index):
        return [copy.double() for copy in super().rows(written, index)]


class ForgetsTheShape(ToyRowGather):
    def rows(self, written, index):
        return [copy.flatten() for copy in super().rows(written, index)]


class IgnoresWhatIsWritten(ToyRowGather):
    def rows(self, written, index):
        return super().rows(len(self._tensors[0]), index)


class WrapsNegativeRows(ToyRowGather):
    def rows(self, written, index):
        return super().rows(written, index.where(index >= 0, index + written))


class RunsOverTheEnd(ToyRowGather):
    def runs(self, written, begin, steps):
        return super().runs(written + steps - 1, begin, steps)


class ReadsIndicesSideBySide(ToyRowGather):
    def rows(self, written, index):
        return super().rows(written, index.as_strided(index.shape, (1,)))


class KeepsWhatItRead(ToyRowGather):
    def __init__(self, tensors):
        super().__init__([tensor.clone() for tensor in tensors])


class KeepsItsCopies(ToyRowGather):
    def __init__(self, tensors):
        super().__init__(tensors)
        self._made = {}

    def rows(self, written, index):
        return self._made.setdefault((written, *index.tolist()), super().rows(written, index))


class AnotherOrderOfRuns(ToyRowGather):
    def runs(self, written, begin, steps):
        copies = super().runs(written, begin, steps)
        size = len(begin), steps
        return [copy.unflatten(0, size).transpose(0, 1).flatten(0, 1) for copy in copies] if begin.numel() else copies


WRONG_ROWS = {
    FirstRowsOnly: "returned 1 tensors for",
    ForgetsTheType: "returned torch.float64",
    ForgetsTheShape: "returned the shape",
    IgnoresWhatIsWritten: "an index behind the written rows must raise IndexError",
    WrapsNegativeRows: "a negative index must raise IndexError",
    RunsOverTheEnd: "a run over the end must raise IndexError",
    ReadsIndicesSideBySide: "indices that lie apart.*differs from indexing",
    KeepsWhatItRead: "after rows were written.*differs from indexing",
    KeepsItsCopies: "after a copy was changed.*differs from indexing",
    AnotherOrderOfRuns: "runs of 4.*differs from indexing",
}


@pytest.mark.parametrize(("rows", "message"), WRONG_ROWS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_wrong_copies_of_rows_are_caught(rows, message):
    with pytest.raises(AssertionError, match=message):
        check_row_gather(rows)
