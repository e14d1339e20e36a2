"""Traces and metrics, sent to a collector by OTLP. Imported only if they are asked for."""
