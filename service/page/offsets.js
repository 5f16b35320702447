// The server counts Unicode characters, JavaScript counts UTF-16 units; they part beyond U+FFFF.

export class Characters {
  constructor(text) {
    this.wide = []; // the character index of each that takes two units, in order
    for (const match of text.matchAll(/[\u{10000}-\u{10FFFF}]/gu)) {
      this.wide.push(match.index - this.wide.length);
    }
    this.count = text.length - this.wide.length;
  }

  // The UTF-16 unit at which this character begins.
  unit(character) {
    return character + firstNotBelow(this.wide, character);
  }
}

// How many of the ascending numbers are below the limit.
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
