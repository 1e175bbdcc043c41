"""Conversion of names of topologies, components and hosts to names of nodes and files, and of any
text or count to a readable line; checks of names that a user gives.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from sparkstorm.common.errors import InvalidTopologyError, show

MAX_FILE_NAME_BYTES = 180  # file systems take 255; a slot and an ending are added
_SAFE = "()#:$<>@"
_HASH_CHARS = 32
_NUMBERS = re.compile(r"[\d.,]+")
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@lru_cache(4096)
def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: "1 tuple", "1,200 tuples"; `many` is the plural that an -s does
    not make.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def numberless(sentence: str) -> str:
    """Return a sentence without its numbers: sentences that differ in numbers only tell of the same
    thing at several times or places, and are shown once.
    """
    return _NUMBERS.sub("", sentence)


def filled(text: str) -> str:
    """Return the value of an option; ArgumentTypeError for an empty one, as an unset variable of the
    shell leaves it: it would mean another cluster or topology.
    """
    if not text:
        raise argparse.ArgumentTypeError("the value is empty: give one, or leave the option out")
    return text


def shown(line: str) -> str:
    """Return a line without control characters: user code may write any text, and a terminal
    carries out some of it.
    """
    return _UNSAFE.sub(lambda match: f"\\x{ord(match[0]):02x}", line.rstrip("\r"))


def name_to_node(name: str) -> str:
    """Return a name as one node of the state store's tree; characters that the tree refuses are
    percent-quoted.
    """
    quoted = quote(name, safe=_SAFE)
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def node_to_name(node: str) -> str:
    """Return the name that `name_to_node` was given."""
    return unquote(node)


def file_name(name: str) -> str:
    """Return a name as the name of one visible file or folder; different names have different
    files.

    Plain names stay as they are. Other characters and a leading '.' or '-' are percent-quoted; a
    name that gets longer than MAX_FILE_NAME_BYTES is cut and ends in `~` and a part of its SHA-256.
    """
    data = name.encode(errors="surrogatepass")
    quoted = quote(data, safe=_SAFE).replace("~", "%7E") or "%"
    if quoted[0] in ".-":
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    if len(quoted) <= MAX_FILE_NAME_BYTES:
        return quoted
    return f"{quoted[: MAX_FILE_NAME_BYTES - _HASH_CHARS - 1]}~{hashlib.sha256(data).hexdigest()[:_HASH_CHARS]}"


def node_of_driver(node: str, number: int) -> str:
    """Return the name of a node of the driver with that number: drivers that share a root have no
    node in common.

    The first driver's nodes have plain names; "@" occurs in no host name.
    """
    return node if number == 1 else f"{node}@{number}"


def machine_of_node(node: str) -> str:
    """Return what the nodes of all drivers on one machine have in common: `w1` of `w1` and of
    `w1@2`.
    """
    machine, separator, number = node.rpartition("@")
    return machine if separator and number.isascii() and number.isdecimal() else node


def driver_of_node(node: str) -> int:
    """Return the number of the driver that a node belongs to."""
    _, _, number = node.rpartition("@")
    return int(number) if "@" in node and number.isascii() and number.isdecimal() else 1


def read_names(owner: str, what: str, given: Any) -> tuple[str, ...]:
    """Return a name, or a sequence of names, as a tuple; InvalidTopologyError for anything else."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidTopologyError(
            f"{owner}: {what} is {show(given)}; write a name, or a list of names"
        )
    return tuple(names)


def unknown_field(name: str, source: str, fields: Iterable[str]) -> str:
    """Return the end of a sentence about a field that a source does not have: with the name that
    was meant, if one is near, else with all of them.
    """
    known_fields = list(fields)
    near = get_close_matches(name, known_fields, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known_fields) or 'none'}"
    return f"'{name}', which is no field of '{source}': {hint}"
