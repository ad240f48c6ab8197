"""The demo: a skewed join that needs no installation, shown live, and checked by another SQL engine."""
