"""The tray shared by the everyday tests of a whole server."""

MODEL = "qwen3-30b-a3b"
CONTEXT_TOKENS = 4096
DILATION = 10  # about what two idle cores keep up with; nothing here depends on keeping up
