"""Input and output at the terminal, for people and for other programs."""
