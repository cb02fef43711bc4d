"""The laws, as functions: of the rounds, of what clients send, of variants, of aggregation, of the noise stream."""
