"""Vector instructions for compiled kernels: what a compiler would have to find out is said.

A vector is `LANES` float32. Every product is added by one fused multiply-add, in an order that
depends on the place of a number alone: how many rows or columns there are, and which processor it
is, changes no bit. Numba has no such types; these are its intrinsics, written in LLVM's words.
"""

# mypy: no-disallow-untyped-calls, no-disallow-untyped-decorators
# ruff: noqa: ARG001
# Numba and llvmlite have no types. Arguments of an intrinsic are types; its code has the values.

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numba.core import cgutils, types
from numba.core.extending import intrinsic

LANES: Final = 16
"""Numbers in a vector; a processor with shorter ones takes several at once."""

ir: Final[Any] = cgutils.ir  # type: ignore[attr-defined]  # llvmlite's
_intrinsic: Final[Any] = intrinsic  # its types are those of a function that has its arguments alone
_FLOAT: Final = ir.FloatType()
_INDEX: Final = ir.IntType(64)
_VECTOR: Final = ir.VectorType(_FLOAT, LANES)
_MASK: Final = ir.VectorType(ir.IntType(1), LANES)
_NUMBER_BYTES: Final = 4


def _float32(number: float) -> float:
    """The nearest float32."""
    return float(np.float32(number))


_LN_2: Final = (0.693145751953125, _float32(math.log(2) - 0.693145751953125))
"""ln 2, the first part with few enough bits that its products with whole numbers are exact."""

_EXP_TERMS: Final = tuple(
    map(
        _float32,
        (1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1.0, 1.0),
    )
)
"""Of exp within half a ln 2, the highest power first: a minimax polynomial (N. Juffa's)."""

_EXP_LOWEST, _EXP_HIGHEST = -86.5, _float32(88.72283)


class RowsAt(NamedTuple):
    """Rows of numbers in memory: the address of the first, and numbers from a row to the next."""

    at: int
    step: int


def _tile(rows: int, vectors: int) -> Any:
    """`add_tile` of so many rows, and full vectors of columns; 0 for one that is not full."""

    @_intrinsic
    def add_tile(typing: Any, out: Any, x: Any, w: Any, inner: Any, columns: Any) -> Any:
        """Add a product to a tile of `out`: x [rows, inner] times w [inner, columns], by `inner`.

        The first three are `RowsAt`.
        """
        return types.void(out, x, w, types.intp, types.intp), _tile_code(rows, vectors)

    return add_tile


def _tile_code(rows: int, vectors: int) -> Callable[..., Any]:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *operands, inner, columns = arguments
        places, steps = zip(
            *(cgutils.unpack_tuple(builder, each, 2) for each in operands), strict=True
        )
        out, x, w = (builder.inttoptr(each, _FLOAT.as_pointer()) for each in places)
        out_step, x_step, w_step = steps
        mask = None if vectors else _first_lanes(builder, columns)
        starts = [_index(column) for column in range(0, max(1, vectors) * LANES, LANES)]
        targets = [
            _at(builder, out, builder.add(builder.mul(out_step, _index(row)), start))
            for row in range(rows)
            for start in starts
        ]
        sums = [cgutils.alloca_once_value(builder, _load(builder, at, mask)) for at in targets]
        with cgutils.for_range(builder, inner) as loop:
            line = _at(builder, w, builder.mul(w_step, loop.index))
            weights = [_load(builder, _at(builder, line, start), mask) for start in starts]
            for row in range(rows):
                place = builder.add(builder.mul(x_step, _index(row)), loop.index)
                factor = _splat(builder, builder.load(_at(builder, x, place), align=_NUMBER_BYTES))
                for column, weight in enumerate(weights):
                    total = sums[row * len(weights) + column]
                    builder.store(_fma(builder, factor, weight, builder.load(total)), total)
        for at, total in zip(targets, sums, strict=True):
            _store(builder, builder.load(total), at, mask)
        return context.get_dummy_value()

    return code


@_intrinsic
def address(typing: Any, numbers: Any, place: Any) -> Any:
    """The address of a number of an array, which must be an argument of the function that asks, or
    what it returns: Numba may free another after its last use.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = _numbers(context, builder, signature, arguments, 0)
        return builder.ptrtoint(_at(builder, first, arguments[1]), _INDEX)

    return types.intp(numbers, types.intp), code


@_intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """What `carray` takes for an address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), code


