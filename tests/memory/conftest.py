"""The fixtures of these tests."""

from tests.databases import lasting_store
from tests.fixtures import *

store = lasting_store
