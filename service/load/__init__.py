"""Load from outside: requests that arrive when they would, whether or not the server keeps up."""
