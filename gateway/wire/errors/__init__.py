"""Errors for clients, and the reasons behind them."""
