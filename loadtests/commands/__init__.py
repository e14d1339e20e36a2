"""The commands of `python -m loadtests`, one module each."""
