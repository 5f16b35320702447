"""What indexed folders find, and what an update of an index costs."""
