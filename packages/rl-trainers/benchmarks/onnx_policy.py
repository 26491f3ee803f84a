"""Time of an exported ONNX policy on one observation, against its forms in torch.

Run: ``./x bench packages/rl-trainers/benchmarks/onnx_policy.py [repetitions] [calls]``. The goal is at most 1 of each.

The policy is that of ``ppo`` on Pendulum-v1 with normalized observations, 2 x 64 networks. Its forms in torch are what
`rl export` writes as ``pt2``, and ``predict`` of `load_policy`, which takes and returns NumPy arrays. One thread each.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from rl.trainers import export_policy, load_policy, train


def seconds(call: Callable[[], Any], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls


def main(repetitions: int = 7, calls: int = 2_000) -> dict[str, float]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        options = {"env": "Pendulum-v1", "total_frames": 2_048, "normalize_observation": True, "preset": "none"}
        train("ppo", **options, eval_episodes=1, final_eval_episodes=1, out=run, display="none")
        files = export_policy(run, formats=["pt2", "onnx"])
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(files["onnx"]), settings)
        program = torch.export.load(files["pt2"]).module()
        policy = load_policy(run)
    observation = np.array([[1.0, 0.0, 0.5]], np.float32)
    tensor = torch.from_numpy(observation)
    forms: dict[str, Callable[[], Any]] = {
        "onnx": lambda: session.run(None, {"observation": observation}),
        "torch.export": lambda: program(tensor),
        "predict": lambda: policy.predict(observation[0]),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    with torch.no_grad():
        for repetition in range(-1, repetitions):  # the first one is not counted
            for name, call in forms.items():
                took = seconds(call, calls)
                if repetition >= 0:
                    times[name].append(took)
    found = {name: statistics.median(one) for name, one in times.items()}
    print(json.dumps({f"{name}, microseconds": round(1e6 * one, 1) for name, one in found.items()}))
    out = {
        f"onnx / {name}": statistics.median(a / b for a, b in zip(times["onnx"], times[name], strict=True))
        for name in ("torch.export", "predict")
    }
    print(json.dumps({name: round(one, 3) for name, one in out.items()}))
    return out


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
