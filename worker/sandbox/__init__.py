"""The sandbox a model process puts on itself before it imports an ML library or reads a weight.

`confinement` applies the layers, `landlock` and `seccomp` are two of them, `escape` tries to break out and
records each result. The layers are applied by the process to itself and can't be taken off again.
"""
