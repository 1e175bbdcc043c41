"""TlsFiles: the certificates of connections to Redis and ZooKeeper, as files that each host has
under the same path.

Paths travel with an address, keys do not: the address in a slot's spec opens nothing on another
host.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sparkstorm.common.errors import InvalidConfigError

_CA: Final = "sparkstorm.tls.ca.file"
_CERTIFICATE: Final = "sparkstorm.tls.certificate.file"
_KEY: Final = "sparkstorm.tls.key.file"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files, absolute or below "~", the user's folder on each host; empty where there
    is none.

    `ca` has authorities to trust next to the system's; `certificate` and `key` are shown to servers
    that ask for them.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def for_redis(self) -> dict[str, Any]:
        """Return redis-py's options for an encrypted connection; InvalidConfigError as `_here`."""
        ca, certificate, key = self._here()
        return {
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_ca_certs": ca,
            "ssl_certfile": certificate,
            "ssl_keyfile": key,
        }

    def for_kazoo(self) -> dict[str, Any]:
        """Return kazoo's options for an encrypted connection; InvalidConfigError as `_here`."""
        ca, certificate, key = self._here()
        checks = {"use_ssl": True, "verify_certs": True, "check_hostname": True}
        return {**checks, "ca": ca, "certfile": certificate, "keyfile": key}

    def check(self) -> None:
        """Raise InvalidConfigError, which names key and file, for what cannot be used on this
        host.
        """
        self._here()

    def _here(self) -> tuple[str | None, str | None, str | None]:
        """Return the whole paths on this host.

        Both clients name no file that they cannot read, and take its fault for a server that is
        away.
        """
        if bool(self.certificate) != bool(self.key):
            raise InvalidConfigError(f"{_CERTIFICATE} and {_KEY} are set together or not at all")
        ca = _path(_CA, self.ca)
        certificate = _path(_CERTIFICATE, self.certificate)
        key = _path(_KEY, self.key)
        if key is not None and Path(key).stat().st_mode & 0o077:
            raise InvalidConfigError(f"{_KEY}: {key} can be read by others: chmod 600 {key}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca is not None:
            try:
                context.load_verify_locations(ca)
            except ssl.SSLError:
                raise InvalidConfigError(f"{_CA}: {ca} holds no certificate in PEM form") from None
        if certificate is not None and key is not None:
            try:
                # else OpenSSL asks the terminal for a password
                context.load_cert_chain(certificate, key, lambda: b"")
            except (ssl.SSLError, ValueError):
                raise InvalidConfigError(
                    f"{_KEY}: {key} is not the key of {certificate}, or has a password: both must be PEM, and the key without one"
                ) from None
        return ca, certificate, key


NO_FILES: Final = TlsFiles()


def _path(key: str, name: str) -> str | None:
    """Return the path of a file that can be read here; None for no file."""
    if not name:
        return None
    path = Path(name)
    try:
        path = path.expanduser()
        if not path.is_absolute():
            raise InvalidConfigError(
                f"{key}: {name} is neither absolute nor below ~: each host reads its own file of that path"
            )
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise InvalidConfigError(
            f"{key}: {path} cannot be read on this host: {error.strerror}"
        ) from error
    except RuntimeError as error:  # of expanduser: there is no such user
        raise InvalidConfigError(f"{key}: {name}: {error}") from error
    return str(path)
