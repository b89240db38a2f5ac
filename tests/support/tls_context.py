"""One TLS context for all HTTP clients of a process: to make one takes 40 ms of CPU, for it reads every certificate of
the system, and most clients of the tests never leave this machine."""

import functools
import os
import ssl

import httpcore2

_make = httpcore2.default_ssl_context


@functools.cache
def _made(trust_env: bool, file: str | None, directory: str | None) -> ssl.SSLContext:
    return _make(_trust_env=trust_env)


def _shared(*, _trust_env: bool = True) -> ssl.SSLContext:
    """As the library makes it, which reads these variables; contexts of its callers' own are not touched."""
    return _made(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


def share() -> None:
    """For this process, and for those that are forked from it, from now on."""
    httpcore2.default_ssl_context = _shared
    _shared()
