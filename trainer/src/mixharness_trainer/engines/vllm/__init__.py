"""The engine `vllm`: servers of vLLM's that sample, and take new weights while they run.

engine.py sends each session's requests to one replica; replica.py keeps a replica alive; client.py
speaks HTTP to it; server.py launches it; sync.py and gpu_sync.py move weights. file_backend.py runs
inside the server. Nothing is imported here: the server's environment has vLLM, but not the SDK.
"""
