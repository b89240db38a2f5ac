"""The MCP SDK without what a server on stdio does not need for its first call.

Importing anything of the SDK runs the `__init__` of `mcp` and of `mcp.server`, which import its client, its high-level
server, uvicorn and more, and builds a validator for every message of every version of the protocol. `prepare` puts
both off: the packages run their `__init__` when somebody asks for a name that they do not have yet, and validators are
built when a message of their kind arrives. Whoever imports the SDK sees no difference but the time.
"""

import importlib
import importlib.util
import sys
from threading import RLock
from types import ModuleType

_PACKAGES = ("mcp", "mcp.server")
_running = RLock()


def prepare() -> None:
    """Has the SDK imported lightly from now on; does nothing where it is imported already."""
    if any(name in sys.modules for name in _PACKAGES):
        return
    for name in _PACKAGES:
        _postpone(name)
    _import_without_uvicorn("sse_starlette")
    try:
        from mcp_types import _wire_base  # noqa: PLC0415 - private: a version without it is imported as it is
    except ImportError:
        return
    _wire_base.WireModel.model_config["defer_build"] = True


def _import_without_uvicorn(name: str) -> None:
    """Imports a module that looks for uvicorn and does without it where it is missing. All that it wants of it is to
    hear of a signal that ends the server, and our server of HTTP leaves signals to the application."""
    if "uvicorn" in sys.modules or name in sys.modules:
        return
    # So the import system marks what must not be imported.
    sys.modules["uvicorn"] = None  # type: ignore[assignment]
    try:
        importlib.import_module(name)
    except ImportError:
        return  # whoever needs it says so
    finally:
        del sys.modules["uvicorn"]


def _postpone(name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _Postponed
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


class _Postponed(ModuleType):
    """A package whose `__init__` has not run. Its submodules can be imported; asked for anything else it becomes the
    package that it stands for. Other threads wait for that."""

    def __getattr__(self, name: str) -> object:
        # The import system itself asks for such names; the package must not run because of that.
        if name.startswith("__"):
            raise AttributeError(name)
        with _running:
            if self.__class__ is _Postponed and not self.__dict__.get("__running__"):
                self._run()
            try:
                return self.__dict__[name]
            except KeyError:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None

    def _run(self) -> None:
        """Runs the `__init__`, which may ask for names of the package itself; those are not there yet, as usual."""
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__dict__["__running__"] = True
        try:
            self.__spec__.loader.exec_module(self)
            self.__class__ = ModuleType  # type: ignore[assignment]
        finally:
            del self.__dict__["__running__"]
