"""Sandbox networks with a list of hosts: everything needed before there is a sandbox. That is the list, the variables
for the proxy, and the start of the sandbox's command. The proxy itself is loaded with the first sandbox that needs
it."""

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ....core.errors import InvalidArgument
from ....core.model.network import CERTIFICATES, PORT, SOCKET, STARTER, Audit, NetworkRules

if TYPE_CHECKING:
    from .egress import EgressProxy, RunCertificateAuthority

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CERTIFICATE_VARIABLES = (
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)


@dataclass(frozen=True)
class NetworkByList:
    """The network of one caller's sandboxes."""

    rules: NetworkRules
    environment: Mapping[str, str] = field(repr=False)
    """The server's environment, which contains credentials."""
    authority: "RunCertificateAuthority | None"
    """Set if the rules have credentials."""
    audit: Audit
    who: str

    def variables(self, model_url: str | None) -> dict[str, str]:
        """The variables that point programs in the sandbox to the proxy. The model has a separate socket, and the
        session's own servers are on the sandbox's loopback, unless the list has this machine's loopback."""
        proxy = f"http://127.0.0.1:{PORT}"
        listed = {rule.host for rule in self.rules.hosts}
        direct = [host for host in _LOOPBACK if host not in listed]
        model = urlsplit(model_url or "").hostname
        if model and model not in {*listed, *direct}:
            direct.append(model)
        names = {**dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy), "NO_PROXY": ",".join(direct)}
        lower = {name.lower(): value for name, value in names.items()}
        certificates = dict.fromkeys(_CERTIFICATE_VARIABLES, CERTIFICATES) if self.rules.credentials else {}
        return {**names, **lower, **certificates}

    def secrets(self) -> dict[str, str]:
        """The values of the credentials, under names that mark them as secret. Blocks on the disk."""
        if not self.rules.credentials:
            return {}
        from .http_exchange import read_credential  # noqa: PLC0415

        found = {}
        for number, rule in enumerate(self.rules.credentials):
            try:
                found[f"NETWORK_SECRET_{number}"] = read_credential(rule, self.environment).secret
            except InvalidArgument:
                continue  # it is read again, and refused, when it is used
        return found

    def egress_proxy(self, session_id: str | None) -> "EgressProxy":
        """The proxy for one process; open it before the process starts and close it with the process."""
        from .egress import EgressProxy  # noqa: PLC0415 - a server without such sandboxes does not pay for it

        return EgressProxy(self.rules, self.environment, self.authority, self.audit, self.who, session_id)


def interpreter_files() -> tuple[str, ...]:
    """What a sandbox must be able to read to run `start_in_sandbox`: our interpreter and its standard library."""
    files = [os.path.realpath(sys.executable), os.path.dirname(os.path.realpath(os.__file__))]
    library, directory = sysconfig.get_config_var("INSTSONAME"), sysconfig.get_config_var("LIBDIR")
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and library and directory:
        files.append(os.path.realpath(os.path.join(directory, library)))
    return tuple(files)


def command_before() -> Sequence[str]:
    """The prefix of a sandbox's command: opens the proxy's port and then becomes the command."""
    return [os.path.realpath(sys.executable), "-I", "-S", STARTER, SOCKET, str(PORT)]
