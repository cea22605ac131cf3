"""A tray as slow tests start it for themselves."""

MODEL = "qwen3-30b-a3b"
CONTEXT_TOKENS = 4096
DILATION = 10  # about what two idle cores keep up with; nothing here depends on keeping up
