"""The `sparkstorm` command: one module per verb."""

from sparkstorm.cli.main import main as main
