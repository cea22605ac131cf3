"""Counts in words, wherever a sentence has one."""


def counted(count: int, noun: str, many: str = "") -> str:
    """`1 request`, `1,000 requests`; `many` is the plural if it is no mere s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {many or f'{noun}s'}"
