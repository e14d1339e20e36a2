"""Everything that exercises a live gateway: emulated replicas, load, benchmarks."""
