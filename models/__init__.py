"""Complete networks, each with its own frozen config, built from `layers`."""
