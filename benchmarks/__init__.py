"""Measures the package and LlamaIndex side by side: ``python -m benchmarks.NAME`` from the repository root."""
