"""What a person at a terminal types and sees, and what other programs read there."""
