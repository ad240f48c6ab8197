"""The worker: resident and durable join state, kernels, and the execution of plans on them."""
