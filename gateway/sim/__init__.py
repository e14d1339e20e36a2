"""Simulation of engines and workloads in virtual time."""
