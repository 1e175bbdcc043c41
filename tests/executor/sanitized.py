"""pytest plugin: puts the core that SPARKSTORM_SANITIZED_CORE names in the place of the installed
one.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location

_spec = spec_from_file_location(
    "sparkstorm.common.model._core", os.environ["SPARKSTORM_SANITIZED_CORE"]
)
assert _spec is not None and _spec.loader is not None
sys.modules["sparkstorm.common.model._core"] = module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["sparkstorm.common.model._core"])
