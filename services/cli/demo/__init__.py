"""`tenure demo`: the main job end to end, checked against the library's own answers."""
