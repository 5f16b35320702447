// Of requests that replace one another only the newest counts: each stops the one before.

export class Newest {
  next() {
    this.stop();
    this.controller = new AbortController();
    return this.controller.signal;
  }

  stop() {
    this.controller?.abort();
  }
}
