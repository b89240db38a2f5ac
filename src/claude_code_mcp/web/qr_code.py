"""An address as a QR code, where the library for it is installed (the extra `web`)."""

from collections.abc import Sequence

_BLOCKS = {("1", "1"): "█", ("1", "0"): "▀", ("0", "1"): "▄", ("0", "0"): " "}


def qr_rows(text: str) -> list[str] | None:
    """The rows of the code with a quiet zone around it, `1` for dark; None without the library."""
    try:
        import segno  # noqa: PLC0415 - optional
    except ImportError:
        return None
    code = segno.make(text, error="l", micro=False)
    return ["".join("1" if dark else "0" for dark in row) for row in code.matrix_iter(border=2)]


def qr_text(rows: Sequence[str]) -> str:
    """The code for a terminal, two rows in a line. Light parts are drawn: most terminals are dark, and a reader takes
    the code either way only if the quiet zone is of the same kind as its light parts."""
    inverted = ["".join("0" if part == "1" else "1" for part in row) for row in rows]
    if len(inverted) % 2:
        inverted.append("0" * len(inverted[0]))
    pairs = zip(inverted[::2], inverted[1::2], strict=True)
    return "\n".join("".join(_BLOCKS[parts] for parts in zip(upper, lower, strict=True)) for upper, lower in pairs)
