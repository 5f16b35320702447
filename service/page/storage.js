// What the browser keeps for this page, where it keeps anything: site data may be blocked, or full.

class Kept {
  constructor(name) {
    this.name = name;
  }

  // null: nothing is kept under this name, or nothing can be.
  get(key) {
    try {
      return globalThis[this.name].getItem(key);
    } catch {
      return null;
    }
  }

  set(key, value) {
    try {
      globalThis[this.name].setItem(key, value);
    } catch {
      this.remove(key); // rather nothing than what was there before
    }
  }

  remove(key) {
    try {
      globalThis[this.name].removeItem(key);
    } catch {
      // Blocked: there is nothing to remove.
    }
  }
}

export const ofThisTab = new Kept("sessionStorage");
export const ofThisBrowser = new Kept("localStorage");
