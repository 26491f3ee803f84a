"""Launch plans: the selected shapes, and that they fit the device."""

import itertools

import pytest
import torch

from rl.core.errors import BackendError

# launches are planned for GPUs that are not here
from rl.recurrent_triton._plan import SHAPES, Device, cdiv, plan

H200 = Device(multi_processor_count=132, shared_memory_per_block_optin=232448)
SMALL = Device(multi_processor_count=14, shared_memory_per_block_optin=101376)
MODES = [(torch.float32, mode) for mode in ("ieee", "tf32", "tf32x3")] + [(torch.bfloat16, "ieee")]


@pytest.mark.parametrize(
    ("batch", "hidden", "mode", "shape", "kept"),
    [
        (256, 64, 1, "resident", True),
        (256, 128, 3, "resident", True),
        (256, 256, 1, "group", True),
        (32, 512, 1, "group", False),
        (256, 256, 0, "group", False),
        (8192, 512, 1, "group", False),
        (8192, 256, 0, "group", False),
    ],
)
def test_the_selected_shape_on_an_h200(batch, hidden, mode, shape, kept):
    for direction in ("forward", "backward"):
        found = plan("lstm", direction, batch, hidden, *MODES[mode], H200)
        assert found.shape == shape
        assert bool(found.ahead) == kept


@pytest.mark.parametrize(("device", "widest"), [(H200, 4096), (SMALL, 448), (Device(1, 49152), 32)])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_groups_run_at_once_and_weights_fit(device, widest, cell):
    batches, sizes = (1, 17, 256, 1000, 8192, 32768), (1, 16, 32, 33, 100, 256, 300, 448, 512, 1024, 4096)
    sizes = [hidden for hidden in sizes if hidden <= widest]
    for batch, hidden, mode, direction in itertools.product(batches, sizes, MODES, ("forward", "backward")):
        found = plan(cell, direction, batch, hidden, *mode, device)
        if found.shape == "group":
            assert 1 <= found.wave * cdiv(hidden, found.columns) <= device.multi_processor_count
            kept = hidden * found.columns * (4 if cell == "lstm" else 3) * mode[0].itemsize
            assert not found.ahead or kept < device.shared_memory_per_block_optin


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("mode", "widest"), [(0, 14 * 32), (1, 14 * 64), (3, 14 * 64)])
def test_a_hidden_size_with_more_tiles_than_processors_is_refused(cell, direction, mode, widest):
    for batch in (1, 256, 8192):
        assert plan(cell, direction, batch, widest, *MODES[mode], SMALL).shape == "group"
        for shape in (None, "group"):
            with pytest.raises(BackendError, match=r'14 processors .* take recurrent_backend="scan"'):
                plan(cell, direction, batch, widest + 1, *MODES[mode], SMALL, shape)


def test_weights_that_do_not_fit_cannot_be_resident():
    with pytest.raises(BackendError, match="resident"):
        plan("lstm", "forward", 1, 256, *MODES[1], H200, "resident")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_requested_shape_is_used(shape):
    assert plan("gru", "backward", 4, 48, *MODES[1], H200, shape).shape == shape
