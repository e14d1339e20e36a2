"""Terminal output of `python -m loadtests`, and the places to which its commands write."""
