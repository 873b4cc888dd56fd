"""A model in the browser and over HTTP: what it does not know is grouped, named, and taught."""
