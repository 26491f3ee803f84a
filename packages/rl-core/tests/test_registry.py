"""`rl.core.registry`: discovery, isolation of broken plugins, look-up."""

import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace

import pytest

from rl.core import registry as registry_module
from rl.core import targets
from rl.core.__about__ import __version__
from rl.core.component import CONTRACTS, Component
from rl.core.errors import (
    BrokenPluginWarning,
    DuplicateComponentError,
    MissingExtraError,
    PluginError,
    UnknownComponentError,
)
from rl.core.hookspecs import hookimpl
from rl.core.registry import Registry


def entry(module: str, dist: str | None = "acme", name: str | None = None, version: str = "1.2") -> EntryPoint:
    found = EntryPoint(name or module, module, "rl.plugins")
    return found if dist is None else found._for(SimpleNamespace(name=dist, version=version))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported; its name is returned."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def write(name: str, text: str) -> str:
        head = "from rl.core.component import Component, Command\nfrom rl.core.hookspecs import hookimpl\n"
        (tmp_path / f"{name}.py").write_text(head + textwrap.dedent(text))
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def declares(*components: str) -> str:
    lines = "\n".join(f"    yield Component({c})" for c in components)
    return f"@hookimpl\ndef rl_components():\n{lines}\n"


GOOD = declares('"loss", "good", "json:loads", "A good one."')


@pytest.fixture
def good(module):
    return entry(module("rlt_good", GOOD), dist="zzz-good")


def state(registry: Registry, plugin: str):
    return next(record for record in registry.plugins if record.name == plugin)


