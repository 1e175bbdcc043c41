"""The list of what ships of other projects, against the files of the page's folder and the licences
of the distribution.
"""

from __future__ import annotations

import configparser
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VENDOR = ROOT / "sparkstorm" / "web" / "static" / "vendor"


def parts_of(component: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every component below one."""
    for part in component.get("components", ()):
        yield part
        yield from parts_of(part)


def test_every_file_of_others_is_listed_as_it_is_with_a_licence_that_ships() -> None:
    content = json.loads((ROOT / "sparkstorm" / "sbom.cdx.json").read_text(encoding="utf-8"))
    assert (content["bomFormat"], content["specVersion"]) == ("CycloneDX", "1.6")
    parts = list(parts_of(content))
    listed = {
        part["name"]: part["hashes"][0]["content"] for part in parts if part["type"] == "file"
    }
    licences = {path.stem: path for path in VENDOR.glob("*.LICENSE")}
    files = {*VENDOR.iterdir()} - {*licences.values()}
    assert listed == {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    libraries = {
        part["name"]: part["licenses"][0]["license"]["id"]
        for part in parts
        if part["type"] == "library"
    }
    assert libraries.keys() == licences.keys()
    assert {
        name
        for name, licence in libraries.items()
        if ("Apache License" in licences[name].read_text()) != (licence != "MIT")
    } == set()
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    own = content["metadata"]["component"]["licenses"][0]["license"]["id"]
    assert setup["metadata"]["license"] == " AND ".join(sorted({own, *libraries.values()}))
    shipped = {
        path
        for pattern in setup["metadata"]["license_files"].split()
        for path in ROOT.glob(pattern)
    }
    assert shipped == {ROOT / "LICENSE", *licences.values()}
    assert all(
        part["version"] in (ROOT / "docs" / "dependencies.md").read_text("utf-8")
        for part in parts
        if "version" in part
    )
