"""
The pure core of a session: commands, events, state, the reducer, and the wire vocabulary it projects.

No clock, no randomness, no I/O: time and ids come from the entries, so a replay equals the live run.
"""
