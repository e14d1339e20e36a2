"""Learned facts behind forecasts: latency model, prompt and output lengths, calibration, trust."""