BROKEN = {
    "missing-module": ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "raises": ("raise ValueError('boom')", "ValueError: boom"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "closes": ("raise GeneratorExit", "GeneratorExit"),
    "neither": ("class Odd(BaseException): ...\nraise Odd('x')", "Odd: x"),
    "escapes": ("raise ValueError('\\x1b[2J\\udcff')", "ValueError: \\x1b[2J\\udcff"),
    "summary": (declares('"loss", "x", "m:A", 3'), "has the summary 3; expected a string"),
    "syntax": ("def", "SyntaxError"),
    "unknown-hook": ("@hookimpl\ndef rl_componets(): ...", "unknown hook 'rl_componets'"),
    "wrong-argument": ("@hookimpl\ndef rl_priority_tree(size): ...", "size"),
    "no-mark": ("def rl_components(): return []", "not marked: put @hookimpl"),
    "wrapper": ("@hookimpl(wrapper=True)\ndef rl_components(): yield", "hook wrapper"),
    "no-component": ("@hookimpl\ndef rl_components(): return ['gym']", "rl_components returned 'gym'"),
    "no-hook": ("", "rlt_broken implements no hook"),
    "one-component": (
        "@hookimpl\ndef rl_components(): return Component('loss', 'x', 'm:A')",
        "yields or lists objects",
    ),
    "not-iterable": ("@hookimpl\ndef rl_components(): return 3", "rl_components returned 3; it yields or lists"),
    "bad-name": (declares('"loss", "Bad Name", "m:A"'), "lower case"),
    "generator-fails": (
        declares('"loss", "half", "m:A"') + "    raise RuntimeError('half way')\n",
        "RuntimeError: half way",
    ),
    "duplicate-in-itself": (declares('"loss", "x", "m:A"', '"loss", "x", "m:B"'), "m:A by acme, and m:B by acme"),
    "future-argument": (declares('"loss", "x", "m:A", colour="red"'), "colour"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_named_and_the_rest_works(module, good, text, reason):
    registry = Registry([entry(module("rlt_broken", text)), good])
    record = state(registry, "rlt_broken")
    assert record.state == "broken"
    assert reason in record.reason
    assert [c.name for c in registry.components()] == ["good"]
    assert registry.load("loss", "good")("1") == 1
    assert registry.answers("rl_commands", registry=registry) == []


def test_a_broken_plugin_warns_once(module, good):
    registry = Registry([entry(module("rlt_broken", "raise ValueError('boom')")), good])
    with pytest.warns(BrokenPluginWarning, match=r"plugin acme:rlt_broken 1.2 is left out: ValueError: boom") as seen:
        registry.warn()
    assert len(seen) == 1
    registry.warn()  # a second warning would be an error


def test_an_attribute_that_is_not_there_breaks_only_its_plugin(module, good):
    name = module("rlt_plain", "")
    registry = Registry([EntryPoint("x", f"{name}:nothing", "rl.plugins"), good])
    assert state(registry, "x").state == "broken"
    assert state(registry, "x").distribution == "?"
    assert len(registry.components()) == 1


@pytest.mark.parametrize(
    ("component", "reason"),
    [
        pytest.param(
            '"env", "x", "m:A", contract=3',
            f"env 'x' was written for env/3, this rl-core {__version__} serves env/1: upgrade rl-core",
            id="newer",
        ),
        pytest.param('"agent", "x", "m:A"', f"of a kind that rl-core {__version__} does not know", id="unknown-kind"),
        pytest.param('"envs", "x", "m:A"', "did you mean 'env'?", id="misspelt-kind"),
    ],
)
def test_what_cannot_be_served_is_incompatible(module, good, component, reason):
    text = declares('"loss", "first", "m:A"', component)
    registry = Registry([entry(module("rlt_future", text)), good])
    record = state(registry, "rlt_future")
    assert record.state == "incompatible"
    assert reason in record.reason
    assert record.remedy == "pip install --upgrade rl-core"
    assert [c.name for c in record.components] == ["first", "x"]  # known, and not offered
    assert [c.name for c in registry.components()] == ["good"]


def test_an_older_contract_says_to_upgrade_the_plugin(module, monkeypatch):
    monkeypatch.setitem(CONTRACTS, "env", (2, 3))
    registry = Registry([entry(module("rlt_old", declares('"env", "x", "m:A"')))])
    (record,) = registry.plugins
    assert "written for env/1" in record.reason
    assert "serves env/2 to env/3: upgrade acme" in record.reason
    assert record.remedy == "pip install --upgrade acme"


def test_of_two_plugins_with_one_name_only_that_name_is_ambiguous(module, good):
    other = entry(
        module("rlt_other", declares('"loss", "other", "json:dumps"', '"loss", "good", "json:dumps"')), dist="A_aa"
    )
    registry = Registry([good, other])
    assert [record.state for record in registry.plugins] == ["loaded", "loaded"]
    assert registry.load("loss", "other")(1) == "1"
    with pytest.raises(DuplicateComponentError) as seen:
        registry.load("loss", "good")
    for part in (
        "loss 'good' is offered by A_aa and by zzz-good",
        "'A_aa:good' or 'zzz-good:good'",
        "RL_PLUGINS_DISABLE",
    ):
        assert part in str(seen.value)
    assert registry.load("loss", "zzz-good:good")("1") == 1
    assert registry.load("loss", "a-aa:good")(1) == "1"  # spelt as installers compare names
    assert registry.owner("loss", "zzz-good:good").name == "rlt_good"
    assert all(
        record.notes == ["loss 'good' is offered 2 times, as A_aa:good, zzz-good:good"] for record in registry.plugins
    )
    with pytest.raises(UnknownComponentError, match="offers loss 'A_aa:nothing'"):
        registry.load("loss", "A_aa:nothing")


def test_a_name_of_ours_stays_ours_and_the_other_is_there_by_its_distribution(module):
    ours = entry(module("rlt_ours", GOOD), dist="rl-replay")
    theirs = entry(module("rlt_theirs", declares('"loss", "good", "json:dumps"', '"loss", "more", "m:A"')), dist="aaa")
    fake = entry(module("rlt_fake", GOOD), dist="rl-aaa")
    registry = Registry([theirs, fake, ours])
    assert [record.name for record in registry.plugins] == ["rlt_ours", "rlt_theirs", "rlt_fake"]
    assert {record.state for record in registry.plugins} == {"loaded"}
    assert registry.owner("loss", "good").distribution == "rl-replay"
    assert registry.load("loss", "aaa:good")(1) == "1"
    assert registry.owner("loss", "more").distribution == "aaa"


def test_two_distributions_may_name_their_entry_point_alike(module):
    one = entry(module("rlt_one", declares('"loss", "one", "m:A"')), dist="one", name="plugin")
    two = entry(module("rlt_two", declares('"loss", "two", "m:A"')), dist="two", name="plugin")
    registry = Registry([two, one])
    assert [record.id for record in registry.plugins] == ["one:plugin", "two:plugin"]
    assert len(registry.components("loss")) == 2


def test_a_disabled_plugin_is_named_when_something_is_not_found(good):
    registry = Registry([good], disabled=["zzz-good"])
    with pytest.raises(UnknownComponentError, match=r"zzz-good:rlt_good \(RL_PLUGINS_DISABLE names zzz-good\)"):
        registry.load("env", "acme/grid")


@pytest.mark.parametrize("name", ["rlt_good", "rlt-good", "zzz_good", "ZZZ-Good", "*"])
def test_a_disabled_plugin_is_not_imported(good, name):
    registry = Registry([good], disabled=[name])
    (record,) = registry.plugins
    assert record.state == "disabled"
    assert "RL_PLUGINS_DISABLE" in record.reason
    assert "rlt_good" not in sys.modules
    assert registry.components() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.warn()


def test_add_in_code():
    registry = Registry()
    registry.add(Component("loss", "one", "json:loads"))
    registry.add(Component("loss", "two", "json:dumps"), distribution="mine")
    with pytest.raises(DuplicateComponentError, match="json:loads by this program, and json:x by other"):
        registry.add(Component("loss", "one", "json:x"), distribution="other")
    with pytest.raises(PluginError, match="env/9"):
        registry.add(Component("env", "one", "json:x", contract=9))
    assert [c.name for c in registry.components("loss")] == ["one", "two"]
    assert registry.components("env") == []
    assert [record.distribution for record in registry.plugins] == ["this program", "mine"]


def test_register_in_code_takes_all_or_nothing():
    class Plugin:
        @hookimpl
        def rl_components(self):
            yield Component("loss", "new", "json:loads")
            yield Component("loss", "taken", "json:loads")

    registry = Registry()
    registry.add(Component("loss", "taken", "json:dumps"))
    with pytest.raises(DuplicateComponentError):
        registry.register(Plugin(), "mine")
    assert [c.name for c in registry.components()] == ["taken"]
    fresh = Registry()
    record = fresh.register(Plugin(), "mine")
    assert record.contracts == ("loss/1",)
    with pytest.raises(PluginError, match="registered already"):
        fresh.register(Plugin(), "mine")
    assert len(fresh.components()) == 2


def test_components_are_sorted_and_kinds_are_checked():
    registry = Registry()
    for kind, name in (("loss", "b"), ("env", "z"), ("loss", "a")):
        registry.add(Component(kind, name, "m:A"))
    assert [(c.kind, c.name) for c in registry.components()] == [("env", "z"), ("loss", "a"), ("loss", "b")]
    with pytest.raises(UnknownComponentError, match=r"no kind 'lose' of component; did you mean 'loss'\?.*kinds: "):
        registry.components("lose")


def test_an_unknown_name_is_answered_with_the_nearest(module):
    registry = Registry([entry(module("rlt_broken", "raise ValueError"))])
    registry.add(Component("loss", "ppo-clip", "m:A"))
    with pytest.raises(UnknownComponentError) as seen:
        registry.load("loss", "ppo-clp")
    text = str(seen.value)
    for part in (
        "loss 'ppo-clp'",
        "did you mean 'ppo-clip'?",
        "known: ppo-clip",
        "left out: acme:rlt_broken (broken); see `rl plugins`",
    ):
        assert part in text
    with pytest.raises(UnknownComponentError, match=r"known: none"):
        registry.load("env", "gym")


def loads(module, text: str, extra: str | None) -> Registry:
    registry = Registry()
    registry.add(Component("env", "x", f"{module('rlt_target', text)}:Thing", extra=extra), distribution="rl-envs")
    return registry


def test_a_missing_library_is_answered_with_the_line_that_installs_it(module):
    with pytest.raises(
        MissingExtraError, match=r"env 'x' of rl-envs needs no_such_lib.*pip install \"rl-envs\[gym\]\""
    ):
        loads(module, "import no_such_lib.part", "gym").load("env", "x")
    with pytest.raises(MissingExtraError, match=r"install no_such_lib; rl-envs names no extra"):
        loads(module, "import no_such_lib", None).load("env", "x")


def test_a_package_of_ours_that_is_absent_is_named(module, monkeypatch):
    monkeypatch.setattr(targets, "installed_version", lambda name: None)
    registry = loads(module, "raise ModuleNotFoundError('No module', name='rl.prio_cuda.tree')", None)
    with pytest.raises(MissingExtraError, match="needs rl-prio-cuda, which is not installed: pip install rl-prio-cuda"):
        registry.load("env", "x")


def test_a_library_that_does_not_import_is_told_apart_from_an_absent_one(module):
    with pytest.raises(MissingExtraError, match=r"does not import .*cannot import name 'nothing'.*rl-envs\[gym\]"):
        loads(module, "from json import nothing", "gym").load("env", "x")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("import rl.nothing_here", "rl.nothing_here", id="own-module-missing"),
        pytest.param("from json import nothing", "cannot import name", id="no-extra-to-blame"),
        pytest.param("raise RuntimeError('boom')", "RuntimeError: boom", id="raises"),
        pytest.param("raise SystemExit(1)", "SystemExit", id="exits"),
        pytest.param("Other = 1", "no attribute 'Thing'", id="attribute-missing"),
    ],
)
def test_a_broken_target_names_the_distribution(module, text, reason):
    with pytest.raises(PluginError, match=f"(?s)env 'x' of rl-envs is broken.*{reason}"):
        loads(module, text, None).load("env", "x")


def test_a_target_may_be_an_attribute_of_a_class(module):
    registry = loads(module, "class Thing:\n    def make(): return 3", None)
    registry.add(Component("env", "y", "rlt_target:Thing.make"))
    assert registry.load("env", "y")() == 3


def test_a_record_is_plain_data(good):
    (record,) = Registry([good]).plugins
    assert record.as_dict() == {
        "distribution": "zzz-good",
        "version": "1.2",
        "name": "rlt_good",
        "value": "rlt_good",
        "state": "loaded",
        "reason": "",
        "remedy": None,
        "contracts": ["loss/1"],
        "components": [{"kind": "loss", "name": "good", "summary": "A good one."}],
        "problems": [],
        "notes": [],
        "import_seconds": pytest.approx(5, abs=5),
        "imports": [],
    }


@pytest.fixture
def fresh_default(monkeypatch):
    """`default` as in a new process, with entry points of our own."""
    monkeypatch.setattr(registry_module, "_default", [])

    def use(*entries):
        monkeypatch.setattr(registry_module, "scan", lambda group: (entries, [], {}))

    return use


def test_default_is_made_once_and_warns_once(fresh_default, module, good):
    fresh_default(good, entry(module("rlt_broken", "raise ValueError('boom')")))
    with pytest.warns(BrokenPluginWarning) as seen:
        first = registry_module.default()
    assert len(seen) == 1
    assert seen[0].filename == __file__  # the caller, not a line of rl-core
    assert registry_module.default() is first  # a second warning would be an error
    assert registry_module.components("loss") == first.components("loss")
    assert registry_module.load("loss", "good")("2") == 2


def test_threads_get_one_registry(fresh_default, module):
    fresh_default(entry(module("rlt_slow", "import time\ntime.sleep(0.1)\n" + GOOD)))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: registry_module.default(), range(8)))
    assert all(one is found[0] for one in found)
    assert len(found[0].components()) == 1


