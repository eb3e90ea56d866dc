"""The bus over NATS: the connection and its protocol, credentials, the broker, and JetStream's fast paths."""
