"""Counts in words."""


def counted(count: int, noun: str, many: str = "") -> str:
    """`1 request`, `1,000 requests`; `many` is an irregular plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {many or f'{noun}s'}"
