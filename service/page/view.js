// The visible window of the attention matrix. Rows attend to columns.

const SMALLEST = 8; // tokens per side

export class View {
  constructor(tokens) {
    this.tokens = tokens;
    this.all();
  }

  all() {
    this.rows = [0, this.tokens];
    this.columns = [0, this.tokens];
  }

  set(rows, columns) {
    this.rows = this.clamped(rows);
    this.columns = this.clamped(columns);
  }

  get isAll() {
    return [this.rows, this.columns].every(([start, end]) => start === 0 && end === this.tokens);
  }

  // factor < 1 zooms in; x and y are the fixed point, as shares of the window.
  zoom(factor, x = 0.5, y = 0.5) {
    this.columns = this.scaled(this.columns, factor, x);
    this.rows = this.scaled(this.rows, factor, y);
  }

  // x and y are shares of the window.
  pan(x, y) {
    this.columns = this.moved(this.columns, x);
    this.rows = this.moved(this.rows, y);
  }

  scaled([start, end], factor, at) {
    const size = Math.min(this.tokens, Math.max(Math.min(SMALLEST, this.tokens), Math.round((end - start) * factor)));
    const first = start + at * (end - start) - at * size;
    return this.clamped([first, first + size]);
  }

  moved([start, end], by) {
    const size = end - start;
    const shift = Math.sign(by) * Math.max(1, Math.round(Math.abs(by) * size));
    return this.clamped([start + (by ? shift : 0), start + (by ? shift : 0) + size]);
  }

  // Returns whole tokens inside the document, at least one.
  clamped([start, end]) {
    const size = Math.max(1, Math.min(this.tokens, Math.round(end - start)));
    const first = Math.min(Math.max(0, Math.round(start)), this.tokens - size);
    return [first, first + size];
  }
}
