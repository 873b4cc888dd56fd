"""The frozen trunk and what is trained on it: adapters, gates, heads."""
