// Package doctor checks a machine, and the agent on it, for what keeps workloads from their volumes, and names the
// command that mends it. checks.go is the list. A check only looks, bounded in time, and needs neither a configuration
// nor an agent: it reports what could not be checked. It knows the rest of the host by its configuration and its API
// only.
package doctor
