"""Which devices the kernels serve, and the answer to the recurrent back-end hook."""
