"""Tests of the repository: its pages, figures, notebooks, benchmarks and distributions."""

from tests.conftest import *
