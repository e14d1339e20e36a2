"""Tests of the bench: its arithmetic and its load generator, never a speed."""
