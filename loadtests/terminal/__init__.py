"""What the commands of `python -m loadtests` say to a terminal, and where they write."""
