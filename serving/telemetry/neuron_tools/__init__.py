"""Output of the vendor's system tools, from a running engine's state and meters.

neuron-ls (device tables), neuron-monitor (JSON) and neuron-top (a screen). All is pure but
`host_sample` and `server_processes`, which read this machine, and `top_screen`, which draws. What
the emulator lacks is null, zero by nature, or "emulated". Source: AWS Neuron SDK docs,
tools/neuron-sys-tools.
"""
