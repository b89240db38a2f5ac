"""The result of one check of `doctor`."""

from dataclasses import dataclass

REQUEST = "API"
"""The subject of the finding on a request with this account."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its subject, the verdict, what was seen, and advice for when it is not ok."""

    subject: str
    ok: bool
    detail: str
    fix: str = ""
    is_tried: bool = True
    """False where nobody has agreed to the check."""

    def line(self) -> str:
        advice = f"\n        fix: {self.fix}" if self.fix and not self.ok else ""
        verdict = "WRONG" if not self.ok else "ok   " if self.is_tried else "?    "
        return f"{verdict}  {self.subject}: {self.detail}{advice}"

    def data(self) -> dict[str, object]:
        """The finding as `--json` prints it; these keys are a promise to scripts."""
        fix = None if self.ok else self.fix or None
        return {"what": self.subject, "ok": self.ok, "told": self.detail, "fix": fix}
