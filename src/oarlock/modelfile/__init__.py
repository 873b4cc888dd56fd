"""A model file at work: taught, asked, inspected, verified."""
