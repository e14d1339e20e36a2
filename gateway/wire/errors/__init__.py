"""Errors as clients read them, and the reasons behind them."""
