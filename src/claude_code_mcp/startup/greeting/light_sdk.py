"""The MCP SDK without what a server on stdio does not need for its first call.

Importing anything of the SDK runs the `__init__` of `mcp` and of `mcp.server`, which import its client, its high-level
server, uvicorn and more, and builds a validator for every message of every version of the protocol. `prepare` puts
both off: the packages run their `__init__` when somebody asks for a name that they do not have yet, and validators are
built when a message of their kind arrives or is made. Whoever imports the SDK sees no difference but the time.
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
    _import_without_validators("mcp.server.lowlevel")


def _import_without_validators(name: str) -> None:
    """Imports a module. The models that come with it, and those derived from them, build their validators when they
    are first used: the setting is inherited, and the base of all models has it for as long as the import takes."""
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
