"""Tests of the live load: its clock and its arithmetic, its parser, its policies; never a speed."""
