"""
The codec of OpenAI's Realtime dialects: JSON to commands, canonical events to JSON.

Knows no socket and no journal.
"""
