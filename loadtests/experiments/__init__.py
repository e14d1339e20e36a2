"""Experiments: the figures that this project claims, each computed anew by one command."""
