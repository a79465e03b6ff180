"""
The vLLM engine for workers: one `AsyncLLM` a process, one resumable request a session.

Importing this package imports no vLLM; `vllm_backend` alone does, when an engine is started.
"""
