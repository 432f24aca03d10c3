"""Every setting, and how settings are read; nothing here needs torch."""
