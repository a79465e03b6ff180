"""
Turn detection: hears, for all sessions of a worker at once, where the user's speech starts and stops.

`models` gives the speech model, `stage` runs it for the sessions, `settings` reads a client's wishes.
"""
