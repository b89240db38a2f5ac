"""The fields of forms: what is written as a schema is read as the same fields, whoever wrote it."""

from typing import Any

from claude_code_mcp.core.questions.form_model import FieldKind, FormField, form_schema, options_of, read_fields
from tests.support.tables import every_row

FIELDS = [
    FormField("name", "Name", "How you are called"),
    FormField("color", "Color", options=options_of("red", "green"), required=True),
    FormField("sizes", "Sizes", "Any of them", FieldKind.ARRAY, options_of("S", "M")),
    FormField("age", "Age", kind=FieldKind.INTEGER),
]


def test_a_form_reads_back_as_the_fields_it_was_made_of() -> None:
    schema = form_schema(*FIELDS)
    assert read_fields(schema) == FIELDS
    assert schema["required"] == ["color"]


@every_row(
    ("content", "entered", "text"),
    [
        ({}, None, None),
        ({"sizes": None}, None, None),
        ({"sizes": ""}, None, None),
        ({"sizes": []}, None, None),
        ({"sizes": ["S", 1]}, ["S", "1"], "['S', 1]"),
        ({"sizes": "S"}, "S", "S"),
    ],
)
def test_entered_text(content: dict[str, Any], entered: object, text: str | None) -> None:
    assert FIELDS[2].entered(content) == entered
    assert FIELDS[2].entered_text(content) == text


@every_row("schema", [None, [], "x", {}, {"properties": None}, {"properties": {"a": 1}}])
def test_non_form_has_no_fields(schema: object) -> None:
    assert read_fields(schema) == []
