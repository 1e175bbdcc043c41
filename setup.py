"""The compiled core, the one part of the build that setup.cfg cannot say: optional, so an install without compiler goes on."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "sparkstorm.model._core",
            ["sparkstorm/model/_core.c", "sparkstorm/model/_ledger.c", "sparkstorm/model/_resp.c"],
            optional=True,
        )
    ]
)
