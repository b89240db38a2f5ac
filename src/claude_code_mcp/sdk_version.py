"""The range of the MCP SDK that this release works with.

Parts of the SDK that this product needs have no public name (`server/sdk.py`, `hub/streams.py`), and `light_sdk.py`
relies on how its packages are imported. A minor release may change them, so another one is refused at the start, with
what to do, before something fails in the middle of a session.
"""

import os
import sys

SUPPORTED = (2, 3)
"""Major and minor version of `mcp` and `mcp-types`; `pyproject.toml` has the same range."""
_DISTRIBUTIONS = ("mcp", "mcp_types")


class UnsupportedSdk(ImportError):
    """The installed MCP SDK is outside of the supported range. The message is for the user."""


def check_sdk_version() -> None:
    """Raises UnsupportedSdk if another version of the SDK is installed. A version that cannot be found is accepted."""
    major, minor = SUPPORTED
    for name in _DISTRIBUTIONS:
        version = installed_version(name)
        if version is not None and not is_supported(version):
            package = name.replace("_", "-")
            allowed = f"{package}>={major}.{minor},<{major}.{minor + 1}"
            raise UnsupportedSdk(
                f"This version of claude-code-mcp needs {allowed}, and {package} {version} is installed. "
                f"Install the right one: {sys.executable} -m pip install '{allowed}'"
            )


def is_supported(version: str | None) -> bool:
    """Whether a version of the SDK is in the supported range."""
    return version is not None and version.split(".")[:2] == [str(number) for number in SUPPORTED]


def installed_version(name: str) -> str | None:
    """The version of a distribution, from the directory that its installer made: `importlib.metadata` takes 30 ms to
    import. None if there is no such directory."""
    for place in sys.path:
        try:
            entries = os.listdir(place or ".")
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(f"{name}-") and entry.endswith(".dist-info"):
                return entry[len(name) + 1 : -len(".dist-info")]
    return None
