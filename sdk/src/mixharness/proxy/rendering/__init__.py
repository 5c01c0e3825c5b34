"""What stands behind `proxy/renderer.py`: families, chat templates, rules, probes, parsers."""
