// Package child is the process that enters a workload's mount namespace and becomes the workload's program. Package
// launch starts it, with pipes for its plan and its reports.
//
// It is this program started again, so it must not wait for the initialization of all packages of the agent, which
// takes longer than its work. Its own init does that work. Go initializes packages whose imports are ready in the order
// of their names: this package comes early because it imports none that comes late, such as os/exec, path/filepath and
// whatever imports these.
package child
