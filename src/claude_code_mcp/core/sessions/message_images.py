"""The images of a message, from files or `data:` URLs.

The type of an image is determined from its bytes, not its name. For a file, the policy checks the resolved path, and
exactly that file is opened: a link that is created in between has no effect.
"""

import base64
import binascii
import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import InvalidArgument, PermissionDenied
from ..model.image import MEDIA_TYPES, Image, media_type
from ..private_files import open_at

if TYPE_CHECKING:
    from .session import Session


_MAX_IMAGES = 20
_MAX_BYTES = 5 << 20
"""Bytes of one image; the model accepts no larger ones."""
_MAX_TOTAL_BYTES = 20 << 20
_DATA = "data:"
_KINDS = ", ".join((*sorted(kind.removeprefix("image/") for kind in MEDIA_TYPES), "pdf"))


def read_images(sources: Sequence[str], allowed: Callable[[str], str]) -> tuple[Image, ...]:
    """The images in their order. `allowed` resolves a path or raises an error. InvalidArgument if a source is not an
    image or too large. Blocks on the disk."""
    if len(sources) > _MAX_IMAGES:
        raise InvalidArgument(f"images: a message can have at most {_MAX_IMAGES}.", field="images")
    images, total = [], 0
    for number, source in enumerate(sources):
        field = f"images.{number}"
        data = _decoded(field, source) if source.startswith(_DATA) else _read(field, source, allowed)
        kind = media_type(data)
        if kind is None:
            raise InvalidArgument(f"{field}: is not one of these kinds: {_KINDS}.", field=field)
        total += len(data)
        if total > _MAX_TOTAL_BYTES:
            raise InvalidArgument(f"images: together larger than {_MAX_TOTAL_BYTES >> 20} MiB.", field="images")
        images.append(Image(kind, base64.b64encode(data).decode("ascii")))
    return tuple(images)


def allowed_path(session: "Session", path: str) -> str:
    """The resolved path of an image; PermissionDenied if the session could not read it. Blocks on the disk."""
    resolved = session.deps.enforcer.admission(session.owner).readable("images", path, session.cwd)
    enclosure = session.deps.launcher.home.enclosure
    if enclosure is not None and not enclosure.sees(resolved, session.options, session.cwd):
        raise PermissionDenied("images: a path is outside the session's sandbox.", field="images")
    return resolved


def _decoded(field: str, url: str) -> bytes:
    head, comma, encoded = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidArgument(f"{field}: a data URL must be base64: data:image/png;base64,…", field=field)
    # Before decoding, which takes as much memory again.
    if len(encoded) > _MAX_BYTES * 4 // 3 + 4:
        raise _too_large(field)
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"{field}: is not valid base64.", field=field) from None


def _read(field: str, path: str, allowed: Callable[[str], str]) -> bytes:
    try:
        # The allowed path has no links: links created in it since are not followed.
        with open(allowed(path), "rb", opener=open_at) as file:
            # Checked on the open file: the path may lead to another file by now.
            opened = os.fstat(file.fileno())
            if not stat.S_ISREG(opened.st_mode):
                raise InvalidArgument(f"{field}: not a regular file.", field=field)
            if opened.st_size > _MAX_BYTES:
                raise _too_large(field)
            return file.read(_MAX_BYTES + 1)[:_MAX_BYTES]
    except OSError as error:
        why = error.strerror or "cannot be read"
        raise InvalidArgument(f"{field}: cannot be read: {why}.", field=field) from None


def _too_large(field: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: is larger than {_MAX_BYTES >> 20} MiB.", field=field)
