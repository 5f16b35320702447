"""The commands of `lln`, a file each: `add` describes its arguments, and names what runs it."""
