// Package agent puts the host together: agent.go is the list of what is built
// and opened, in the order in which it is needed, and closed in reverse. It does
// nothing else.
package agent
