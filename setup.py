"""The compiled core, the one part of the build that setup.cfg cannot say: optional, so an install
without compiler goes on.

`SPARKSTORM_CORE` says otherwise: `none` builds the pure wheel, `required` fails without a compiler,
as a release's wheels must.
"""

import os

from setuptools import Extension, setup

CORE = os.environ.get("SPARKSTORM_CORE", "")
if CORE not in ("", "none", "required"):
    raise SystemExit(f"SPARKSTORM_CORE is {CORE!r}; it must be none or required, or not be set")

setup(
    ext_modules=[]
    if CORE == "none"
    else [
        Extension(
            "sparkstorm.model._core",
            [
                f"sparkstorm/model/{name}.c"
                for name in ("_core", "_frames", "_ledger", "_msgpack", "_resp", "_values")
            ],
            optional=CORE != "required",
        )
    ]
)
