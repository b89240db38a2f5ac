"""The policy: which profile applies to whom, and how it is written down in TOML.

default = "team"             # for callers that are not named below

[profiles.team]
base = "remote"              # what is left out is taken from there; `remote` if not said
roots = ["/srv/projects"]
allow = ["Bash(git diff *)"]
deny = ["Bash(rm *)"]
limits = { daily_usd = 20 }

[principals]
alice = "team"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ..errors import InvalidArgument
from .profile import LOCAL_PROFILE, OPEN_PROFILE, REMOTE_PROFILE, Limits, Profile

BUILT_IN: Mapping[str, Profile] = {"local": LOCAL_PROFILE, "remote": REMOTE_PROFILE}


@dataclass(frozen=True, slots=True)
class Policy:
    """Profiles by the name of the caller."""

    default: Profile = OPEN_PROFILE
    principals: Mapping[str, Profile] = field(default_factory=dict)

    def profile(self, principal: str) -> Profile:
        return self.principals.get(principal, self.default)


def built_in(name: str) -> Policy:
    """A policy with one of the built-in profiles for everybody."""
    return Policy(_named(name, BUILT_IN, "The profile"))


def parse_policy(text: str, where: str, default: str | None = None, fallback: str = "remote") -> Policy:
    """The policy in a TOML text. `where` names it in errors.

    The profile for callers without a name of their own is `default`, or what the text says, or `fallback`.
    InvalidArgument names the entry that is wrong, in one line.
    """
    try:
        raw = tomllib.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"The policy file {where} is not valid TOML: {error}") from None
    wrong = next((name for name in raw if name not in ("default", "profiles", "principals")), None)
    if wrong is not None:
        raise _error(where, wrong, "unknown entry")
    profiles = _profiles(_table(raw, "profiles", where), where)
    named = default or raw.get("default", fallback)
    principals = {
        name: _named(profile, profiles, f"The policy file {where}: principals.{name}")
        for name, profile in _table(raw, "principals", where).items()
    }
    return Policy(_named(named, profiles, f"The policy file {where}: default"), principals)


def _table(raw: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    table = raw.get(name, {})
    if not isinstance(table, dict):
        raise _error(where, name, "must be a table")
    return table


def _profiles(tables: Mapping[str, Any], where: str) -> dict[str, Profile]:
    profiles = dict(BUILT_IN)
    for name in tables:
        entry = _table(tables, name, f"{where}: profiles")
        base = _named(entry.get("base", "remote"), profiles, f"The policy file {where}: profiles.{name}.base")
        profiles[name] = _profile(base, entry, f"profiles.{name}", where)
    return profiles


def _profile(base: Profile, entry: Mapping[str, Any], name: str, where: str) -> Profile:
    given = {key: value for key, value in entry.items() if key != "base"}
    inherited = {key: getattr(base, key) for key in Profile.model_fields}
    try:
        if isinstance(given.get("limits"), dict):
            given["limits"] = Limits.model_validate({**base.limits.model_dump(), **given["limits"]})
        return Profile.model_validate({**inherited, **given})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = [name, *(["limits"] if error.title == "Limits" else []), *map(str, first["loc"])]
        said = "unknown entry" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        raise _error(where, ".".join(path), said) from None


def _named(name: object, profiles: Mapping[str, Profile], where: str) -> Profile:
    if not isinstance(name, str) or name not in profiles:
        raise InvalidArgument(f"{where}: there is no profile {name!r}; there is {', '.join(sorted(profiles))}.")
    return profiles[name]


def _error(where: str, entry: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"The policy file {where}: {entry}: {problem}.", field=entry)
