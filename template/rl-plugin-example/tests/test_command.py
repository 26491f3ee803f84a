"""The subcommand of `rl`."""

from rl_plugin_example.command import main


def test_arguments_are_rejected(capsys):
    assert main(["more"]) == 2
    assert "expected no arguments" in capsys.readouterr().err


def test_it_lists_only_its_own_components(capsys):
    assert main([]) == 0  # lists nothing where the plugin is not installed
    assert all(" example" in line for line in capsys.readouterr().out.splitlines())
