"""Engines that sample with transformers or vLLM; how the proxy uses them is the SDK's business."""
