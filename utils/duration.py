"""Durations in readable units."""


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days, whichever reads best."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
