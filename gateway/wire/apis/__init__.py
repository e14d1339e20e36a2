"""One file and one row per API beyond the five that generate or embed text."""
