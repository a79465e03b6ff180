"""
The gateway: holds client sockets, appends their commands to the journal, and sends what the fold of it gives.
"""