TILES: Final = {(rows, vectors): _tile(rows, vectors) for rows in range(1, 5) for vectors in (0, 2)}
add_row_of_four: Final = _tile(1, 4)


def _index(number: int) -> Any:
    return ir.Constant(_INDEX, number)


def _numbers(context: Any, builder: Any, signature: Any, arguments: Any, at: int) -> Any:
    """The address of an array's numbers."""
    kind = signature.args[at]
    assert isinstance(kind, types.Array), kind
    assert kind.dtype == types.float32, kind
    return context.make_array(kind)(context, builder, arguments[at]).data


def _at(builder: Any, numbers: Any, place: Any) -> Any:
    return builder.gep(numbers, [place])


def _load(builder: Any, at: Any, mask: Any) -> Any:
    at = builder.bitcast(at, _VECTOR.as_pointer())
    if mask is None:
        return builder.load(at, align=_NUMBER_BYTES)
    name = f"llvm.masked.load.v{LANES}f32.p0"
    kind = ir.FunctionType(_VECTOR, [at.type, ir.IntType(32), _MASK, _VECTOR])
    load = cgutils.get_or_insert_function(builder.module, kind, name)
    number_bytes = ir.Constant(ir.IntType(32), _NUMBER_BYTES)
    return builder.call(load, [at, number_bytes, mask, _zeros(_VECTOR)])


def _store(builder: Any, vector: Any, at: Any, mask: Any) -> None:
    at = builder.bitcast(at, _VECTOR.as_pointer())
    if mask is None:
        builder.store(vector, at, align=_NUMBER_BYTES)
        return
    name = f"llvm.masked.store.v{LANES}f32.p0"
    kind = ir.FunctionType(ir.VoidType(), [_VECTOR, at.type, ir.IntType(32), _MASK])
    store = cgutils.get_or_insert_function(builder.module, kind, name)
    builder.call(store, [vector, at, ir.Constant(ir.IntType(32), _NUMBER_BYTES), mask])


def _first_lanes(builder: Any, count: Any) -> Any:
    """A mask of the first `count` lanes."""
    whole = ir.IntType(32)
    places = ir.Constant(ir.VectorType(whole, LANES), list(range(LANES)))
    return builder.icmp_signed("<", places, _splat(builder, builder.trunc(count, whole)))


def _splat(builder: Any, number: Any) -> Any:
    """A vector of equal numbers."""
    kind = ir.VectorType(number.type, LANES)
    one = builder.insert_element(
        ir.Constant(kind, ir.Undefined), number, ir.Constant(ir.IntType(32), 0)
    )
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), lanes)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """A * b + c, rounded once."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    name = "llvm.fma.f32" if a.type == _FLOAT else f"llvm.fma.v{LANES}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])


@_intrinsic
def copy_numbers(typing: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` numbers from one address to another."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = builder.inttoptr(arguments[1], _FLOAT.as_pointer())

        def copy(at: Any, mask: Any) -> None:
            place = builder.sub(builder.ptrtoint(at, _INDEX), arguments[1])
            to = builder.inttoptr(builder.add(place, arguments[0]), _FLOAT.as_pointer())
            _store(builder, _load(builder, at, mask), to, mask)

        _for_vectors(builder, source, arguments[2], copy)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), code


@_intrinsic
def square_sum(typing: Any, x: Any, first: Any, count: Any) -> Any:
    """The sum of squares of `count` numbers: lane by lane, then the lanes in pairs."""
    return types.float32(x, types.intp, types.intp), _square_sum_code


def _square_sum_code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    _, first, count = arguments
    x = _at(builder, _numbers(context, builder, signature, arguments, 0), first)
    sums = cgutils.alloca_once_value(builder, _zeros(_VECTOR))

    def add(at: Any, mask: Any) -> None:
        part = _load(builder, at, mask)
        builder.store(_fma(builder, part, part, builder.load(sums)), sums)

    _for_vectors(builder, x, count, add)
    return _folded(builder, builder.load(sums), builder.fadd)


@_intrinsic
def largest(typing: Any, x: Any, first: Any, count: Any) -> Any:
    """The largest of `count` numbers; minus infinity of none."""
    return types.float32(x, types.intp, types.intp), _largest_code


def _largest_code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    _, first, count = arguments
    x = _at(builder, _numbers(context, builder, signature, arguments, 0), first)
    lowest = ir.Constant(_VECTOR, [-math.inf] * LANES)
    best = cgutils.alloca_once_value(builder, lowest)

    def larger(a: Any, b: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    def take(at: Any, mask: Any) -> None:
        part = _load(builder, at, mask)
        if mask is not None:
            part = builder.select(mask, part, lowest)
        builder.store(larger(part, builder.load(best)), best)

    _for_vectors(builder, x, count, take)
    return _folded(builder, builder.load(best), larger)


@_intrinsic
def exponentials(typing: Any, x: Any, first: Any, count: Any, less: Any) -> Any:
    """Replace `count` numbers by exp(number - less); returns their sum, added as `square_sum`."""
    return types.float32(x, types.intp, types.intp, types.float32), _exponentials_code


def _exponentials_code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    _, first, count, less = arguments
    x = _at(builder, _numbers(context, builder, signature, arguments, 0), first)
    sums = cgutils.alloca_once_value(builder, _zeros(_VECTOR))
    less = _splat(builder, less)

    def replace(at: Any, mask: Any) -> None:
        power = _exp(builder, builder.fsub(_load(builder, at, mask), less))
        if mask is not None:
            power = builder.select(mask, power, _zeros(_VECTOR))
        _store(builder, power, at, mask)
        builder.store(builder.fadd(builder.load(sums), power), sums)

    _for_vectors(builder, x, count, replace)
    return _folded(builder, builder.load(sums), builder.fadd)


@_intrinsic
def exponential(typing: Any, x: Any) -> Any:
    """exp(x) of a float32, within 1 unit of its last place; 0 below -86.5 (1e-38)."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _exp(builder, *arguments)

    return types.float32(types.float32), code


