"""Policies, one per file: each suggests moves, none enacts them."""
