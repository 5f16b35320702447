// The browser's storage. Errors are ignored: storage may be blocked or full.

class Store {
  constructor(name) {
    this.name = name;
  }

  // Returns null if there is no value or storage is blocked.
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
      this.remove(key); // no value is better than an old one
    }
  }

  remove(key) {
    try {
      globalThis[this.name].removeItem(key);
    } catch {
      // Blocked, so there is no value.
    }
  }
}

export const ofThisTab = new Store("sessionStorage");
export const ofThisBrowser = new Store("localStorage");
