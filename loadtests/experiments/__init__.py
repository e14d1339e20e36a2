"""Experiments. Each computes figures that this project claims; one command computes them anew."""
