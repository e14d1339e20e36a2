"""Computes how many replicas a load needs, by arithmetic or by simulation."""
