"""Policies as files that run without this project: ``torch.export``, AOTInductor packages, ONNX."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl.core import ExplorationType, set_exploration_type
from rl.core.errors import ArgumentError, MissingExtraError, RLError
from rl.core.keys import DONE
from rl.core.mdp import step_mdp
from rl.trainers._device import preserved_rng
from rl.trainers._storage import RunFolder, atomic_path, package_versions, write_atomic
from rl.trainers.evaluation import load_run
from rl.trainers.inference import PolicyModule, base_of, first_values

__all__ = ["FORMATS", "export_policy"]

FORMATS = {"pt2": "policy.pt2", "onnx": "policy.onnx", "aoti": "policy-aoti.pt2"}
"""File of each format."""

#: steps of the environment on whose observations a file is compared with the policy
STEPS = 100

#: difference of floats, relative and absolute, that rounding may cause
TOLERANCE = 1e-4


def export_policy(
    run: str | Path,
    out: str | Path | None = None,
    *,
    formats: Sequence[str] = ("pt2",),
    checkpoint: Literal["best", "last"] | int = "best",
    trust: str | Sequence[str] = (),
) -> dict[str, Path]:
    """Write the policy of a run for one observation at a time, with all that the run does to observations and actions.

    Each file is loaded again and compared with the policy on observations of the environment. ``policy.json`` beside
    them describes inputs and outputs.

    Args:
        run: The run folder.
        out: Folder of the files, which are replaced; ``export`` in the run folder if None.
        formats: Names in `FORMATS`.
        checkpoint: Checkpoint, as for `load_run`.
        trust: Modules that the run may name, as for `load_run`.

    Returns:
        The files, by format.

    Raises:
        ArgumentError: If there is no such format, or none is named.
        MissingExtraError: If a library of a format is not installed.
        RLError: If the policy cannot be exported, or a file gives other actions than the policy.

    Example:
        >>> import tempfile, torch
        >>> from rl.trainers import train
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = train("ppo", total_frames=128, frames_per_batch=64, minibatch_size=32, eval_episodes=1,
        ...                 preset="none", out=f"{folder}/run", display="none").folder
        ...     file = export_policy(run)["pt2"]
        ...     (action,) = torch.export.load(file).module()(torch.zeros(1, 4))
        >>> action.shape
        torch.Size([1])
    """
    if not formats:
        raise ArgumentError(f"no format was named; name one of {', '.join(FORMATS)}")
    for name in formats:
        if name not in FORMATS:
            raise ArgumentError(f"there is no format {name!r}; name one of {', '.join(FORMATS)}")
    _check_installed(formats)
    RunFolder.open(run)  # of which `export` becomes a part
    trained = load_run(run, checkpoint, "cpu", trust=trust)
    with preserved_rng(), torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        env = trained.make_env(1, trained.config.seed)
        module = PolicyModule(trained.policy, env).eval().requires_grad_(requires_grad=False)
        recorded = [*_play(module, env, STEPS)]
        env.close()
        arguments, results = recorded[0]
        if not all(map(torch.equal, results, module(*arguments))):
            raise RLError(
                f"a policy of {trained.recipe.name} draws random numbers also where it is deterministic, as latent"
                " states are, so that no file can be compared with it: play it with load_policy or `rl eval`"
            )
        starts = first_values(env)
        with _quiet():
            program = _exported(module, recorded[0][0])
            folder = Path(run) / "export" if out is None else Path(out)
            files: dict[str, Path] = {}
            differences: dict[str, float] = {}
            for name in formats:
                files[name] = folder / FORMATS[name]
                with atomic_path(files[name]) as path:  # kept only if it returns the same actions
                    call = _WRITERS[name](program, module, recorded[0][0], path)
                    differences[name] = _compare(name, call, recorded)
    facts = {
        "recipe": trained.recipe.name,
        "env": trained.config.env,
        "frames": trained.frames,
        "inputs": _described(module.input_names, recorded[0][0]),
        "outputs": _described(module.output_names, recorded[0][1]),
        "first_values": {name: np.asarray(value).tolist() for name, value in starts.items()},
        "differences": differences,
        "versions": package_versions(),
    }
    write_atomic(folder / "policy.json", json.dumps(facts, indent=2) + "\n")
    return files


def _check_installed(formats: Sequence[str]) -> None:
    for library in ("onnx", "onnxscript", "onnxruntime") if "onnx" in formats else ():
        if find_spec(library) is None:
            raise MissingExtraError(f"ONNX needs {library}, which is not installed: pip install 'rl-trainers[onnx]'")


@contextmanager
def _quiet() -> Generator[None]:
    """Leave out what exporters say about libraries and about their own code."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _play(module: PolicyModule, env: Any, steps: int) -> Iterator[tuple[list[Tensor], tuple[Tensor, ...]]]:
    """Yield arguments and results of the policy in its environment without transforms."""
    base = base_of(env)
    carried = module.start(1)
    td = base.reset()
    for _ in range(steps):
        arguments = [td.get(key).clone() for key in module.observations] + carried
        results = module(*arguments)
        yield arguments, results
        for key, value in zip(module.actions, results, strict=False):
            td.set(key, value)
        td = base.step(td)
        over = bool(td.get(("next", DONE)).any())
        td = base.reset() if over else step_mdp(td)
        if carried:
            carried = (
                module.start(1) if over else [torch.zeros(1, 1, dtype=torch.bool), *results[len(module.actions) :]]
            )


