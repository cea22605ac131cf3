"""Numbers with units, for screens."""

_GIB = 2**30
_TIB = 2**40


def memory(count: int) -> str:
    """Bytes in binary units, as the vendor's tools mean them."""
    if count >= _TIB:
        return f"{count / _TIB:.2f} TiB"
    return f"{count / _GIB:.2f} GiB" if count >= _GIB // 100 else f"{count / 2**20:.2f} MiB"


def percent(share: float | None) -> str:
    """A share in percent; "-" for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


def seconds(value: float | None) -> str:
    """A duration in a unit in which it is at least 1; "-" for None."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def three_wide(value: float) -> str:
    """A whole number in three characters, four from 1,000 on: 87, 512, 1.3k."""
    return f"{value:3.0f}" if round(value) < 1000 else f"{value / 1000:.1f}k"


def watts(value: float) -> str:
    """W or kW."""
    return f"{value / 1000:,.1f} kW" if value >= 10_000 else f"{value:,.0f} W"
