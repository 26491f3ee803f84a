"""Declaration module whose import fails: the library does not exist."""

import a_library_that_does_not_exist  # noqa: F401  # pyright: ignore[reportMissingImports]  the point of this plugin
