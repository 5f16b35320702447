// Abort signals for requests that replace one another: each one aborts the one before.

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
