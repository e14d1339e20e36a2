"""Compiles the request path and the simulator with mypyc, for wheels and checkouts.

ADR 0007 (docs/internals/adr/0007-compiled-wheels.md) says why.

It runs before anything is installed, and therefore imports nothing of the gateway and of its dependencies.
"""
