"""Whether instruments keep the errors that they state: their answers against dense matrices."""
