"""The forecast of a request at a replica or in the queue, and how reliable it was."""
