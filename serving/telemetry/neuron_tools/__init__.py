"""What the vendor's system tools print, made of a running engine's state and meters.

neuron-ls (device tables), neuron-monitor (its JSON) and neuron-top (a screen). Everything here is
pure but `host_sample` and `server_processes`, which look at this machine, and `top_screen`, which
draws. What the emulator does not have is null, zero by nature, or the word "emulated".

Source: AWS Neuron SDK docs, tools/neuron-sys-tools.
"""
