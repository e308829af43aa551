// Package workloads answers the API's calls about workloads, and the Consul tokens of their services.
package workloads
