"""These projects are built and installed by ../test_plugins.py; one of them does not even import."""

collect_ignore_glob = ["*"]
