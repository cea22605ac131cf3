// The last samples of several figures, oldest first: what the page has seen, and nothing before.

/** Rows of `width` numbers; the oldest give way when `capacity` is reached. */
export class Ring {
  private readonly cells: Float64Array;
  private first = 0;
  length = 0;

  constructor(
    readonly capacity: number,
    readonly width: number,
  ) {
    this.cells = new Float64Array(capacity * width);
  }

  push(row: ArrayLike<number>): void {
    if (row.length !== this.width) throw new RangeError(`a row of ${row.length}, not of ${this.width}`);
    const place = (this.first + this.length) % this.capacity;
    this.cells.set(row, place * this.width);
    if (this.length < this.capacity) this.length += 1;
    else this.first = (this.first + 1) % this.capacity;
  }

  /** One column, oldest first; a NaN, which says that there was nothing to say, becomes null. */
  column(index: number): (number | null)[] {
    const values = new Array<number | null>(this.length);
    for (let row = 0; row < this.length; row += 1) {
      const value = this.cells[((this.first + row) % this.capacity) * this.width + index] as number;
      values[row] = Number.isNaN(value) ? null : value;
    }
    return values;
  }

  clear(): void {
    this.first = 0;
    this.length = 0;
  }
}
