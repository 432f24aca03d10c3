"""Export of trained models to other formats, and their import."""
