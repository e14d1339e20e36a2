"""Offered traffic: synthetic workloads, traces, arrival processes, lengths."""