def _exported(module: PolicyModule, arguments: Sequence[Tensor]) -> Any:
    try:
        return torch.export.export(module, tuple(arguments), strict=False)
    except Exception as error:  # the tracer raises what it likes
        said = str(error).partition("\n")[0]
        raise RLError(f"torch.export cannot trace the policy: {type(error).__name__}: {said}") from error


def _write_pt2(program: Any, module: PolicyModule, arguments: Sequence[Tensor], path: Path) -> Callable[..., Any]:
    del module, arguments
    torch.export.save(program, path)
    return torch.export.load(path).module()


def _write_aoti(program: Any, module: PolicyModule, arguments: Sequence[Tensor], path: Path) -> Callable[..., Any]:
    del module, arguments
    import torch._inductor as inductor

    try:
        inductor.aoti_compile_and_package(program, package_path=str(path))
    except Exception as error:  # of a compiler that is not there, or fails
        said = str(error).strip().partition("\n")[0]
        raise RLError(f"AOTInductor cannot compile the policy, which needs a C++ compiler: {said}") from error
    return inductor.aoti_load_package(str(path))


def _write_onnx(program: Any, module: PolicyModule, arguments: Sequence[Tensor], path: Path) -> Callable[..., Any]:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    names: dict[str, Any] = {"input_names": module.input_names, "output_names": module.output_names}
    try:
        written = torch.onnx.export(program, tuple(arguments), dynamo=True, verbose=False, **names)
    except Exception as error:  # of an operation that ONNX has not
        said = str(error).strip().partition("\n")[0]
        raise RLError(f"the policy cannot be written as ONNX: {said}") from error
    assert written is not None
    written.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = [one.name for one in session.get_inputs()]

    def call(*tensors: Tensor) -> list[Any]:
        return session.run(None, dict(zip(inputs, (one.numpy() for one in tensors), strict=True)))

    return call


_WRITERS = {"pt2": _write_pt2, "aoti": _write_aoti, "onnx": _write_onnx}


def _compare(
    name: str, call: Callable[..., Any], recorded: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]
) -> float:
    """Return the largest difference of a file and the policy.

    Raises:
        RLError: If it is more than rounding.
    """
    largest = 0.0
    for arguments, results in recorded:
        for mine, theirs in zip(results, call(*arguments), strict=True):
            expected, found = mine.numpy(), np.asarray(theirs)
            if not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
                raise RLError(f"{FORMATS[name]} differs from the policy by {_difference(found, expected):g}")
            largest = max(largest, _difference(found, expected))
    return largest


def _difference(found: Any, expected: Any) -> float:
    return float(np.abs(found.astype(float) - expected.astype(float)).max(initial=0.0))


def _described(names: Sequence[str], tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
        for name, tensor in zip(names, tensors, strict=True)
    ]
