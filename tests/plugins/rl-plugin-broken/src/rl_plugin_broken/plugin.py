"""Does not import: the library is not there."""

import a_library_that_nobody_has  # noqa: F401  # pyright: ignore[reportMissingImports]  the point of this plugin
