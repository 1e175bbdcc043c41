"""Mutation tests of the data plane's commit path: `make mutants`."""
