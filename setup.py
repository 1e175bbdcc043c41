"""The compiled core, the one part of the build that setup.cfg cannot say: optional, so an install without compiler goes on."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "sparkstorm.model._core",
            [f"sparkstorm/model/{name}.c" for name in ("_core", "_ledger", "_resp", "_values")],
            optional=True,
        )
    ]
)
