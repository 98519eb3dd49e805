"""How fast this package is, next to what others would use; `python -m benchmarks.engine`."""
