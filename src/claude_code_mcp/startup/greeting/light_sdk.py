"""Imports the MCP SDK without the parts that a server on stdio does not need for its first call.

Importing anything from the SDK runs the `__init__` of `mcp` and `mcp.server`, which import its client, its high-level
server, uvicorn and more, and builds a validator for every message of every protocol version. `prepare` postpones both:
the packages run their `__init__` when an unknown name is requested, and validators are built when a message of their
kind is first parsed or created. Importers of the SDK see no difference except the time.
"""

import importlib
import importlib.util
import sys
from threading import RLock
from types import ModuleType

_PACKAGES = ("mcp", "mcp.server")
_running = RLock()


def prepare() -> None:
    """Imports the SDK lightly from now on; does nothing if it is already imported."""
    if any(name in sys.modules for name in _PACKAGES):
        return
    for name in _PACKAGES:
        _postpone(name)
    _import_without_validators("mcp.server.lowlevel")


def _import_without_validators(name: str) -> None:
    """Imports a module. Its models, and those derived from them, build their validators on first use: the setting is
    inherited, and the base of all models has it during the import."""
    from pydantic import BaseModel  # noqa: PLC0415 - as late as all of the SDK

    BaseModel.model_config["defer_build"] = True
    try:
        importlib.import_module(name)
    finally:
        del BaseModel.model_config["defer_build"]


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
    """A package whose `__init__` has not run. Its submodules can be imported; any other attribute turns it into the
    real package. Other threads wait for that."""

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
        """Runs the `__init__`, which may request names of the package itself; they are not defined yet, as usual."""
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        self.__dict__["__running__"] = True
        try:
            self.__spec__.loader.exec_module(self)
            self.__class__ = ModuleType  # type: ignore[assignment]
        finally:
            del self.__dict__["__running__"]
