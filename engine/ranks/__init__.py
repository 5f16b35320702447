"""One document over several processes or machines: ranks that read a stretch each."""
