"""TorchRL's own tests on this toolkit: how many of those that test public behaviour pass, at least 75 %.

Run it with a checkout of https://github.com/pytorch/rl, and the files to run (all in `FILES` if none is named):
`python packages/rl-torchrl/benchmarks/torchrl_tests.py CHECKOUT [test_specs.py ...]`.

One set of parameters of each test function is run, the first. Mocks come from `torchrl.testing` of the checkout,
and so do the helpers of `torchrl._utils`. Left out are tests that TorchRL skips on this machine, those that read a
private attribute of another object or replace attributes of modules, and those that use a private name of TorchRL,
also by a subclass in the test.
A test that fails because it uses a name that has no counterpart is counted apart, as absent; it is one that tests
public behaviour too, so that two ratios are printed. TorchRL's switch of its warnings, ``RL_WARNINGS``, is off.
A file that takes too long counts with the tests that ended.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

FILES = [
    "test_specs.py",
    "test_distributions.py",
    "test_exploration.py",
    "test_postprocs.py",
    "envs/test_step_mdp.py",
    "envs/test_env_base.py",
    "envs/test_nested.py",
    "envs/test_special.py",
    "modules/test_actor.py",
    "modules/test_mlp_conv.py",
    "modules/test_multiagent_models.py",
    "modules/test_qvalue_actor.py",
    "modules/test_rnn.py",
    "modules/test_td_module.py",
    "modules/test_value_transforms.py",
    "objectives/test_a2c.py",
    "objectives/test_bc.py",
    "objectives/test_cql.py",
    "objectives/test_ddpg.py",
    "objectives/test_dqn.py",
    "objectives/test_iql.py",
    "objectives/test_loss_module.py",
    "objectives/test_ppo.py",
    "objectives/test_sac.py",
    "objectives/test_tqc.py",
    "objectives/test_values.py",
    "rb/test_composable.py",
    "rb/test_ensemble.py",
    "rb/test_her.py",
    "rb/test_prioritized.py",
    "rb/test_rb_core.py",
    "rb/test_rb_transforms.py",
    "rb/test_samplers.py",
    "rb/test_storages.py",
    "rb/test_writers.py",
    "transforms/test_action_transforms.py",
    "transforms/test_clip_transform.py",
    "transforms/test_compose_and_env.py",
    "transforms/test_device_transforms.py",
    "transforms/test_env_transforms.py",
    "transforms/test_key_transforms.py",
    "transforms/test_module_transforms.py",
    "transforms/test_normalization.py",
    "transforms/test_observation_transforms.py",
    "transforms/test_reward_transforms.py",
    "transforms/test_tensor_transforms.py",
    "transforms/test_timer_video.py",
]
SECONDS_OF_A_FILE = 240
SECONDS_OF_A_TEST = 20
REPORT = "TORCHRL_TESTS_REPORT"
CHECKOUT = "TORCHRL_TESTS_CHECKOUT"
KEEP = "TORCHRL_TESTS_KEEP"
"""Variable that names a folder for the outcome and its reason by test, one JSON file each."""


class _Absent(type):
    """A name that has no counterpart: it may be imported, and raises where a test uses it."""

    running = used = False
    why = ""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or _Absent.running:
            _Absent.used |= not name.startswith("__")
            raise AttributeError(cls.why)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        if _Absent.running:
            _Absent.used = True
            raise ImportError(cls.why)
        return cls


class _Checkout:
    """Finder of `torchrl.testing` in the checkout, and of what the helpers of `torchrl._utils` import."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._utils: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        file = self.root / name.replace(".", "/")
        if not re.match(r"torchrl\.(testing|_comm)(\.|$)", name):
            return None
        if file.is_dir():
            return spec_from_file_location(name, file / "__init__.py", submodule_search_locations=[str(file)])
        return spec_from_file_location(name, file.with_suffix(".py"))

    def utils(self, name: str) -> Any:
        """Return a helper of `torchrl._utils`."""
        if self._utils is None:
            spec: Any = spec_from_file_location("torchrl_own_utils", self.root / "torchrl" / "_utils.py")
            self._utils = sys.modules["torchrl_own_utils"] = module_from_spec(spec)
            spec.loader.exec_module(self._utils)
        return getattr(self._utils, name, None)


def _exists(module: Path) -> bool:
    return module.is_dir() or module.with_suffix(".py").exists()


def _stand_in(checkout: Path) -> None:
    """Install `torchrl`, with names that may be imported though they have no counterpart."""
    from rl import torchrl
    from rl.torchrl import _tree

    own = _Checkout(checkout)
    look_up, find = _tree.look_up, _tree.Finder.find_spec

    def tolerant(module: str, below: str, name: str) -> Any:
        if name.startswith("_has_"):
            return find_spec({"gym": "gymnasium", "gym_regular": "gymnasium"}.get(name[5:], name[5:])) is not None
        try:
            return look_up(module, below, name)
        except (ImportError, AttributeError) as error:
            if name.startswith("__") or not name.strip("_"):
                raise
            helper = own.utils(name) if below in ("", "_utils") else None
            return _Absent(name, (), {"why": str(error)}) if helper is None else helper

    def any_module(self: Any, fullname: str, path: Any, target: Any = None) -> Any:
        spec = find(self, fullname, path, target)
        named = fullname.startswith("torchrl.") and _exists(checkout / fullname.replace(".", "/"))
        return ModuleSpec(fullname, self, is_package=True) if spec is None and named else spec

    _tree.look_up, _tree.Finder.find_spec = tolerant, any_module
    torchrl.install(replace=True)
    sys.meta_path.insert(0, own)  # pyright: ignore[reportArgumentType]  # a finder by its methods


