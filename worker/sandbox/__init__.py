"""The sandbox a model process puts on itself before it reads a weight, and the proof that it holds.

`proof` is the way in: it lays out what there is to reach, tries everything, confines the process, tries
everything again and judges. `confinement` has the layers in their order, `landlock`, `seccomp`, `namespaces` and
`capabilities` one each, `paths` what stays open. `attempts` is the table of ways out and which layers close them,
`escape` how an attempt is made and read, `decoys` what the worker puts outside for them. Layers are applied by the
process to itself and can't be taken off again.
"""
