"""Those who watch a service and write down what they see: the audit trail, the metrics, the log without secrets."""
