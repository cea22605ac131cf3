// Lists of chips and ranks in one line: `4, 5, 6, 9` is `4–6, 9`.

const LIST = /\b\d+(?:, \d+){2,}\b/g;

/** The same words, in which three and more numbers that follow each other are a range. */
export function shortLists(words: string): string {
  return words.replace(LIST, (list) => ranges(list.split(", ").map(Number)));
}

function ranges(numbers: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const number of numbers) {
    const run = runs[runs.length - 1];
    if (run && number === run[1] + 1) run[1] = number;
    else runs.push([number, number]);
  }
  return runs
    .map(([from, to]) => (to === from ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`))
    .join(", ");
}
