"""A trained model in the formats of others."""
