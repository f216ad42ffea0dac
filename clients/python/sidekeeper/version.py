"""The library's version."""

from __future__ import annotations

__all__ = ["API_LEVEL", "CLIENT", "SIDECAR_API_LEVEL_MIN", "__version__"]

#: The same as in ``pyproject.toml``; a test compares them.
__version__ = "0.1.0"

#: How the library names itself to the sidecar, for its log.
CLIENT = f"sidekeeper-python/{__version__}"

#: The API level that this library was written for (``AttachRequest.api_level`` in the protos).
API_LEVEL = 2

#: The lowest API level of a sidecar that it works with.
SIDECAR_API_LEVEL_MIN = 1
