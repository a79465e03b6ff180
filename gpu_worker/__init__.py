"""The GPU worker: follows the journals of its sessions, feeds the model and appends what came out."""
