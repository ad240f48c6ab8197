"""The main job where nothing is installed: a skewed join, live, and checked by another SQL engine."""