def test_default_obeys_the_environment(fresh_default, good, monkeypatch):
    monkeypatch.setenv("RL_PLUGINS_DISABLE", "zzz-good")
    fresh_default(good)
    assert registry_module.default().components() == []


def test_a_plugin_that_asks_for_the_registry_on_import_is_broken(fresh_default, module, good):
    fresh_default(entry(module("rlt_asks", "from rl.core.registry import default\ndefault()")), good)
    registry = registry_module.discovered()
    assert "ask on first use, not on import" in state(registry, "rlt_asks").reason
    assert len(registry.components()) == 1


def test_one_module_under_two_entry_points_is_refused_the_second_time(good):
    again = EntryPoint("again", good.value, "rl.plugins")._for(good.dist)
    registry = Registry([good, again])
    assert sorted(record.state for record in registry.plugins) == ["broken", "loaded"]
    assert len(registry.components()) == 1


def test_importing_and_listing_needs_no_torch():
    code = "import sys, rl.core; rl.core.components(); assert not {'torch', 'tensordict', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_a_module_object_can_be_registered():
    plugin = ModuleType("plugin")
    plugin.rl_components = hookimpl(lambda: [Component("env", "x", "m:A")])
    assert Registry().register(plugin, "p").components[0].name == "x"


def test_what_a_plugin_prints_stays_out_of_listings(module, capsys):
    noisy = "print('at import')\n@hookimpl\ndef rl_commands(registry):\n    print('when asked')\n"
    Registry([entry(module("rlt_noisy", noisy))]).commands()
    out, err = capsys.readouterr()
    assert (out, err) == ("", "at import\nwhen asked\n")


