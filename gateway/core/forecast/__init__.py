"""What a request will cost: latency model, lengths, breach probability, calibration, trust."""
