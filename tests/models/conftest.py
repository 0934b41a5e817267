"""The fixtures of these tests."""

from tests.fixtures import *
