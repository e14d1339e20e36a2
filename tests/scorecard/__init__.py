"""The scorecard of the front door: one file per row, over real sockets, with a whole gateway in the process."""
