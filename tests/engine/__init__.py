"""The gateway in front of a real engine: `make test-vllm URL=http://127.0.0.1:8000`."""
