"""The compiled core and the text for the index's page: the parts of the build that setup.cfg cannot
say.

`SPARKSTORM_CORE`: the core is optional, so an install without compiler goes on; `none` builds the
pure wheel, `required` fails without a compiler, as a release's wheels must.

`SPARKSTORM_URL`: address of the public repository, https://HOST/OWNER/NAME. The metadata name its
parts, and README's links lead to its files at the version's tag. Without it the index's page has
their words alone, since a relative link leads nowhere there.
"""

import os
import re
from pathlib import Path

from setuptools import Extension, setup

CORE = os.environ.get("SPARKSTORM_CORE", "")
if CORE not in ("", "none", "required"):
    raise SystemExit(f"SPARKSTORM_CORE is {CORE!r}; it must be none or required, or not be set")
HOME = os.environ.get("SPARKSTORM_URL", "").rstrip("/")
if HOME and not re.fullmatch(r"https://[^/]+/[^/]+/[^/]+", HOME):
    raise SystemExit(f"SPARKSTORM_URL is {HOME!r}; it must be https://HOST/OWNER/NAME, or not set")
HERE = Path(__file__).parent
# read, not imported: what the package needs is not there when it is built
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "sparkstorm" / "__init__.py").read_text("utf-8"), re.M
)[1]
FILES = f"{HOME}/blob/v{VERSION}"
LINK = r"\[([^][]+)\]\((?!https?://|#)([^)\s]+)\)"
PICTURE = r"!\[([^][]*)\]\(([^)\s#]+)(#[^)\s]*)?\)"


def picture(found):
    """Return README's picture for the index's page, which shows no forms for light and dark."""
    text, path, form = found.groups()
    if not HOME or form == "#gh-dark-mode-only":
        return ""
    return f"![{text}]({HOME}/raw/v{VERSION}/{path})"


README = re.sub(PICTURE, picture, (HERE / "README.md").read_text("utf-8"))

setup(
    long_description=re.sub(LINK, rf"[\1]({FILES}/\2)" if HOME else r"\1", README),
    project_urls={
        "Source": HOME,
        "Documentation": f"{FILES}/docs/tutorial.md",
        "Changes": f"{FILES}/CHANGELOG.md",
        "Issues": f"{HOME}/issues",
        "Security": f"{FILES}/SECURITY.md",
    }
    if HOME
    else {},
    ext_modules=[]
    if CORE == "none"
    else [
        Extension(
            "sparkstorm.common.model._core",
            [
                f"sparkstorm/common/model/{name}.c"
                for name in (
                    "_core",
                    "_extensions",
                    "_frames",
                    "_hash",
                    "_msgpack",
                    "_values",
                )
            ],
            optional=CORE != "required",
        )
    ],
)
