// Package device is the kind "device": a plugin that tells which devices a host has and
// gives them to workloads.
package device

import (
	"context"
	"time"
)

// Kind is the kind's protocol with its version.
const Kind = "device.v1"

// Device is what a plugin of the kind "device" must do. The host calls it through the
// same interface, so one reading serves both sides. A host may have several plugins of
// the kind, each for its own devices.
//
// Errors are gRPC status errors: Unavailable, DeadlineExceeded and ResourceExhausted are
// worth another try, all others are final; an error that is no status reaches the host
// as Internal. Every call may be repeated with the same arguments, at any time and by
// another process of the same plugin: which workload has which device is the host's to
// know.
type Device interface {
	// Fingerprint reports all groups of devices, at once and then on each change, until
	// ctx ends or report fails. No groups: there are no devices. See ValidateGroups for
	// what a group must be.
	Fingerprint(ctx context.Context, report func(groups []Group) error) error
	// Reserve tells what a workload needs to use these devices, which it alone is given.
	// Nothing reverses it, so it must take nothing that has to be given back. NotFound:
	// one of them is not there.
	Reserve(ctx context.Context, ids []string) (Reservation, error)
}

// StatsReader is implemented by a plugin that can tell how its devices are used.
type StatsReader interface {
	// Stats reports all devices, at once and then every interval, until ctx ends or
	// report fails.
	Stats(ctx context.Context, interval time.Duration, report func(devices []Stats) error) error
}

// Client is the host's side of a plugin. Stats of a plugin that is no StatsReader is
// Unimplemented.
type Client interface {
	Device
	StatsReader
}

// Group is devices that are alike. A workload asks for a device by its type, by
// VENDOR/TYPE or by VENDOR/TYPE/NAME.
type Group struct {
	Vendor, Type, Name string // such as "nvidia", "gpu" and "T4"; each is needed
	Devices            []Instance
	Attributes         map[string]string // of each of the devices
}

// Instance is one device.
type Instance struct {
	ID       string // unique in the plugin; it stays the device's
	Healthy  bool   // a workload may be given it
	Message  string // why it is not healthy
	Locality string // where it is on the machine, such as a PCI bus id; may be empty
}

// Reservation is what a workload needs to use its devices.
type Reservation struct {
	Mounts  []Mount           `json:"mounts,omitempty"`
	Devices []Node            `json:"devices,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// Mount is a file or a folder of the host that the workload is to see. Both paths are
// absolute.
type Mount struct {
	HostPath string `json:"host_path"`
	TaskPath string `json:"task_path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Node is a device file of the host that the workload is to see. Both paths are
// absolute.
type Node struct {
	HostPath    string `json:"host_path"`
	TaskPath    string `json:"task_path"`
	Permissions string `json:"permissions"` // some of "rwm": read, write, mknod
}

// Stats is how one device is used.
type Stats struct {
	ID      string
	Time    time.Time
	Summary string             // the one value that matters most, for people
	Values  map[string]float64 // by a name that ends with its unit, such as "memory_used_bytes"
}
