"""The scorecard of the gateway: one file per row, over real sockets, with a whole gateway in the process."""
