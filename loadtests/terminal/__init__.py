"""Messages of `python -m loadtests` to a terminal, and where its commands write."""
