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

// Whether a cut here would halve a character of two units.
export const isWithinPair = (text, unit) => text.codePointAt(unit - 1) > 0xffff;

// The first whole characters of a text, in at most this many units.
export function beginning(text, length) {
  return text.slice(0, text.length > length && isWithinPair(text, length) ? length - 1 : length);
}

// The same on one line, with an ellipsis for the rest.
export function shortened(text, length) {
  const words = beginning(text, length).replace(/\s+/g, " ").trim();
  return text.length > length ? `${words}…` : words;
}
