"""Measures the package beside LlamaIndex as it is: ``python -m benchmarks.NAME`` from the repository root."""
