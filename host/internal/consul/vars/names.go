package vars

// The variables of a workload's spec.
const (
	NodeName          = "node.name"
	NodeDatacenter    = "node.datacenter"
	WorkloadID        = "workload.id"
	WorkloadNamespace = "workload.namespace"
	// Bootstrap, TokenFile and SecretsDir are paths on the host; the files are those of
	// the service that a program stands for. ProxyID is the id of its proxy in Consul.
	Bootstrap  = "bootstrap"
	TokenFile  = "token_file"
	SecretsDir = "secrets_dir"
	ProxyID    = "proxy_id"
)

// Port is the variable of one of the workload's ports.
func Port(label string) string { return "port." + label }

// InServices are the variables that stand in a service, where the workload has ports
// with these labels.
func InServices(labels []string) []string {
	return withPorts([]string{NodeName, NodeDatacenter, WorkloadID, WorkloadNamespace}, labels)
}

// InPrograms are those that stand in the arguments and the environment of the
// workload's program and its sidecars.
func InPrograms(labels []string) []string {
	return withPorts([]string{NodeName, WorkloadID, WorkloadNamespace, Bootstrap, TokenFile, SecretsDir, ProxyID}, labels)
}

func withPorts(names, labels []string) []string {
	for _, label := range labels {
		names = append(names, Port(label))
	}
	return names
}
