"""Does LLN gain when its branch is made more selective?"""
