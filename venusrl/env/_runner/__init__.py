"""The program inside an environment process: it runs user code and speaks frames to its parent.

Standard library only; it starts as `python -I -S`. Not part of the author's kit.
"""
