// Package service is the model of what a workload says of its services, and of how a
// Consul is reached. The kinds registration, identity and bootstrap share it.
//
// The field names in JSON are those of the protobuf messages of pannier.service.v1,
// so that one is converted into the other by way of JSON (convert.go).
package service