def _exp(builder: Any, x: Any) -> Any:
    """2 ** n exp(r), of a number or a vector: n whole, r within half a ln 2, by a polynomial."""
    whole = ir.VectorType(ir.IntType(32), LANES) if x.type == _VECTOR else ir.IntType(32)

    def same(number: float) -> Any:
        return ir.Constant(x.type, [number] * LANES if x.type == _VECTOR else number)

    # Added to 1.5 * 2 ** 23, a number is rounded to a whole one, in the lowest bits of the sum.
    shifted = _fma(builder, x, same(_float32(1 / math.log(2))), same(1.5 * 2**23))
    n = builder.fsub(shifted, same(1.5 * 2**23))
    r = x
    for part in _LN_2:
        r = _fma(builder, n, same(-part), r)
    power = same(_EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        power = _fma(builder, power, r, same(term))
    places = ir.Constant(whole, [23] * LANES if x.type == _VECTOR else 23)
    doubled = builder.shl(builder.bitcast(shifted, whole), places)
    power = builder.bitcast(builder.add(builder.bitcast(power, whole), doubled), x.type)
    power = builder.select(builder.fcmp_ordered("<", x, same(_EXP_LOWEST)), same(0.0), power)
    power = builder.select(builder.fcmp_ordered(">", x, same(_EXP_HIGHEST)), same(math.inf), power)
    return builder.select(builder.fcmp_unordered("uno", x, x), x, power)


def _for_vectors(builder: Any, x: Any, count: Any, body: Callable[[Any, Any], None]) -> None:
    """`body` of the address of each whole vector, then, with a mask, of what is left."""
    lanes = _index(LANES)
    whole = builder.sdiv(count, lanes)
    with cgutils.for_range(builder, whole) as loop:
        body(_at(builder, x, builder.mul(loop.index, lanes)), None)
    done = builder.mul(whole, lanes)
    left = builder.sub(count, done)
    with builder.if_then(builder.icmp_signed(">", left, _index(0))):
        body(_at(builder, x, done), _first_lanes(builder, left))


def _folded(builder: Any, vector: Any, join: Callable[[Any, Any], Any]) -> Any:
    """The lanes of `vector` joined: the halves, then their halves, to a number."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        halves = [
            builder.shuffle_vector(
                vector,
                undefined,
                ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(at, at + width))),
            )
            for at in (0, width)
        ]
        vector = join(*halves)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _zeros(kind: Any) -> Any:
    return ir.Constant(kind, [0.0] * LANES)
