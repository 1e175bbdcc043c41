"""Entry of `python -m sparkstorm.cli`."""

import sys

from sparkstorm.cli.main import main

sys.exit(main())
