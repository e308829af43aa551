// Package device is the kind "device": a plugin that reports which devices a host has, and how a workload gets
// access to them.
package device

import (
	"context"
	"time"
)

// Kind is the kind's protocol with its version.
const Kind = "device.v1"

// Device is the interface of a plugin of the kind "device". The host calls it through the same interface. A host
// may have several plugins of the kind, each for its own devices.
//
// Errors are gRPC status errors. Unavailable, DeadlineExceeded and ResourceExhausted are retried, all others are
// final. An error that is no status reaches the host as Internal. Every call may be repeated with the same
// arguments, at any time and by another process of the same plugin; only the host knows which workload has which
// device.
type Device interface {
	// Fingerprint reports all groups of devices, at once and then on each change, until ctx ends or report fails. No
	// groups means that there are no devices. ValidateGroups has the rules of a group.
	Fingerprint(ctx context.Context, report func(groups []Group) error) error
	// Reserve returns what a workload needs to use these devices, which the host gives to it alone. No call
	// reverses it, so it must not take anything that would have to be released. NotFound: one of the devices does
	// not exist.
	Reserve(ctx context.Context, ids []string) (Reservation, error)
}

// StatsReader is implemented by a plugin that can report how its devices are used.
type StatsReader interface {
	// Stats reports all devices, at once and then every interval, until ctx ends or
	// report fails.
	Stats(ctx context.Context, interval time.Duration, report func(devices []Stats) error) error
}

// Client is the host's client of a plugin. Stats fails with Unimplemented if the plugin is no StatsReader.
type Client interface {
	Device
	StatsReader
}

// Group is a set of identical devices. A workload asks for a device by TYPE, VENDOR/TYPE or VENDOR/TYPE/NAME.
type Group struct {
	Vendor, Type, Name string // such as "nvidia", "gpu" and "T4"; all are required
	Devices            []Instance
	Attributes         map[string]string // of each of the devices
}

// Instance is one device.
type Instance struct {
	ID       string // unique in the plugin; never changes
	Healthy  bool   // a workload may get it
	Message  string // why it is not healthy
	Locality string // where it is on the machine, such as a PCI bus id; may be empty
}

// Reservation is what a workload needs to use its devices.
type Reservation struct {
	Mounts  []Mount           `json:"mounts,omitempty"`
	Devices []Node            `json:"devices,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// Mount is a file or a directory of the host to be mounted for the workload. Both paths are absolute.
type Mount struct {
	HostPath string `json:"host_path"`
	TaskPath string `json:"task_path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Node is a device file of the host to be made available to the workload. Both paths are absolute.
type Node struct {
	HostPath    string `json:"host_path"`
	TaskPath    string `json:"task_path"`
	Permissions string `json:"permissions"` // some of "rwm": read, write, mknod
}

// Stats is the use of one device.
type Stats struct {
	ID      string
	Time    time.Time
	Summary string             // the most important value, for people
	Values  map[string]float64 // by a name that ends with the unit, such as "memory_used_bytes"
}
