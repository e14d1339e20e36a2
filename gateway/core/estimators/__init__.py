"""Pure numbers, learned or counted: rates, histograms, costs, lengths, spreads. No request and no pool."""
