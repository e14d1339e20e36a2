"""`make release VERSION=1.2.3`: the changelog, what is uploaded, and the checks. Nothing is uploaded."""
