"""One record of each request that is over: kept in memory, and read by pages, logs and exporters."""
