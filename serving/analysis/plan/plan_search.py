"""The smallest size that passes an expensive test; several sizes are tested at once."""

from collections.abc import Callable, Sequence

Test = Callable[[Sequence[int]], Sequence[bool]]

STEP = 1.08
"""Ratio to the next size, while only failures or only passes are known."""


def smallest_passing(test: Test, *, guess: int, most: int, width: int = 1) -> int | None:
    """The size n from 1 to `most` at which `test` passes and n - 1 fails, or n is 1; None without
    one.

    `test` gets up to `width` sizes at once, each once, `guess` first. Passing is assumed monotone
    in size; if not, the result still passed and the size below it failed.
    """
    failed, passed = 0, most + 1  # the largest that failed below the smallest that passed
    guess = min(max(guess, 1), most)
    sizes = [size for size in range(guess - width + 1, guess + 1) if size >= 1]
    while passed - failed > 1:
        for size, passes in sorted(zip(sizes, test(sizes), strict=True)):
            if passes:
                passed = min(passed, size)
                break  # what a larger one said of these does not matter any more
            failed = size
        sizes = _next_sizes(failed, passed, most=most, width=width)
    return passed if passed <= most else None


def _next_sizes(failed: int, passed: int, *, most: int, width: int) -> list[int]:
    """Ascending sizes between both: larger while none passed, smaller while none failed."""
    sizes: set[int] = set()
    if passed > most:
        size = failed
        for _ in range(width):
            size = min(max(size + 1, round(size * STEP)), most)
            sizes.add(size)
    elif failed == 0:
        size = passed
        for _ in range(width):
            size = max(min(size - 1, round(size / STEP)), 1)
            sizes.add(size)
    else:
        parts = min(width, passed - failed - 1) + 1
        sizes = {failed + part * (passed - failed) // parts for part in range(1, parts)}
    return sorted(size for size in sizes if failed < size < passed)
