"""Compiles the request path and the simulator with mypyc, for wheels and checkouts (docs/adr/0007-compiled-wheels.md).

It runs before anything is installed, and therefore imports nothing of the gateway and of its dependencies.
"""
