"""An image or a PDF document that is sent with a message."""

from dataclasses import dataclass

MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


PDF = "application/pdf"


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a message, or a PDF document."""

    media_type: str
    data: str
    """In base64."""


def media_type(data: bytes) -> str | None:
    """The media type that these bytes begin with (an image or PDF); None if the model does not accept it."""
    for beginning, kind in _BEGINNINGS.items():
        if data.startswith(beginning):
            return kind
    if data.startswith(b"%PDF-"):
        return PDF
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None
