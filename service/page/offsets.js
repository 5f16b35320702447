// Converts offsets: the server counts Unicode characters, JavaScript UTF-16 units.

export class Characters {
  constructor(text) {
    this.wide = []; // the indices of the characters above U+FFFF, which take two units
    for (const match of text.matchAll(/[\u{10000}-\u{10FFFF}]/gu)) {
      this.wide.push(match.index - this.wide.length);
    }
    this.count = text.length - this.wide.length;
  }

  // Returns the UTF-16 unit at which a character begins.
  unit(character) {
    return character + firstNotBelow(this.wide, character);
  }
}

// Returns how many of the sorted numbers are below the limit.
export function firstNotBelow(numbers, limit) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
