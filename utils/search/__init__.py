"""From a source to token ids, by start, step and select alone; and what models find likely, and look at."""
