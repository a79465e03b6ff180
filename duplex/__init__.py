"""The composition root: command line, settings, process tree, and a client that talks to the service."""
