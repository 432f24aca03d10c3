"""From a model and a source to token ids: it knows no model, only start, step and select."""
