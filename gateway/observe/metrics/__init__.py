"""Prometheus metrics: counters, histograms, gauges, exposition."""
