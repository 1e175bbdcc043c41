"""Failure capsule: one dead letter as a file, from which the failed call can be executed again
anywhere.

A JSON object in tagged text: kind, format and the letter. A capsule is read as hostile input: it is
bounded, every field is checked, nothing in it is executed or imported.
"""

from __future__ import annotations

import os
from pathlib import Path

from sparkstorm.common.errors import CodecError, RecordingError, StoreInconsistentError, reason_of
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.values.tagged import from_json, to_json

KIND = "sparkstorm capsule"
FORMAT = 1
ENDING = ".capsule.json"
BUILDER = "topology.builder"
BUILDER_ARGUMENTS = "topology.builder.arguments"
CLASSES = "topology.serializers"
NAMES_CODE = (BUILDER, BUILDER_ARGUMENTS, CLASSES)
"""Settings that name code to import: never taken from a letter, whose bytes nobody has signed."""
_MOST_BYTES = 64 << 20


def write_capsule(path: Path, letter: DeadLetter) -> None:
    """Write a capsule, readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(
                to_json({"kind": KIND, "format": FORMAT, "letter": letter.as_record()}) + "\n"
            )
        os.replace(partial, path)
    except OSError as error:
        raise RecordingError(f"{path} cannot be written: {error.strerror}") from error


def read_capsule(path: Path) -> DeadLetter:
    """Read a capsule; RecordingError names the file and what is wrong with it."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise RecordingError(
                f"{path} is larger than {_MOST_BYTES >> 20} MiB, which no capsule is"
            )
        record = from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, CodecError) as error:
        raise RecordingError(
            f"{path} cannot be read as a capsule: {reason_of(error)[:300]}"
        ) from error
    if not isinstance(record, dict) or record.get("kind") != KIND:
        raise RecordingError(f"{path} is no capsule: its kind is not '{KIND}'")
    if record.get("format") != FORMAT or record.keys() != {"kind", "format", "letter"}:
        raise RecordingError(
            f"{path}: format is {record.get('format')!r:.40}; this version reads format {FORMAT}"
        )
    try:
        return DeadLetter.from_record(record["letter"])
    except StoreInconsistentError as error:
        raise RecordingError(f"{path}: {error}") from error
