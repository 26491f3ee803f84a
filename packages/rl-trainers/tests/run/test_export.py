"""``rl export``: files that give the actions of the policy, without this project."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rl.core.cli import main
from rl.core.errors import ArgumentError, CheckpointError, MissingExtraError, RLError
from rl.envs import GymEnv, TransformedEnv, VecNorm
from rl.trainers import PolicyModule, export_policy, load_run, train
from rl.trainers.export import STEPS

SMALL = {"total_frames": 128, "num_envs": 2, "num_cells": (8,), "eval_every": 128, "eval_episodes": 1,
         "loggers": ("csv",),
         "final_eval_episodes": 1, "max_episode_steps": 30, "preset": "none", "display": "none"}  # fmt: skip
ON = {"frames_per_batch": 64, "minibatch_size": 64, "epochs": 1}
OFF = {"frames_per_batch": 32, "learning_starts": 32, "batch_size": 16}
RUNS = {
    "choices": ("ppo", {"env": "CartPole-v1", **ON}),
    "clipped": ("ppo", {"env": "Pendulum-v1", "normalize_observation": True, "clip_actions": True, **ON}),
    "gru": ("ppo", {"env": "CartPole-v1", "policy": "gru", "frame_stack": 2, "recurrent_size": 8, **ON}),
    "image": ("ppo", {"env": "SeenImage-v0", **ON}),
    "dict": ("ppo", {"env": "Dict-v0", **ON}),
    "dqn": ("dqn", {"env": "CartPole-v1", **OFF}),
}


def trained(name):
    recipe, settings = RUNS[name]
    return train(recipe, out=name, **{**SMALL, **settings}).folder


def play(folder, call):
    """Compare a file with the policy in its environment, as a user would feed it; return the number of steps."""
    run = load_run(folder)
    env = run.make_env(1, seed=11)
    module = PolicyModule(run.policy, env)
    facts = json.loads((folder / "export" / "policy.json").read_text())
    inputs = {one["name"]: one for one in facts["inputs"]}
    outputs = [one["name"] for one in facts["outputs"]]
    carried = {}
    observed = [one for one in inputs if one != "is_init" and f"next.{one}" not in outputs]
    assert [*inputs] == module.input_names
    base = env
    while isinstance(base, TransformedEnv):
        base = base.base_env
    raw = base.reset()
    steps = 0
    for _ in range(40):
        given = {name: np.asarray(raw.get(tuple(name.split(".")))) for name in observed}
        if "is_init" in inputs:
            given["is_init"] = np.full((1, 1), not carried)
            given |= carried or {
                name: np.zeros(one["shape"], one["dtype"]) for name, one in inputs.items() if f"next.{name}" in outputs
            }
        found = dict(zip(outputs, call(given), strict=True))
        reference = module(*(torch.as_tensor(given[name]) for name in inputs))
        np.testing.assert_allclose(found["action"], reference[0].detach().numpy(), rtol=1e-4, atol=1e-4)
        carried = {name: found[f"next.{name}"] for name in inputs if f"next.{name}" in outputs}
        raw.set("action", torch.as_tensor(found["action"]))
        out = base.step(raw)
        steps += 1
        if out["next", "done"].any():
            break
        raw = out["next"]
    return steps


@pytest.mark.parametrize("name", RUNS)
def test_a_torch_export_file_gives_the_actions_of_the_policy(name):
    folder = trained(name)
    path = export_policy(folder)["pt2"]
    program = torch.export.load(path).module()
    facts = json.loads((folder / "export" / "policy.json").read_text())
    names = [one["name"] for one in facts["inputs"]]
    call = lambda given: [one.numpy() for one in program(*(torch.as_tensor(given[key]) for key in names))]
    assert play(folder, call) > 5
    assert facts["differences"]["pt2"] <= 1e-4
    assert facts["env"] == RUNS[name][1]["env"]


@pytest.mark.parametrize("name", RUNS)
def test_an_onnx_file_gives_the_actions_of_the_policy(name):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = trained(name)
    path = export_policy(folder, formats=["onnx"])["onnx"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert play(folder, lambda given: session.run(None, given)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_compiled_file_gives_the_actions_of_the_policy(name):
    folder = trained(name)
    path = export_policy(folder, formats=["aoti"])["aoti"]
    program = torch._inductor.aoti_load_package(str(path))  # torch documents it under this name
    facts = json.loads((folder / "export" / "policy.json").read_text())
    names = [one["name"] for one in facts["inputs"]]
    assert play(folder, lambda given: [o.numpy() for o in program(*(torch.as_tensor(given[k]) for k in names))]) > 5


def test_a_torch_export_file_needs_nothing_of_this_project():
    path = export_policy(trained("clipped"))["pt2"].resolve()
    code = f"import torch, sys; print(torch.export.load({str(path)!r}).module()(torch.zeros(1, 3))[0].shape)"
    code += "; assert not any(name == 'rl' or name.startswith('rl.') for name in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "torch.Size([1, 1])" in done.stdout


def test_normalization_uses_the_statistics_of_training():
    env = TransformedEnv(GymEnv("Pendulum-v1"), VecNorm(["observation"], decay=1.0))
    env.rollout(20)
    seen = {}

    class Policy(torch.nn.Module):
        in_keys = ("observation",)

        def forward(self, td):
            seen["observation"] = td["observation"]
            return td.set("action", torch.zeros(1, 1))

    module = PolicyModule(Policy(), env)
    raw = torch.tensor([[0.5, -0.5, 2.0]])
    module(raw)
    norm = env.transform if isinstance(env.transform, VecNorm) else env.transform[0]
    torch.testing.assert_close(
        seen["observation"], ((raw - norm.loc["observation"]) / norm.scale["observation"]).float()
    )


def test_the_command_writes_the_files_and_says_so(capsys):
    folder = trained("choices")
    assert main(["export", str(folder), "--out", "files"]) == 0
    assert capsys.readouterr().out == "files/policy.pt2: the same actions as the policy\n"
    assert sorted(path.name for path in Path("files").iterdir()) == ["policy.json", "policy.pt2"]


def test_a_policy_that_samples_latent_states_is_rejected():
    settings = {"env": "CartPole-v1", "size": "tiny", "learning_starts": 32, "batch_size": 2, "batch_length": 4}
    settings |= {name: value for name, value in SMALL.items() if name != "num_cells"}
    folder = train("dreamer-v3", out="latent", frames_per_batch=32, **settings).folder
    with pytest.raises(RLError, match="dreamer-v3 draws random numbers also where it is deterministic"):
        export_policy(folder)
    assert not (folder / "export").exists()


def test_a_file_with_other_actions_is_not_kept(monkeypatch):
    folder = trained("choices")
    # the writers have no public name; a format that rounds wrongly cannot be made otherwise
    wrong = lambda program, module, arguments, path: lambda *tensors: [np.array([5])]
    monkeypatch.setitem(sys.modules["rl.trainers.export"]._WRITERS, "pt2", wrong)
    with pytest.raises(RLError, match=r"policy\.pt2 differs from the policy by [45]"):
        export_policy(folder)
    assert not (folder / "export" / "policy.pt2").exists()
    assert STEPS == 100


def test_wrong_input_is_explained(monkeypatch, capsys):
    with pytest.raises(CheckpointError, match="is not a run folder"):
        export_policy("elsewhere")
    with pytest.raises(ArgumentError, match="there is no format 'tf'; name one of pt2, onnx, aoti"):
        export_policy("elsewhere", formats=["tf"])
    with pytest.raises(ArgumentError, match="no format was named; name one of pt2, onnx, aoti"):
        export_policy("elsewhere", formats=[])
    monkeypatch.setattr("rl.trainers.export.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"ONNX needs onnx, .* pip install 'rl-trainers\[onnx\]'"):
        export_policy("elsewhere", formats=["onnx"])
    assert main(["export"]) == 2
    assert "required: RUN" in capsys.readouterr().err
