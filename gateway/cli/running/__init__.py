"""Commands that ask a running gateway, at its admin port."""
