"""The library's version."""

from __future__ import annotations

__all__ = ["CLIENT", "__version__"]

#: The same as in ``pyproject.toml``; a test compares them.
__version__ = "0.1.0"

#: How the library names itself to the sidecar, for its log.
CLIENT = f"sidekeeper-python/{__version__}"
