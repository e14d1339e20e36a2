"""Experiments: each computes figures that this project claims, anew, by one command."""
