"""Guard of every HTTP server of the project: decisions about a request from its head alone, before
a byte of its body is read.

Every user of the host reaches a port on loopback, and so does every page in the user's browser. So
a Host must be one of ours (a foreign name that resolves to this address is DNS rebinding), an
Origin too, a token is compared in constant time, and a body has one length that all parsers read
alike.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping

from sparkstorm.common.errors import InvalidConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
Refusal = tuple[int, str]
"""Status of an answer, and one sentence."""
# of more digits no body is asked for, and Python refuses to read 5,000 of them
_MOST_DIGITS = 18


def local_hosts(port: int) -> frozenset[str]:
    """Return the Host headers of a server on this machine."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


def require_private(
    where: str, address: str, certificate: str, key: str, is_behind_proxy: bool, words: str
) -> None:
    """Refuse a place where the token would cross a network in the clear; `words` name what to
    give.
    """
    if bool(certificate) != bool(key):
        raise InvalidConfigError(f"{where}TLS needs both files: {words.partition(', or ')[0]}")
    if address not in LOOPBACK and not certificate and not is_behind_proxy:
        raise InvalidConfigError(
            f"{where}on {address} the token would cross the network in the clear: give {words}"
        )


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by name; one that is given twice has both values, so that it equals none that
    is wanted.
    """
    headers: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        headers[key] = f"{headers[key]}; {value}" if key in headers else value
    return headers


def refused_place(
    headers: Mapping[str, str], hosts: Collection[str] | None, scheme: str
) -> Refusal | None:
    """Return the refusal of a request that another site has sent, or that asks for another server;
    hosts None: any, of a server that a token protects.
    """
    if hosts is not None and headers.get("host", "").lower() not in hosts:
        return 421, "the Host header names another server"
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"{scheme}://{host}" for host in hosts or ()}:
        return 403, "requests from pages of another origin are refused"
    return None


def is_same(one: str, other: str) -> bool:
    """Return whether two secrets are equal, in a time that tells nothing."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def has_token(headers: Mapping[str, str], token: str) -> bool:
    """Return whether a request shows the token."""
    return is_same(headers.get("authorization", ""), f"Bearer {token}")


def refused_length(
    headers: Mapping[str, str], most: int, needs_length: bool = False
) -> Refusal | None:
    """Return the refusal of a body that is too long, or whose length two parsers could read
    differently.
    """
    length = headers.get("content-length")
    if length is not None and "transfer-encoding" in headers:
        return 400, "a request has a Content-Length or a Transfer-Encoding, not both"
    if length is not None and not (length.isascii() and length.isdigit()):
        return 400, "the Content-Length must be one whole number"
    if length is not None and (len(length) > _MOST_DIGITS or int(length) > most):
        return 413, f"the body has more than {most} bytes"
    if needs_length and length is None:
        return 411, "a Content-Length is needed"
    return None
