"""One field of a server's form at a terminal: how it is asked for, and what a typed line comes to. Pure.

A line is a value of the field's type within its limits, or it is refused with a reason that says what would be one.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

from ...questions.form_model import FieldKind, FormField, read_fields
from .render import clean, one_line

_TRUE, _FALSE = {"y", "yes", "true", "1"}, {"n", "no", "false", "0"}
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\Z")
_KINDS = {
    FieldKind.STRING: "text",
    FieldKind.BOOLEAN: "yes or no",
    FieldKind.INTEGER: "a whole number",
    FieldKind.NUMBER: "a number",
    FieldKind.ARRAY: "several, separated by commas",
}
LEFT_OUT = object()
"""The value of a field that is not filled in."""


class Unfit(Exception):
    """The line is no value of the field; the text says what would be one."""


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """A field that a person fills in."""

    model: FormField
    required: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choices(self) -> list[str]:
        """What completes a line."""
        if self.model.kind is FieldKind.BOOLEAN:
            return ["yes", "no"]
        return self.model.labels

    @property
    def heading(self) -> str:
        """The lines before the prompt: a title or description of its own, and the choices, with numbers."""
        described = ": ".join(filter(None, (one_line(self.model.title), one_line(self.model.description, 500))))
        lines = [f"  {described}"] if described and described != self.model.name else []
        if self.model.options and self.model.kind is not FieldKind.BOOLEAN:
            labels = [one_line(label, 200) for label in self.model.labels]
            numbers = range(1, len(labels) + 1) if self._numbered else [" "] * len(labels)
            lines += [f"    {number}  {label}" for number, label in zip(numbers, labels, strict=True)]
        return "\n".join(lines)

    @property
    def prompt(self) -> str:
        remarks = [self._kind_remark, *self._limit_remarks, *(["required"] if self.required else [])]
        default = "" if self._default is LEFT_OUT else f" [{one_line(self._shown_default)}]"
        return f"  {one_line(self.model.name)} ({', '.join(filter(None, remarks))}){default}: "

    def value(self, line: str) -> Any:
        """The value that a line stands for, or LEFT_OUT. Raises Unfit."""
        text = line.strip()
        if not text:
            return self._empty()
        match self.model.kind:
            case FieldKind.BOOLEAN:
                return _boolean(text)
            case FieldKind.ARRAY:
                return self._several(text)
            case _ if self.model.options:
                return self._chosen(text)
            case FieldKind.INTEGER | FieldKind.NUMBER:
                return self._number(text)
        return self._text(line)

    def _empty(self) -> Any:
        if self._default is LEFT_OUT and self.required:
            raise Unfit("it is required")
        return self._default

    # -- choices ------------------------------------------------------------------------------------------------

    @property
    def _numbered(self) -> bool:
        """Whether choices have numbers: not where a choice is itself one."""
        return not any(label.strip().isdecimal() for label in self.model.labels)

    def _chosen(self, text: str) -> Any:
        options = self.model.options
        if text in options:
            return options[text]
        if self._numbered and text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= len(options):
            return [*options.values()][int(text[:6]) - 1]
        for label, value in options.items():
            if text.casefold() in (label.casefold(), str(value).casefold()):
                return value
        begun = [value for label, value in options.items() if label.casefold().startswith(text.casefold())]
        if len(begun) == 1:
            return begun[0]
        numbers = f"a number from 1 to {len(options)}, or " if self._numbered else ""
        raise Unfit(f"it is {numbers}one of {one_line(', '.join(options), 300)}")

    def _several(self, text: str) -> list[Any]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        known = [*self.model.options.values()]
        values: list[Any] = self.model.value_of(text)  # labels may have commas in them
        if not known:
            values = list(parts)
        elif any(value not in known for value in values):
            values = [self._chosen(part) for part in parts]
        self._check_size(len(values), "minItems", "maxItems", "choices")
        return values

    # -- free values --------------------------------------------------------------------------------------------

    def _number(self, text: str) -> int | float:
        try:
            number: int | float = int(text) if self.model.kind is FieldKind.INTEGER else float(text)
        except ValueError:
            raise Unfit(f"it is {_KINDS[self.model.kind]}") from None
        if not math.isfinite(number):
            raise Unfit(f"it is {_KINDS[self.model.kind]}")
        least, most = _limit(self.schema, "minimum"), _limit(self.schema, "maximum")
        if (least is not None and number < least) or (most is not None and number > most):
            raise Unfit(f"it is a number {self._range}")
        return number

    def _text(self, text: str) -> str:
        self._check_size(len(text), "minLength", "maxLength", "characters")
        form = self.schema.get("format")
        if isinstance(form, str) and form in _FORMATS and not _FORMATS[form][0](text.strip()):
            raise Unfit(f"it is {_FORMATS[form][1]}")
        return text

    def _check_size(self, size: int, least_key: str, most_key: str, unit: str) -> None:
        least, most = _limit(self.schema, least_key), _limit(self.schema, most_key)
        if least is not None and size < least:
            raise Unfit(f"it has at least {least:g} {unit}")
        if most is not None and size > most:
            raise Unfit(f"it has at most {most:g} {unit}")

    # -- remarks ------------------------------------------------------------------------------------------------

    @property
    def _default(self) -> Any:
        default = self.schema.get("default", LEFT_OUT)
        return LEFT_OUT if default is None else default

    @property
    def _shown_default(self) -> str:
        if isinstance(self._default, bool):
            return "yes" if self._default else "no"
        values = self._default if isinstance(self._default, list) else [self._default]
        labels = {str(value): label for label, value in self.model.options.items()}
        return ", ".join(labels.get(str(value), str(value)) for value in values)

    @property
    def _kind_remark(self) -> str:
        form = self.schema.get("format")
        if self.model.kind is FieldKind.STRING and self.model.options:
            return "one of these" if not self._numbered else f"1 to {len(self.model.options)}"
        if isinstance(form, str) and form in _FORMATS:
            return _FORMATS[form][1]
        return _KINDS[self.model.kind]

    @property
    def _limit_remarks(self) -> list[str]:
        return [self._range] if self.model.kind in (FieldKind.INTEGER, FieldKind.NUMBER) and self._range else []

    @property
    def _range(self) -> str:
        least, most = _limit(self.schema, "minimum"), _limit(self.schema, "maximum")
        if least is not None and most is not None:
            return f"from {least:g} to {most:g}"
        if least is not None:
            return f"from {least:g}"
        return f"to {most:g}" if most is not None else ""


def read_entries(schema: object) -> list[FieldEntry]:
    """The fields of a form, whoever wrote it; what is not of the expected shape is passed over."""
    source = schema if isinstance(schema, Mapping) else {}
    properties, required = source.get("properties"), source.get("required")
    wanted = [name for name in required if isinstance(name, str)] if isinstance(required, Sequence) else []
    raw = properties if isinstance(properties, Mapping) else {}
    return [FieldEntry(model, model.name in wanted, raw[model.name]) for model in read_fields({"properties": raw})]


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise Unfit("it is yes or no")


def _limit(schema: Mapping[str, Any], key: str) -> float | None:
    value = schema.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_email(text: str) -> bool:
    return _EMAIL.match(text) is not None


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "T" in text.upper()


def _is_address(text: str) -> bool:
    try:
        return bool(urlsplit(text).scheme)
    except ValueError:
        return False


_FORMATS: dict[str, tuple[Callable[[str], bool], str]] = {
    "email": (_is_email, "an email address"),
    "uri": (_is_address, "an address such as https://example.com"),
    "date": (_is_date, "a date such as 2026-11-15"),
    "date-time": (_is_time, "a time such as 2026-11-15T12:00:00Z"),
}


def shown_content(content: Mapping[str, Any]) -> str:
    """What is about to be sent, on one line."""
    return clean(", ".join(f"{name}={_shown(value)}" for name, value in content.items())) or "nothing"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