def test_a_command_of_rl_itself_is_not_given_away(module):
    text = "@hookimpl\ndef rl_commands(registry): return Command('doctor', 'm:run')\n"
    registry = Registry([entry(module("rlt_thief", text))])
    with pytest.warns(BrokenPluginWarning, match="'doctor' is already offered by rl-core"):
        assert registry.commands() == {}
    assert registry.plugins[0].problems == ["rl_commands: command 'doctor' is already offered by rl-core"]


def test_a_component_of_a_plugin_that_is_left_out_is_named_with_the_reason(module):
    registry = Registry([entry(module("rlt_future", declares('"loss", "later", "m:A", contract=9')))])
    with pytest.raises(UnknownComponentError, match=r"'later' is of acme:rlt_future 1.2, which is left out: .*loss/9"):
        registry.load("loss", "later")


def test_an_interrupt_names_the_plugin_that_was_being_imported(module, good):
    slow = entry(module("rlt_slow", "raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt) as seen:
        Registry([slow, good])
    (note,) = seen.value.__notes__
    assert note == "while importing plugin acme:rlt_slow 1.2; RL_PLUGINS_DISABLE=rlt_slow leaves it out"


def test_a_declaration_that_is_slow_or_imports_torch_is_marked(module, good, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensordict", None)
    monkeypatch.delitem(sys.modules, "tensordict")  # and put back what was there
    text = "import sys, time\ntime.sleep(0.06)\nsys.modules['tensordict'] = time\n"
    registry = Registry([entry(module("rlt_slow", text + declares('"loss", "slow", "m:A"'))), good])
    record = state(registry, "rlt_slow")
    assert record.imports == ("tensordict",)
    assert record.import_seconds >= 0.06
    assert "ms and imports tensordict; only targets may import what is heavy" in record.slow
    assert state(registry, "rlt_good").imports == ()


def test_make_calls_the_component_with_the_arguments():
    registry = Registry()
    registry.add(Component("sampler", "counter", "collections:Counter"))
    with pytest.raises(PluginError, match="does not fit"):
        registry.make("sampler", "counter")
    registry.add(Component("loss", "text", "json:dumps"))
    assert registry.make("loss", "text", {"b": 1, "a": 2}, sort_keys=True) == '{"a": 2, "b": 1}'
    with pytest.raises(UnknownComponentError, match="did you mean 'text'"):
        registry.make("loss", "texts")


def test_an_object_is_not_called():
    registry = Registry()
    registry.add(Component("recipe", "mine", "rlt_recipe:RECIPE"))
    module = ModuleType("rlt_recipe")
    module.RECIPE = SimpleNamespace(name="mine", config=None, train=None, make_policy=None)
    sys.modules["rlt_recipe"] = module
    with pytest.raises(PluginError, match=r"use rl.core.load\('recipe', 'mine'\)"):
        registry.make("recipe", "mine")
