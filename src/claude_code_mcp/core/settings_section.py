"""A group of settings: reads its fields from the environment and the configuration file, and describes them.

An argument overrides an environment variable, which overrides the TOML file, which overrides the default. The file may
use the name of a variable or of a field.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr, ValidationError

from .errors import InvalidArgument


class Section(BaseModel):
    """Settings of one part of the product. Each field names its variable as `validation_alias`, and has a docstring
    that describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, loc_by_alias=False)

    must_have_value: ClassVar[frozenset[str]] = frozenset()
    """Fields that restrict access: an empty variable is an error. Elsewhere an empty variable counts as unset."""

    @classmethod
    def secrets(cls) -> frozenset[str]:
        """The fields whose values are secret."""
        return frozenset(name for name, info in cls.model_fields.items() if "Secret" in str(info.annotation))


UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path in which `~` is the home of the user."""
SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True, slots=True)
class Sources:
    """What the settings of a server are read from."""

    environment: Mapping[str, str] = field(default_factory=dict)
    file: Mapping[str, Any] = field(default_factory=dict)
    """What the configuration file says, under the names that it uses."""
    file_name: str = ""

    @classmethod
    def read(cls, environment: Mapping[str, str], file: Path | None) -> "Sources":
        """Raises InvalidArgument if the file cannot be read."""
        if file is None:
            return cls(environment)
        import tomllib  # noqa: PLC0415 - most servers have no such file

        try:
            return cls(environment, tomllib.loads(file.read_text(encoding="utf-8")), str(file))
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"The configuration file {file} cannot be read: {error}") from None

    def section(self, kind: type[SectionT], **arguments: Any) -> SectionT:
        """The settings of one section. InvalidArgument names what does not parse, in one line."""
        values = {**self._from_file(kind), **self._from_environment(kind), **arguments}
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            raise _readable(kind, error, values) from None

    def check_names(self, *kinds: type[Section]) -> None:
        """InvalidArgument if the file has a setting that none of the sections has."""
        known = {name for kind in kinds for each in kind.model_fields for name in (each, variable_of(each, kind))}
        unknown = next((name for name in self.file if name not in known), None)
        if unknown is not None:
            raise InvalidArgument(f"There is no setting named {unknown!r}.", field=unknown)

    def _from_file(self, kind: type[Section]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in kind.model_fields:
            variable = variable_of(name, kind)
            if name in self.file and variable in self.file:
                # Which one counts would depend on their order in the file.
                raise InvalidArgument(f"The configuration file {self.file_name} has both {variable} and {name}.")
            if name in self.file or variable in self.file:
                found[name] = self.file.get(name, self.file.get(variable))
        return found

    def _from_environment(self, kind: type[Section]) -> dict[str, Any]:
        named = ((name, self.environment.get(variable_of(name, kind))) for name in kind.model_fields)
        return {name: value for name, value in named if value or (value is not None and name in kind.must_have_value)}


def variable_of(name: str, kind: type[Section]) -> str:
    """The environment variable that sets a field."""
    alias = kind.model_fields[name].validation_alias
    assert isinstance(alias, str)
    return alias


def description_of(name: str, kind: type[Section]) -> str:
    """What a field means, in one line."""
    return " ".join(_descriptions(kind).get(name, "").split())


@cache
def _descriptions(kind: type[Section]) -> Mapping[str, str]:
    """The docstring below each field. They are read from the source, which takes a while and is needed for help and
    documents only."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for each, below in pairwise(definition.body):
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and isinstance(below, ast.Expr):
            found[each.target.id] = ast.literal_eval(below.value)
    return found


def secrets_in(section: Section) -> Iterator[str]:
    """What in a section is secret: the fields declared so, and passwords in addresses."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, SecretStr):
            yield value.get_secret_value()
        for part in value if isinstance(value, tuple) else (value,):
            try:
                yield (urlsplit(part).password or "") if isinstance(part, str) and "://" in part else ""
            except ValueError:
                continue  # not an address


def list_of(value: object) -> object:
    """For a validator: a text as the values between its commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def not_blank(value: object) -> object:
    """For a validator: refuses a text without a visible character."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("it is set, but empty; give it a value, or unset it")
    return value


def _readable(kind: type[Section], error: ValidationError, values: Mapping[str, Any]) -> InvalidArgument:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    if first["type"] == "extra_forbidden":
        return InvalidArgument(f"There is no setting named {name!r}.", field=name)
    value = "" if name in kind.secrets() else f"={values.get(name)!r}"
    return InvalidArgument(
        f"{variable_of(name, kind)}{value} is not valid: {first['msg'].removeprefix('Value error, ')}.", field=name
    )
