"""
Decide: what an entry that passed the reducer's gate means in the present state.

Pure functions, one per entry type. Each takes the state, with position and writer already moved on, and the
entry's body, and gives the changes in order.
"""
