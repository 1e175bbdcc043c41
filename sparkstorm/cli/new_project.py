"""The verb `init`: a folder with a topology, its job file, tests, a notebook and a CI file, all of
which run as they are.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from sparkstorm import __version__
from sparkstorm.cli.common import OK
from sparkstorm.common.errors import InvalidConfigError, show

_PROJECT = Path(__file__).with_name("project")
# each file of a new project, as its text is filled in, by the template's
_FILES = {
    "MODULE.py": "pipeline.py",
    "job.yaml": "job.yaml",
    "test_MODULE.py": "test.py",
    "MODULE.ipynb": "notebook.ipynb",
    "Makefile": "Makefile",
    # without it pytest takes the settings of a project in a folder above
    "pytest.ini": "pytest.ini",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    ".github/workflows/test.yml": "test.yml",
}


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = verbs.add_parser(
        "init",
        description=init.__doc__,
    )
    verb.add_argument(
        "folder",
        metavar="NAME",
        help="the folder to make; its last part names project and topology",
    )
    verb.set_defaults(run=init)


def init(arguments: argparse.Namespace) -> int:
    """Make the folder of a new project: topology, job file, tests, notebook, Makefile and CI file,
    ready for `make test`.
    """
    folder = Path(arguments.folder)
    files = project_files(folder.resolve().name)  # of `.`: the name of the folder
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise InvalidConfigError(
            f"{show(str(folder))} is there already and not an empty folder: choose another name"
        )
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(
        f"{folder}: {', '.join(sorted(files))}\ngo on with: cd {shlex.quote(str(folder))} && make test"
    )
    return OK


def project_files(name: str) -> Mapping[str, str]:
    """Return a project's files, each path with its text; InvalidConfigError for a name that no
    module can have.
    """
    module = name.replace("-", "_")
    if (
        not re.fullmatch(r"[a-zA-Z]\w*", module, re.ASCII)
        or keyword.iskeyword(module)
        # it would hide that module from SparkStorm and pytest
        or module in {*sys.stdlib_module_names, "sparkstorm", "test", "pytest"}
    ):
        raise InvalidConfigError(
            f"{show(name)} cannot name a project: take letters, digits, - and _, a letter first, no word or module of Python's"
        )

    def filled(text: str) -> str:
        return text.replace("NAME", name).replace("MODULE", module)

    files = {
        filled(file): filled((_PROJECT / f"{template}.txt").read_text(encoding="utf-8"))
        for file, template in _FILES.items()
    }
    return {**files, "requirements.txt": f"{_requirement()}\npytest\n"}


def _requirement() -> str:
    """Return the line by which pip finds this SparkStorm again: the checkout or the wheel that it
    was installed from (PEP 610), else its version.
    """
    origin = distribution("sparkstorm").read_text("direct_url.json")
    if origin is None:
        return f"sparkstorm=={__version__}"
    fields = json.loads(origin)
    is_editable = fields.get("dir_info", {}).get("editable", False)
    return f"-e {fields['url']}" if is_editable else f"sparkstorm @ {fields['url']}"
