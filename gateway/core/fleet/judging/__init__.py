"""Compares the replicas of a pool, ejects outliers, and tries them again."""
