"""Forecast of the cost of a request: latency model, lengths, breach probability, calibration, trust."""
