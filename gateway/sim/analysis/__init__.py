"""Results of simulations: tallies, comparisons, bounds, reports."""
