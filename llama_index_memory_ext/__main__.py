"""Runs the command line: ``python -m llama_index_memory_ext``."""

import sys

from llama_index_memory_ext.cli import main

sys.exit(main())
