"""Identifies the sender of an HTTP request."""

from dataclasses import dataclass

_OPERATOR_TOKEN = "token:"  # noqa: S105 - a prefix


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal, and the credential that admits it: a reference to a secret or a person, never the secret itself."""

    principal: str
    credential: str

    @classmethod
    def of_operator_token(cls, principal: str, digest: str) -> "Identity":
        return cls(principal, f"{_OPERATOR_TOKEN}{digest}")

    @property
    def has_operator_token(self) -> bool:
        """Whether the credential is a token that the operator has issued, which lasts until the operator changes it."""
        return self.credential.startswith(_OPERATOR_TOKEN)
