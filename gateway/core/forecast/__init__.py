"""The forecast of a request at a replica or in the queue, its calibration, and whether it is trusted."""