def _private(item: Any) -> bool:
    """Whether a test reads private attributes, replaces attributes, or uses a private name of TorchRL."""
    if {"monkeypatch", "mocker"} & {*item.fixturenames}:
        return True
    names = {
        name
        for name, value in vars(item.module).items()
        if re.match(r"_[a-zA-Z]", name)
        and not name.startswith("_has_")
        and (isinstance(value, _Absent) or str(getattr(value, "__module__", "")).startswith(("torchrl", "rl.")))
        and not str(getattr(value, "__module__", "")).startswith("torchrl.testing")
    }
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(item.function)))):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-zA-Z]", node.attr):
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id in ("self", "cls")):
                return True
        if isinstance(node, ast.Name) and (node.id in names or node.id in ("mock", "patch")):
            return True
        of_torchrl = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchrl")
        if of_torchrl and any(alias.name.startswith("_") for alias in node.names):
            return True
    return False


if CHECKOUT in os.environ:  # this file is a plugin of pytest, in the process of one test file
    import signal

    import pytest

    _results: dict[str, tuple[str, str]] = {}
    _stand_in(Path(os.environ[CHECKOUT]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(metafunc: Any) -> None:
        """Keep the first set of parameters of each test."""
        parametrize = metafunc.parametrize

        def first(names: Any, values: Any, *more: Any, ids: Any = None, **options: Any) -> None:
            parametrize(
                names, [*values][:1], *more, ids=[*ids][:1] if isinstance(ids, (list, tuple)) else ids, **options
            )

        metafunc.parametrize = first

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(items: list[Any]) -> None:
        """Leave tests of private behaviour out."""
        left_out = [item for item in items if _private(item)]
        _results.update({item.nodeid.partition("[")[0]: ("left out", "private") for item in left_out})
        items[:] = [item for item in items if item not in left_out]

    def _stop(*args: Any) -> None:
        del args
        raise TimeoutError(f"longer than {SECONDS_OF_A_TEST} s")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol() -> Any:
        """Run a test with a time limit; names without a counterpart raise."""
        signal.signal(signal.SIGALRM, _stop)
        signal.alarm(SECONDS_OF_A_TEST)
        _Absent.running, _Absent.used = True, False
        try:
            return (yield)
        finally:
            _Absent.running = False
            signal.alarm(0)
            Path(os.environ[REPORT]).write_text(json.dumps(_results), encoding="utf-8")

    def pytest_runtest_logreport(report: Any) -> None:
        """Keep the outcome of a test, and the line that says why it failed."""
        name = report.nodeid.partition("[")[0]
        if report.skipped:
            _results[name] = ("left out", "skipped")
        elif report.failed:
            lines = str(report.longrepr).strip().splitlines()
            why = next((line[1:].strip() for line in lines if re.match(r"E\s", line)), lines[-1])
            private = re.search(r"has no attribute '_[a-z]", why)
            _results[name] = ("left out" if private else "absent" if _Absent.used else "failed", why)
        elif report.when == "call":
            _results.setdefault(name, ("passed", ""))

    def pytest_collectreport(report: Any) -> None:
        """Say why a file cannot be read."""
        if report.failed:
            _results[f"{report.nodeid}::"] = ("failed", str(report.longrepr).strip().splitlines()[-1])
            Path(os.environ[REPORT]).write_text(json.dumps(_results), encoding="utf-8")


def run(checkout: Path, file: str) -> dict[str, tuple[str, str]]:
    """Return the outcome and its reason by test of a file."""
    report = Path(f"/tmp/torchrl_tests_{os.getpid()}.json")
    report.write_text("{}", encoding="utf-8")
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", here.stem, "-p", "no:cacheprovider"]
    try:
        subprocess.run(
            [*command, "-W", "ignore", "--tb=short", file],
            cwd=checkout / "test",
            env={
                **os.environ,
                "RL_WARNINGS": "False",
                "PYTHONPATH": path,
                REPORT: str(report),
                CHECKOUT: str(checkout.resolve()),
            },
            timeout=SECONDS_OF_A_FILE,
            capture_output="-v" not in sys.argv,
            check=False,
        )
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"{file}: longer than {SECONDS_OF_A_FILE} s\n")
    results = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    return results


def main() -> None:
    """Print passed, failed and left out by file, the ratio, and the most frequent reasons."""
    words = [word for word in sys.argv[1:] if word != "-v"]
    checkout, total, reasons = Path(words[0]), Counter[str](), Counter[str]()
    for file in words[1:] or FILES:
        if not (checkout / "test" / file).exists():
            continue
        results = run(checkout, file)
        counts = Counter(outcome for outcome, _ in results.values())
        total += counts
        reasons += Counter(
            re.sub(r"0x\w+", "0x", why)[:160] for outcome, why in results.values() if outcome in {"failed", "absent"}
        )
        sys.stdout.write(
            f"{file:45}" + "".join(f"{counts[of]:6} {of}" for of in ("passed", "failed", "absent", "left out")) + "\n"
        )
        sys.stdout.flush()
        if KEEP in os.environ:
            kept = Path(os.environ[KEEP], f"{file.replace('/', '_')}.json")
            kept.write_text(json.dumps(results, indent=1), encoding="utf-8")
    for why, number in reasons.most_common(40):
        sys.stdout.write(f"{number:5}  {why}\n")
    passed, tried = total["passed"], total["passed"] + total["failed"]
    public = tried + total["absent"]
    sys.stdout.write(
        f"{passed} of {public} pass, {passed / max(public, 1):.0%}; {passed / max(tried, 1):.0%} of the {tried}"
        f" whose names are here; left out {total['left out']}\n"
    )


if __name__ == "__main__":
    main()
